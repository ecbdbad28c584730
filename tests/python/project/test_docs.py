"""The Python blocks of README and docs run, and the reference has every public name. The blocks of
docs/libraries.md and of docs/tutorial.md have tests of their own."""

import ast
import pathlib
import re
import socket
import types

import pytest
import torch
from torch import distributed, nn

import torchamp
from torchamp import amp, ops, optimizers

ROOT = pathlib.Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks() -> list:
    """The blocks, each with its document and line."""
    found = []
    for path in DOCUMENTS:
        if path.name in ("libraries.md", "tutorial.md"):
            continue
        text = path.read_text()
        for match in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            line = text[: match.start()].count("\n") + 1
            found.append(pytest.param(match[1], path.name, id=f"{path.name}:{line}"))
    return found


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(x))


class Writer:
    """The method of TensorBoard's that Monitor calls."""

    def add_scalar(self, tag, value, step):
        pass


class MyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x


class Mesh:
    """A device mesh whose every dimension is the one process."""

    def get_group(self, dimension):
        return distributed.group.WORLD


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        return taken.getsockname()[1]


@pytest.fixture
def one_rank(monkeypatch, request):
    """torchrun's environment of one process, and its group, unless the block makes it."""
    environment = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    environment |= {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "0"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if "init_process_group" not in request.getfixturevalue("code"):
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.fixture
def names(device, monkeypatch, tmp_path, code, document, request):
    """The names that, by the texts around a block, a program has."""
    if document == "distributed.md":
        request.getfixturevalue("one_rank")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        torch.utils, "tensorboard", types.SimpleNamespace(SummaryWriter=Writer), raising=False
    )
    x, target = torch.rand(6, 4, device=device), torch.randint(3, (6,), device=device)
    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if "amp.initialize(" not in code and "preflight" not in code or "release" in code:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    loss_fn = nn.functional.cross_entropy

    def train_some_iterations():
        with amp.scale_loss(loss_fn(model(x), target), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()

    def run_schedule(batch, stage_loss):
        stage_loss(model(batch[0]), batch[1]).backward()

    loss = loss_fn(model(x), target)
    if "scaler" in code or "set_policy" in code:
        model = Net().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {
        "x": x, "torch": torch, "nn": nn, "amp": amp, "torchamp": torchamp,
        "Net": lambda: Net().to(device),
        "model": model, "optimizer": optimizer, "loader": [(x, target)] * 2, "data": x, "batch": x,
        "target": target, "loss": loss, "loss_fn": loss_fn, "criterion": loss_fn,
        "train_some_iterations": train_some_iterations, "FusedAdamW": optimizers.FusedAdamW,
        "wandb": types.SimpleNamespace(log=lambda row, step=None: None), "mesh": Mesh(),
        "fully_shard": distributed.fsdp.fully_shard, "stage": model, "batches": [(x, target)],
        "pipeline_group": distributed.group.WORLD, "run_schedule": run_schedule,
        "epoch": 3, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
    }  # fmt: skip


def runnable(code: str, device: torch.device) -> str:
    """The block on this device."""
    if device.type == "cpu":
        code = code.replace(".cuda()", "").replace('"nccl"', '"gloo"')
    return re.sub('"(cpu|cuda)"', f'"{device.type}"', code)


@pytest.mark.parametrize("code, document", blocks())
@pytest.mark.filterwarnings("ignore")
def test_block_runs(code, document, names, device):
    if "register_half_function" in code:  # which would change torch for other tests
        names["torch"] = types.SimpleNamespace(einsum=torch.einsum)
        names["my_module"] = types.SimpleNamespace(mix=torch.add)
        names["MyFunction"] = MyFunction
    exec(compile(runnable(code, device), document, "exec"), names)
    names.clear()  # the casts of O1 and O4 end with their models


REFERENCE = ROOT / "docs" / "reference"
PACKAGE = ROOT / "python" / "torchamp"
#: Modules whose names programs import. `make docs` checks the names of C++.
MODULES = [path for path in PACKAGE.glob("*.py") if not path.name.startswith("_")]
MODULES += [PACKAGE / name / "__init__.py" for name in ("", "amp", "optimizers")]


def is_command(module: pathlib.Path) -> bool:
    return "__main__" in module.read_text()


def public_names(module: pathlib.Path) -> list[str]:
    """The names that `__all__` lists, also of modules whose imports are not installed. The
    ops are those of the compiled module."""
    if module.name == "ops.py":
        return ops.__all__
    for statement in ast.parse(module.read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return ast.literal_eval(statement.value)
    assert is_command(module), f"{module} has no __all__"
    return []


def documented_names() -> set[str]:
    """The last parts of what the pages' directives name."""
    pages = "".join(path.read_text() for path in REFERENCE.glob("*.md"))
    return set(re.findall(r"^\.\. auto\w+:: torchamp[\w.]*\.(\w+)$", pages, re.MULTILINE))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_reference_has_every_public_name(module):
    missing = set(public_names(module)) - documented_names() - {"amp", "ops", "optimizers"}
    assert not missing


def test_reference_has_every_command():
    text = (REFERENCE / "commands.md").read_text()
    runnable = [path for path in MODULES if is_command(path)]
    commands = [f"python -m torchamp.{path.stem}" for path in runnable if path.stem != "doctor"]
    for command in [*commands, "python -m torchamp", "torchamp-doctor"]:
        assert f"`{command}" in text


def test_index_has_every_page():
    trees = "".join(
        re.findall(r"```{toctree}.*?```", (REFERENCE / "index.md").read_text(), re.DOTALL)
    )
    assert set(trees.split()) >= {path.stem for path in REFERENCE.glob("*.md")} - {"index"}


def test_the_site_has_all_results() -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    included = re.findall(r"^```{include} \.\./benchmarks/results/(\S+)$", page, re.MULTILINE)
    assert included == sorted(path.name for path in (ROOT / "benchmarks/results").glob("*.md"))
