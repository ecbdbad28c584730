"""Saving and resuming: exact at every level and in every order; dicts that do not fit."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch
from nets import Net, adam, file_by, initialized, overflow_at, sgd, train_step

from torchamp import Amp, amp

LEVELS = ["O0", "O1", "O2", "O3", "O5"]
PARTS = ["initialize", "model", "optimizer"]
ORDERS = [
    order
    for order in itertools.permutations([*PARTS, "amp"])
    if order.index("amp") > order.index("initialize")
]


def step_with_overflows(model, optimizer, i: int) -> None:
    with overflow_at(next(model.parameters()), float("inf") if i % 5 == 3 else 0.0):
        train_step(model, optimizer, seed=i)


def saved_and_loaded(state: dict) -> dict:
    """Saves and loads through a file, with torch.load's defaults."""
    file = file_by(lambda file: torch.save(state, file))
    return torch.load(file)


def checkpoint_of(model, optimizer) -> dict:
    return saved_and_loaded(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "amp": amp.state_dict(),
        }
    )


def resumed(order: tuple, level: str, make_optimizer, checkpoint: dict):
    model = Net()
    optimizer = make_optimizer(model)
    actions = {
        "initialize": lambda: amp.initialize(model, optimizer, opt_level=level, verbosity=0),
        "model": lambda: model.load_state_dict(checkpoint["model"]),
        "optimizer": lambda: optimizer.load_state_dict(checkpoint["optimizer"]),
        "amp": lambda: amp.load_state_dict(checkpoint["amp"]),
    }
    for part in order:
        actions[part]()
    return model, optimizer


def run(level: str, make_optimizer, steps: int, resume_at: int | None = None, order=None):
    torch.manual_seed(7)
    model, optimizer = initialized(level, Net(), make_optimizer)
    for i in range(steps):
        if i == resume_at:
            checkpoint = checkpoint_of(model, optimizer)
            model, optimizer = resumed(order, level, make_optimizer, checkpoint)
        step_with_overflows(model, optimizer, i)
    scales = [(e["loss_scale"], e["unskipped"]) for e in amp.state_dict().values()]
    return model.state_dict(), optimizer.state_dict()["state"], scales


def assert_equal(one, other) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "-".join(order))
@pytest.mark.parametrize("level", LEVELS)
def test_resuming_is_exact(level, order):
    make = sgd if level == "O3" else adam
    assert_equal(run(level, make, 8, resume_at=5, order=order), run(level, make, 8))


@pytest.mark.parametrize("order", [PARTS, [*PARTS[1:], PARTS[0]]], ids="-".join)
@pytest.mark.parametrize("here", LEVELS)
@pytest.mark.parametrize("there", LEVELS)
def test_a_level_goes_on_where_another_stopped(there, here, order):
    """Without amp's part, which is of one level."""
    model, optimizer = initialized(there, Net(), sgd, loss_scale=64.0)
    for seed in range(3):
        train_step(model, optimizer, seed)
    checkpoint = checkpoint_of(model, optimizer)
    for seed in range(3, 6):
        train_step(model, optimizer, seed)
    expected = model.state_dict()
    amp.release(model)
    model, optimizer = resumed(order, here, sgd, checkpoint)
    rounded = {
        name: value.half().float() if here == "O3" and value.is_floating_point() else value
        for name, value in checkpoint["model"].items()
    }
    assert_equal(dict(model.state_dict()), rounded)
    for seed in range(3, 6):
        train_step(model, optimizer, seed)
    torch.testing.assert_close(model.state_dict(), expected, rtol=0.05, atol=0.01)


def load_by_submodule(model, state: dict) -> None:
    for name, module in model.named_children():
        prefix = f"{name}."
        own = {k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}
        module.load_state_dict(own)


def resumed_after_steps(level: str, load, steps_before: int, total: int):
    """A run of `total` steps; from the fifth on by objects that have taken other steps."""
    torch.manual_seed(7)
    model, optimizer = initialized(level, Net(), sgd)
    for i in range(5):
        step_with_overflows(model, optimizer, i)
    checkpoint = checkpoint_of(model, optimizer)
    model, optimizer = initialized(level, Net(), sgd)
    for i in range(steps_before):
        train_step(model, optimizer, seed=100 + i)
    load(model, checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    amp.load_state_dict(checkpoint["amp"])
    for i in range(5, total):
        step_with_overflows(model, optimizer, i)
    return dict(model.state_dict())


@pytest.mark.parametrize("steps_before", [0, 1, 3])
@pytest.mark.parametrize(
    "load", [torch.nn.Module.load_state_dict, load_by_submodule], ids=["whole", "by_submodule"]
)
@pytest.mark.parametrize("level", LEVELS)
def test_loading_after_steps_of_another_run(level, load, steps_before):
    resumed_state = resumed_after_steps(level, load, steps_before, 8)
    assert_equal(resumed_state, dict(run(level, sgd, 8)[0]))


def test_the_layout_is_apex_s():
    initialized_pair = initialized("O2", num_losses=2)
    state = amp.state_dict()
    entry = {"loss_scale": 65536.0, "unskipped": 0}
    assert dict(state) == {"loss_scaler0": entry, "loss_scaler1": entry}
    destination = {"mine": 1}
    assert amp.state_dict(destination) is destination and list(destination)[0] == "mine"
    del initialized_pair


def test_apex_s_own_dicts_load_by_position():
    model, optimizer = initialized("O2", num_losses=2)
    amp.load_state_dict(
        {
            "loss_scaler7": {"loss_scale": 512.0, "unskipped": 3},
            "loss_scaler1": {"loss_scale": 1024.0, "unskipped": 4},
        }
    )
    entries = amp.state_dict().values()
    assert [(e["loss_scale"], e["unskipped"]) for e in entries] == [(512.0, 3), (1024.0, 4)]


@pytest.mark.parametrize("done", [1, 2])
def test_a_scale_that_recovers_goes_on_recovering(done):
    model, optimizer = initialized("O2", min_loss_scale=1.0, loss_scale="dynamic")
    scaler = optimizer._torchamp.session.scalers[0]
    scaler.set_loss_scale(1.0)
    for _ in range(done):
        with overflow_at(model.first.weight):
            train_step(model, optimizer)
    state = saved_and_loaded(amp.state_dict())
    assert state["loss_scaler0"] == {"loss_scale": 1.0, "unskipped": 0, "recovering": 3}
    for i in range(4):
        train_step(model, optimizer, i)
    scale = scaler.loss_scale()
    model, optimizer = initialized("O2", min_loss_scale=1.0, loss_scale="dynamic")
    amp.load_state_dict(state)
    for i in range(4):
        train_step(model, optimizer, i)
    assert optimizer._torchamp.session.scalers[0].loss_scale() == scale == 16.0


def test_entries_of_older_versions_load():
    model, optimizer = initialized("O2")
    entry = {"loss_scale": 256.0, "unskipped": -2, "hysteresis": -4, "torchamp": {"version": "0"}}
    amp.load_state_dict({"loss_scaler0": entry})
    assert optimizer._torchamp.session.scalers[0].state() == (256.0, -2)
    del model


def test_it_outlives_models_and_optimizers():
    model, optimizer = initialized("O2")
    train_step(model, optimizer)
    before = amp.state_dict()
    model_is_gone = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert model_is_gone() is None and amp.state_dict() == before
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 8.0, "unskipped": 1}})
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 8.0, "unskipped": 1}


def two_losses() -> dict:
    pair = initialized("O2", num_losses=2)
    state = amp.state_dict()
    del pair
    return state


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: {**two_losses(), "loss_scaler1": {"loss_scale": 8.0}},
            "'loss_scale' and 'unskipped' in loss_scaler1, found no 'unskipped': it is truncated$",
        ),
        (
            lambda: {},
            "a checkpoint of 2 losses, as num_losses was in initialize, got one of 0$",
        ),
        (lambda: {**two_losses(), "loss_scaler1": 8.0}, "loss_scaler1 to be a dict, got 8.0"),
        *(
            (
                lambda values=values: {**two_losses(), "loss_scaler1": values},
                "loss_scaler1 to have a loss_scale that is positive and finite",
            )
            for values in (
                {"loss_scale": 0.0, "unskipped": 0},
                {"loss_scale": 1e300, "unskipped": 0},
                {"loss_scale": "x", "unskipped": 0},
                {"loss_scale": None, "unskipped": 0},
                {"loss_scale": 8.0, "unskipped": None},
                {"loss_scale": 8.0, "unskipped": "x"},
                {"loss_scale": 8.0, "unskipped": 2**31},
                {"loss_scale": 8.0, "unskipped": float("inf")},
                {"loss_scale": 8.0, "unskipped": 0, "recovering": "x"},
            )
        ),
    ],
)
def test_dicts_that_do_not_fit(make, message):
    state = make()
    pair = initialized("O2", num_losses=2)
    before = amp.state_dict()
    with pytest.raises(RuntimeError, match="^load_state_dict: expected .*" + message):
        amp.load_state_dict(state)
    assert amp.state_dict() == before
    del pair


def test_objects_of_their_own():
    one = Amp(Net(), opt_level="O2", verbosity=0)
    other = Amp(Net(), opt_level="O2", verbosity=0)
    one.loss_scalers[0].load_state(256.0, 7)
    other.load_state_dict(one.state_dict())
    assert other.loss_scalers[0].state() == (256.0, 7)
