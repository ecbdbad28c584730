"""C++ and Python compute the same, bit for bit, from the same seeds and data."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn

from torchamp import amp, optimizers

ROOT = Path(__file__).parents[2]
BUILD = Path(os.environ.get("TORCHAMP_BUILD_DIR", ROOT / "build"))
PROGRAM = BUILD / "tests" / "languages" / "languages"

STEPS = 20
MICRO_BATCHES = 3
MAX_NORM = 0.5
FIRST_LOSS_SCALE = 2.0**24  # too high for float16: the first steps overflow

LEVELS = ["O0", "O1", "O2", "O3", "O4", "O5"]
RECIPES: dict[str, Callable] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.05, momentum=0.875),
    "FusedSGD": lambda p: optimizers.FusedSGD(p, 0.05, momentum=0.9),
    "FusedLARS": lambda p: optimizers.FusedLARS(p, 1.0),
    "FusedAdam": lambda p: optimizers.FusedAdam(p, 0.01),
    "FusedAdamW": lambda p: optimizers.FusedAdamW(p, 0.01),
    "FusedAdagrad": lambda p: optimizers.FusedAdagrad(p, 0.05),
    "FusedNovoGrad": lambda p: optimizers.FusedNovoGrad(p, 0.01),
    "FusedLAMB": lambda p: optimizers.FusedLAMB(p, 0.01),
}


class Trained(NamedTuple):
    """A line a step: loss, norm of the grads, loss scale. And all master weights after the last."""

    steps: list[list[float]]
    masters: list[float]


def comparable(steps: list[list[float]]) -> list[list[float | str]]:
    """The steps, with one name for all norms of overflowed grads: inf or NaN."""
    return [
        [loss, norm if math.isfinite(norm) else "not finite", scale] for loss, norm, scale in steps
    ]


@pytest.fixture(scope="module")
def in_cpp() -> dict[str, Trained]:
    """What the program of C++ printed, by level and optimizer."""
    if not PROGRAM.is_file():
        pytest.fail(f"expected {PROGRAM} to be there: run `make test`")
    printed = subprocess.run([PROGRAM], check=True, stdout=subprocess.PIPE, text=True).stdout
    cases = {}
    for case in printed.split("case ")[1:]:
        name, *lines = case.splitlines()
        *steps, masters = ([float(number) for number in line.split()] for line in lines)
        cases[name] = Trained(steps, masters)
    return cases


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums in one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def start_high() -> None:
    state = amp.state_dict()
    if state["loss_scaler0"]["loss_scale"] != 1.0:
        state["loss_scaler0"]["loss_scale"] = FIRST_LOSS_SCALE
        amp.load_state_dict(state)


def accumulate(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """The sum of the micro-batches' losses."""
    total = 0.0
    for _ in range(MICRO_BATCHES):
        x, target = torch.randn(8, 6), torch.randint(3, (8,))
        loss = nn.functional.cross_entropy(model(x), target)
        total += loss.item()
        with amp.scale_loss(loss / MICRO_BATCHES, optimizer) as scaled_loss:
            scaled_loss.backward()
    return total


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    optimizer.zero_grad()
    loss = accumulate(model, optimizer)
    norm = amp.clip_grad_norm_(optimizer, MAX_NORM)
    optimizer.step()
    return [loss, norm.item(), amp.state_dict()["loss_scaler0"]["loss_scale"]]


def train(level: str, recipe: Callable) -> Trained:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = recipe(model.parameters())
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    start_high()
    steps = [train_step(model, optimizer) for _ in range(STEPS)]
    masters = [param.detach().flatten().tolist() for param in amp.master_params(optimizer)]
    return Trained(steps, [value for values in masters for value in values])


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("level", LEVELS)
def test_every_step(in_cpp: dict[str, Trained], level: str, name: str) -> None:
    """Losses, norms and scales of every step, and the weights after the last."""
    got, expected = in_cpp[f"{level} {name}"], train(level, RECIPES[name])
    assert comparable(got.steps) == comparable(expected.steps)
    assert got.masters == expected.masters
    last_scale = got.steps[-1][2]
    assert 1.0 < last_scale < FIRST_LOSS_SCALE if level in ("O1", "O2") else last_scale == 1.0
