"""The snippets of docs/libraries.md, each where its library is installed: they train, and skip the
step of an overflow."""

from __future__ import annotations

import copy
import importlib
import pathlib
import sys
import warnings

import pytest
import torch
from nets import Net, batch
from torch import nn

import torchamp
from torchamp import amp

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("libraries")]

DOCS = pathlib.Path(__file__).parents[3] / "docs" / "libraries.md"
BATCHES = 4
#: The batch whose grads overflow.
BAD = 1


def recipe(title: str, number: int = 0) -> str:
    section = DOCS.read_text().split(f"## {title}\n", 1)[1].split("\n## ")[0]
    return section.split("```python\n")[1 + number].split("```", 1)[0]


def run(title: str, package: str, number: int = 0, **names) -> dict:
    """The names of a section's snippet, after it has run with `names`."""
    pytest.importorskip(package, reason=f"{package} is not installed: its recipe is not tested")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(recipe(title, number), f"{DOCS.name}, {title}", "exec"), names)
    return names


class Overflowing(Net):
    """Its BAD-th backward overflows."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = super().forward(x)
        if outputs.requires_grad and Overflowing.calls == BAD:
            outputs.register_hook(lambda grad: torch.full_like(grad, torch.inf))
        Overflowing.calls += 1
        return outputs


def cross_entropy(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.float(), target)


@pytest.fixture
def names():
    """The names that the snippets take from their reader."""
    Overflowing.calls = 0
    torch.manual_seed(0)
    model = Overflowing()
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01, fused=True),
        "loss_fn": cross_entropy,
        "loader": [batch(seed) for seed in range(BATCHES)],
    }


def assert_trained(before: torch.Tensor, model: nn.Module) -> None:
    after = model.state_dict()["first.weight"]
    assert after.isfinite().all(), "an overflow was stepped by"
    assert not torch.equal(before, after), "nothing was trained"


def weight_of(model: nn.Module) -> torch.Tensor:
    return model.state_dict()["first.weight"].clone()


def test_lightning(names, tmp_path, monkeypatch):
    pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    monkeypatch.chdir(tmp_path)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = names["model"]

        def training_step(self, batch, index):
            return cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return names["optimizer"]

    before = weight_of(names["model"])
    loader = torch.utils.data.DataLoader(names["loader"], batch_size=None)
    trainer = run("Lightning", "lightning", module=Module(), loader=loader)["trainer"]
    assert_trained(before, names["model"])
    scales = trainer.precision_plugin.state_dict()
    assert scales["loss_scaler0"] == {"loss_scale": 2.0**15, "unskipped": 2}


def test_accelerate(names):
    before = weight_of(names["model"])
    names = run("Accelerate", "accelerate", **names)
    assert_trained(before, names["model"])
    assert_one_skip()


def test_accelerates_own_backward_needs_no_scale_at_o5(names, monkeypatch):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    snippet = recipe("Accelerate").replace('"O2"', '"O5"')
    scaled = "amp.scale_loss(loss, optimizer).backward()"
    assert scaled in snippet
    weights = []
    for backward in (scaled, "accelerator.backward(loss)"):
        again = {**names, **copied(names)}
        exec(snippet.replace(scaled, backward), again)
        weights.append(weight_of(again["model"]))
        amp.release(again["model"])
    assert torch.equal(*weights)


def copied(names: dict) -> dict:
    """A model of the same weights that overflows nowhere, and an optimizer of it."""
    model = Net()
    model.load_state_dict(names["model"].state_dict())
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01)}


def test_accelerates_optimizer_is_told_from_the_one_that_initialize_returned(names):
    names = run("Accelerate", "accelerate", **names)
    message = (
        "scale_loss: expected optimizers[0] to be an optimizer that initialize returned, got an "
        "AcceleratedOptimizer that it did not; pass its optimizer"
    )
    with pytest.raises(RuntimeError) as raised:
        amp.scale_loss(torch.ones(()), names["stepper"])
    assert str(raised.value) == message


def test_accelerate_over_grad_scaler(names):
    before, model = weight_of(names["model"]), names["model"]
    found = run("Accelerate", "accelerate", 1, precision="no")
    accelerator = found["accelerator"]
    scheduler = torch.optim.lr_scheduler.StepLR(names["optimizer"], 1, 0.5)
    model, optimizer, prepared = accelerator.prepare(model, names["optimizer"], scheduler)
    for x, target in names["loader"]:
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(x), target))
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        prepared.step()
    assert_trained(before, names["model"])
    assert accelerator.scaler.get_scale() == 2.0**15
    assert scheduler.get_last_lr() == [0.01 * 0.5 ** (BATCHES - 1)], "the schedule ran ahead"


class Labelled(nn.Module):
    """Returns the loss, as the Trainer's models do."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict:
        outputs = self.net(x)
        return {"loss": cross_entropy(outputs, labels), "logits": outputs}


DATASET = [{"x": x, "labels": label} for seed in range(BATCHES) for x, label in zip(*batch(seed))]


def arguments(folder: pathlib.Path, **options):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    return transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=16,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        **{"max_steps": BATCHES, "save_strategy": "no", **options},
    )


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3", "O4", "O5"])
def test_the_trainer_resumes_a_run(level, tmp_path, monkeypatch):
    """SGD, whose steps a wrong scale of the grads would change."""
    weights = []
    for resumes in (False, True):
        options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
        options["gradient_accumulation_steps"] = 2
        args = arguments(tmp_path, **options)
        trained = "trainer.train()"
        snippet = recipe("Hugging Face Trainer")
        assert trained in snippet
        if resumes:
            again = f'trainer.train(resume_from_checkpoint="{tmp_path}/checkpoint-2")'
            snippet = snippet.replace(trained, again)
        torch.manual_seed(0)
        model = Labelled(Net())
        given = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            warnings.filterwarnings("ignore", module="(transformers|accelerate|torch).*")
            exec(snippet, {**given, "args": args, "dataset": DATASET, "level": level})
        weights.append(model.state_dict()["net.first.weight"])
        amp.release(model)
    torch.manual_seed(0)
    plain = Labelled(Net())
    transformers = importlib.import_module("transformers")
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
    options = {"max_steps": 4, "gradient_accumulation_steps": 2}
    transformers.Trainer(
        plain, arguments(tmp_path, **options), train_dataset=DATASET, optimizers=(sgd, None)
    ).train()
    assert torch.equal(*weights) and weights[0].dtype == torch.float32
    precision = {"O0": 0.0, "O1": 1e-3, "O2": 1e-3}.get(level, 1e-2)
    torch.testing.assert_close(weights[0], plain.net.first.weight, atol=precision, rtol=0)


def test_the_trainer_skips_an_overflow(names, tmp_path):
    optimizer = torch.optim.SGD(names["model"].parameters(), lr=0.1)
    before = weight_of(names["model"])
    given = {"model": Labelled(names["model"]), "optimizer": optimizer, "level": "O2"}
    run("Hugging Face Trainer", "transformers", args=arguments(tmp_path), dataset=DATASET, **given)
    assert_trained(before, names["model"])
    assert_one_skip()


def test_the_trainer_over_grad_scaler(names, tmp_path):
    args = arguments(tmp_path, optim="adamw_torch_fused")
    before = weight_of(names["model"])
    model = Labelled(names["model"])
    found = run("Hugging Face Trainer", "transformers", 1, model=model, args=args, dataset=DATASET)
    trainer = found["trainer"]
    trainer.train()
    assert_trained(before, names["model"])
    assert trainer.accelerator.scaler.get_scale() == 2.0**15
    assert trainer.lr_scheduler.last_epoch == BATCHES - 1, "the schedule ran ahead"


def test_mmengine(names, tmp_path):
    model = pytest.importorskip("mmengine.model", reason="mmengine is not installed")

    class Model(model.BaseModel):
        def __init__(self):
            super().__init__()
            self.net = names["model"]

        def forward(self, x, target, mode="loss"):
            return {"loss": cross_entropy(self.net(x), target)}

    before = weight_of(names["model"])
    loader = torch.utils.data.DataLoader(
        [pair for seed in range(BATCHES) for pair in zip(*batch(seed))], batch_size=16
    )
    whole = Model()
    options = {"model": whole, "loader": loader, "optimizer": names["optimizer"]}
    run("mmengine", "mmengine", **options, work_dir=str(tmp_path))
    assert_trained(before, names["model"])
    assert names["model"].first.weight.dtype == torch.float16
    assert_one_skip()


def test_ignite(names):
    before = weight_of(names["model"])
    names = run("ignite", "ignite", **names)
    assert_trained(before, names["model"])
    assert_one_skip()


def test_ignite_over_grad_scaler(names):
    engine = pytest.importorskip("ignite.engine", reason="ignite is not installed")
    before = weight_of(names["model"])
    scaler = torchamp.GradScaler("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine.create_supervised_trainer(
            names["model"], names["optimizer"], cross_entropy, amp_mode="amp", scaler=scaler
        ).run(names["loader"])
    assert_trained(before, names["model"])
    assert scaler.get_scale() == 2.0**15


def test_timm(names, monkeypatch):
    for module in [each for each in sys.modules if each.partition(".")[0] == "timm"]:
        monkeypatch.delitem(sys.modules, module)
    torchamp.install_as_apex()
    before = weight_of(names["model"])
    names = run("timm", "timm", **names)
    assert_trained(before, names["model"])
    assert_one_skip()
    average = names["ema"].module.first.weight
    assert average.dtype == torch.float32 and not torch.equal(average, before)


def test_fastai(names):
    data = pytest.importorskip("fastai.data.core", reason="fastai is not installed")
    load = importlib.import_module("fastai.data.load")
    pairs = [pair for seed in range(BATCHES) for pair in zip(*batch(seed))]
    loader = load.DataLoader(pairs, bs=16)
    before = weight_of(names["model"])
    options = {"model": names["model"], "loss_fn": cross_entropy}
    scales = []
    with pytest.MonkeyPatch.context() as patch:
        update = torchamp.GradScaler.update
        patch.setattr(
            torchamp.GradScaler,
            "update",
            lambda self, *args: (update(self, *args), scales.append(self.get_scale())),
        )
        run(
            "fastai",
            "fastai",
            **options,
            dls=data.DataLoaders(loader, loader, device=torch.device("cpu")),
        )
    assert_trained(before, names["model"])
    assert scales[-1] == 2.0**15


def test_averages_of_weights(names):
    model, optimizer = names["model"], names["optimizer"]
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    averaged = run("Averages of weights", "torch", **names)["averaged"]
    assert averaged.n_averaged == BATCHES
    assert averaged.module.first.weight.dtype == torch.float32


def assert_one_skip() -> None:
    scales = amp.state_dict()
    assert scales["loss_scaler0"] == {"loss_scale": 2.0**15, "unskipped": BATCHES - 2}


def test_torchao():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 3))
    model = copy.deepcopy(plain)
    x = torch.randn(64, 32)
    loader = [(x, x.sum(1).gt(0).long())] * 60
    losses = []

    def loss_fn(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        losses.append(cross_entropy(outputs, target))
        return losses[-1]

    names = {"model": model, "loader": loader, "loss_fn": loss_fn}
    found = run("torchao: linears in float8", "torchao", **names)
    assert [type(model[i]).__name__ for i in (0, 2)] == ["Float8Linear", "Linear"]
    assert model[0].weight.dtype == torch.bfloat16
    assert all(each.dtype == torch.float32 for each in amp.master_params(found["optimizer"]))
    assert losses[-1] < 0.5 * losses[0]
    plain.load_state_dict(model.state_dict())
    assert cross_entropy(plain(x), loader[0][1]) < 0.5 * losses[0]
