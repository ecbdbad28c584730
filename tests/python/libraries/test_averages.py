"""Averages of weights by other libraries: in amp.float32_params they are those of the masters, and
training goes on as without them."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch
from nets import Net, batch
from torch import nn
from torch.optim import swa_utils

from torchamp import amp

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("libraries"),
]

STEPS = 4


class Average(NamedTuple):
    """What a library gives."""

    update: Callable[[], object]
    values: Callable[[], list[torch.Tensor]]
    #: A context in which the model has the averages.
    swapped: Callable[[], contextlib.AbstractContextManager]


def imported(name: str):
    return pytest.importorskip(name, reason=f"{name} is not installed")


def torch_ema(model: nn.Module) -> Average:
    average = imported("torch_ema").ExponentialMovingAverage(model.parameters(), decay=0.5)
    return Average(average.update, lambda: average.shadow_params, average.average_parameters)


def ema_pytorch(model: nn.Module) -> Average:
    average = imported("ema_pytorch").EMA(
        model, beta=0.5, update_after_step=0, update_every=1, include_online_model=False
    )
    return Average(
        average.update, lambda: [*average.ema_model.parameters()], contextlib.nullcontext
    )


def diffusers(model: nn.Module) -> Average:
    imported("diffusers")
    utils = importlib.import_module("diffusers.training_utils")
    average = utils.EMAModel(model.parameters(), decay=0.5)

    @contextlib.contextmanager
    def swapped() -> Iterator[None]:
        average.store(model.parameters())
        average.copy_to(model.parameters())
        yield
        average.restore(model.parameters())

    update = lambda: average.step(model.parameters())  # noqa: E731
    return Average(update, lambda: average.shadow_params, swapped)


def timm(model: nn.Module) -> Average:
    imported("timm.utils")
    average = importlib.import_module("timm.utils").ModelEmaV3(model, decay=0.5)
    return Average(
        lambda: average.update(model),
        lambda: [*average.module.parameters()],
        contextlib.nullcontext,
    )


def torchs(model: nn.Module) -> Average:
    average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.5))
    return Average(
        lambda: average.update_parameters(model),
        lambda: [*average.module.parameters()],
        contextlib.nullcontext,
    )


def clones(model: nn.Module) -> Average:
    averages = [param.detach().clone() for param in model.parameters()]

    @torch.no_grad()
    def update() -> None:
        for average, param in zip(averages, model.parameters()):
            average.lerp_(param, 0.5)

    @contextlib.contextmanager
    def swapped() -> Iterator[None]:
        kept = [param.detach().clone() for param in model.parameters()]
        written(averages)
        yield
        written(kept)

    @torch.no_grad()
    def written(values: list[torch.Tensor]) -> None:
        for param, value in zip(model.parameters(), values):
            param.copy_(value)

    return Average(update, lambda: averages, swapped)


def trained(
    level: str, make: Callable[[nn.Module], Average] | None = None, is_first: bool = False
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """The averages, the same of a float32 model that holds the masters, and the weights. is_first:
    the average is made before initialize."""
    torch.manual_seed(0)
    model, plain = Net(), Net()
    plain.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = make(model) if make and is_first else None
    expected = make(plain) if make and is_first else None
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    if make and not is_first:
        plain.load_state_dict(model.state_dict())
        expected = make(plain)
        with amp.float32_params(model):
            average = make(model)
    for step in range(STEPS):
        x, target = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).float(), target)
        amp.scale_loss(loss, optimizer).backward()
        optimizer.step()
        if average is None:
            continue
        plain.load_state_dict(model.state_dict())
        expected.update()
        with amp.float32_params(model):
            average.update()
            model.eval()
            with average.swapped(), torch.no_grad():
                assert model(x).isfinite().all()
            model.train()
    values = [
        [value.clone() for value in each.values()] if each else [] for each in (average, expected)
    ]
    weights = [value.clone() for value in model.state_dict().values()]
    amp.release(model)
    return *values, weights


@pytest.mark.parametrize("level", ["O2", "O3", "O5"])
@pytest.mark.parametrize("is_first", [True, False], ids=["before_initialize", "after_initialize"])
@pytest.mark.parametrize("make", [torch_ema, ema_pytorch, diffusers, timm, torchs, clones])
def test_an_average_is_of_the_masters(make, is_first, level):
    found, expected, weights = trained(level, make, is_first)
    assert len(found) == len(expected) > 0
    for value, wanted in zip(found, expected):
        assert value.dtype == torch.float32
        assert torch.equal(value, wanted)
    assert all(map(torch.equal, weights, trained(level)[2]))
