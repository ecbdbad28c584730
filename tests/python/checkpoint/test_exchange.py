"""A checkpoint passes from one language to the other, and the run continues bit for bit.

The C++ side is tests/languages/exchange.cpp: the same network, batches and options.
"""

import pathlib
import subprocess
from collections.abc import Iterator

import pytest
import torch
from languages.runs import PROGRAM
from nets import Net, initialized, train_step

from torchamp import amp, optimizers

#: The optimizers of tests/languages/exchange.cpp, by name.
OPTIONS = {
    "SGD": {"lr": 0.125, "momentum": 0.5},
    "Adam": {"lr": 0.01, "amsgrad": True},
    "AdamW": {"lr": 0.01},
    "Adagrad": {"lr": 0.01},
    "RMSprop": {"lr": 0.01, "momentum": 0.5, "centered": True},
    "FusedSGD": {"lr": 0.125, "momentum": 0.5},
    "FusedAdam": {"lr": 0.01},
    "FusedAdamW": {"lr": 0.01},
    "FusedNovoGrad": {"lr": 0.01},
    "FusedLAMB": {"lr": 0.01},
}


def run_cpp(*arguments: object) -> None:
    """Runs the program."""
    if not PROGRAM.is_file():
        pytest.fail(f"expected {PROGRAM} to be there: run `make test`")
    done = subprocess.run(
        [str(PROGRAM), "exchange", *map(str, arguments)], stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == 0, done.stderr


def run_python(level, name, source, first, end, target, **options) -> None:
    """The run of run_cpp, in Python."""
    level, *words = level.split()
    model = Net(16 if "wide" in words else 4)
    make = getattr(optimizers, name, None) or getattr(torch.optim, name)
    optimizer = make(model.parameters(), **OPTIONS[name], **options)
    float8 = ["first"] if "float8" in words else False
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, float8=float8)
    if source != "-":
        amp.load(model, optimizer, source)
    for step in range(first, end):
        train_step(model, optimizer, step)
    amp.save(model, optimizer, target)


#: Options that only one language's optimizers have. The first select Python's implementation; the
#: others have the value that makes both compute the same.
MAY_BE_MISSING = {
    *("foreach", "capturable", "differentiable", "fused"),
    *("bias_correction", "decay_after_momentum", "decoupled_weight_decay"),
    "initial_accumulator_value",
}


def contents(path: pathlib.Path) -> dict[str, object]:
    """The contents of a file by path, such as "models.0.first.weight"."""
    return dict(leaves(torch.load(path, weights_only=True), ""))


def leaves(tree: object, place: str) -> Iterator[tuple[str, object]]:
    if not isinstance(tree, (dict, list, tuple)):
        yield place, tree
        return
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from leaves(value, f"{place}.{key}".lstrip("."))


def places(one: dict[str, object], other: dict[str, object]) -> set[str]:
    """Where one of the two should be as the other."""
    lacking = one.keys() ^ other.keys()
    return (one.keys() & other.keys()) | {
        place for place in lacking if place.rpartition(".")[2] not in MAY_BE_MISSING
    }


def differences(one: pathlib.Path, other: pathlib.Path) -> dict[str, tuple]:
    """The paths and values at which two files differ."""
    left, right = contents(one), contents(other)
    return {
        place: (left.get(place), right.get(place))
        for place in places(left, right)
        if not equal(left.get(place), right.get(place))
    }


def equal(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return one == other


ORDERS = pytest.mark.parametrize(
    "one, other",
    [
        pytest.param(run_python, run_cpp, id="from_python"),
        pytest.param(run_cpp, run_python, id="from_cpp", marks=pytest.mark.soak),
    ],
)


@ORDERS
@pytest.mark.parametrize("name", OPTIONS)
def test_what_one_saved_the_other_saves_again(tmp_path, name, one, other):
    one("O2", name, "-", 0, 3, tmp_path / "once")
    other("O2", name, tmp_path / "once", 3, 3, tmp_path / "twice")
    one("O2", name, tmp_path / "twice", 3, 3, tmp_path / "thrice")
    assert differences(tmp_path / "once", tmp_path / "twice") == {}
    assert differences(tmp_path / "once", tmp_path / "thrice") == {}


@ORDERS
def test_files_of_float8_are_those_of_the_level_in_the_other_language(tmp_path, one, other):
    once, twice, thrice = (tmp_path / name for name in ("once", "twice", "thrice"))
    one("O5 wide float8", "FusedAdam", "-", 0, 3, once)
    other("O5 wide", "FusedAdam", once, 3, 3, twice)
    assert differences(once, twice) == {}
    other("O5 wide", "FusedAdam", once, 3, 6, twice)
    other("O5 wide float8", "FusedAdam", once, 3, 6, thrice)
    assert "models.0.first.weight" in differences(twice, thrice)
    one("O5 wide float8", "FusedAdam", once, 3, 6, twice)
    assert differences(twice, thrice) == {}


def test_python_with_narrow_moments(tmp_path):
    """Files do not depend on how Python stores states."""
    narrow = {"state_dtype": torch.bfloat16}
    run_python("O2", "FusedAdamW", "-", 0, 3, tmp_path / "once", **narrow)
    run_cpp("O2", "FusedAdamW", tmp_path / "once", 3, 3, tmp_path / "twice")
    run_python("O2", "FusedAdamW", tmp_path / "twice", 3, 3, tmp_path / "thrice", **narrow)
    assert differences(tmp_path / "once", tmp_path / "thrice") == {}


@pytest.mark.parametrize("level", ["O0", "O2", "O5"])
def test_python_reads_the_net_of_torch_save(tmp_path, level):
    run_cpp(level, "SGD", "-", 0, 3, tmp_path / "run")
    saved = torch.jit.load(tmp_path / "run.net").state_dict()
    expected = torch.load(tmp_path / "run")["models"][0]
    assert saved.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in saved.items())
    Net().load_state_dict(saved)
    model, optimizer = initialized(level)
    model.load_state_dict(saved)
    assert torch.equal(next(amp.master_params(optimizer)), saved["first.weight"])


def test_cpp_reads_what_follows_a_scheduler_and_python_s_own_wrappers(tmp_path):
    """Groups then contain initial_lr, learning rates may be tensors, and replicas have prefixes."""
    model = Net()
    optimizer = optimizers.FusedAdamW(model.parameters(), lr=torch.tensor(0.01))
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    train_step(model, optimizer)
    amp.save(torch.nn.DataParallel(model), optimizer, tmp_path / "once")
    run_cpp("O2", "FusedAdamW", tmp_path / "once", 1, 1, tmp_path / "twice")
    saved = contents(tmp_path / "twice")
    assert saved["optimizers.0.param_groups.0.lr"] == pytest.approx(0.01)
    assert torch.equal(saved["models.0.first.weight"], next(amp.master_params(optimizer)))


def test_extra_passes_through_both_languages(tmp_path):
    """And the random numbers that follow a state are the same."""
    model, optimizer = initialized("O2")
    extra = {
        "epoch": 3,
        "seconds": 0.5,
        "smallest": -(2**31),
        "name": "run",
        "none": None,
        "pair": (True, [1, 2]),
        "nested": {"deep": {7: "by number"}},
        "rng": torch.get_rng_state(),
    }
    amp.save(model, optimizer, tmp_path / "once", extra)
    drawn, state = torch.rand(8), torch.get_rng_state()
    run_cpp("O2", "SGD", tmp_path / "once", 0, 0, tmp_path / "twice")
    loaded = amp.load(model, optimizer, tmp_path / "twice")
    assert isinstance(loaded["pair"], tuple) and isinstance(loaded["pair"][1], list)
    assert torch.equal(loaded["drawn"], drawn)
    assert torch.equal(loaded["cpp_rng"], state)
    added = {place.split(".")[1] for place in differences(tmp_path / "once", tmp_path / "twice")}
    assert added == {"drawn", "cpp_rng"}
