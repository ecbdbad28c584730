"""Every short sequence of backwards, zeroings and steps, against the rules of docs/grads.md: a step
uses the sum of the grads of all backwards since the last zeroing or step, each unscaled by its own
scale. Non-finite grads are never applied, and a skipped step discards its grads."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from torchamp import amp, optimizers
from torchamp._load import _C

START = 8.0
SCALES = (256.0, 64.0)
#: Backwards contribute powers of two, so that sums identify their terms.
UNIT = 2.0**-6
INF = float("inf")


class Net(nn.Module):
    """One parameter that O2 casts, and one that it keeps in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.cast = nn.Parameter(torch.full((2,), START))
        self.kept = nn.BatchNorm1d(2)
        nn.init.constant_(self.kept.weight, START)

    def loss(self, grad: float) -> torch.Tensor:
        """The sum of both parameters' elements times `grad`."""
        return (self.cast.float().sum() + self.kept.weight.float().sum()) * grad


@dataclass(frozen=True)
class Kind:
    """How the parameters are trained."""

    level: str
    make: type[torch.optim.Optimizer]

    def __str__(self) -> str:
        return f"{self.level}-{self.make.__name__}"


KINDS = (
    Kind("O1", torch.optim.SGD),
    Kind("O1", optimizers.FusedSGD),
    Kind("O2", torch.optim.SGD),
    Kind("O2", optimizers.FusedSGD),
    Kind("O3", torch.optim.SGD),
    Kind("O3", optimizers.FusedSGD),
)


class Run:
    """Applies events to a model and its optimizer."""

    def __init__(self, kind: Kind) -> None:
        self.model = Net()
        self.optimizer = kind.make(self.model.parameters(), lr=1.0)
        amp.initialize(
            self.model,
            self.optimizer,
            opt_level=kind.level,
            loss_scale="dynamic",
            num_losses=2,
            verbosity=0,
        )
        self.state = self.optimizer._torchamp
        for scaler, scale in zip(self.state.session.scalers, SCALES):
            scaler.set_loss_scale(scale)
        self.in_float32 = kind.level == "O1"

    def backward(self, grad: float, loss_id: int = 0, **options: bool) -> None:
        loss = self.model.loss(grad)
        with amp.scale_loss(loss, self.optimizer, loss_id, **options) as scaled_loss:
            scaled_loss.backward()

    def raising(self, grad: float) -> None:
        with pytest.raises(KeyError):
            with amp.scale_loss(self.model.loss(grad), self.optimizer) as scaled_loss:
                scaled_loss.backward()
                raise KeyError

    def empty(self, grad: float) -> None:
        with amp.scale_loss(self.model.loss(grad), self.optimizer):
            pass

    def move_scale(self, grad: float) -> None:
        self.state.session.scalers[0].set_loss_scale(SCALES[0] * 2)

    def zero(self, grad: float) -> None:
        self.optimizer.zero_grad()

    def zero_model(self, grad: float) -> None:
        self.model.zero_grad()

    def step(self, grad: float) -> None:
        self.optimizer.step()

    def values(self) -> tuple[float, ...]:
        """The cast parameter's master and the kept parameter; all elements are equal."""
        cast = _C.param_of(self.model.cast).value()
        assert cast[0] == cast[1]
        return cast[0].item(), self.model.kept.weight[0].item()


class Rule:
    """The same for two numbers, a parameter with a master and one without."""

    def __init__(self, kind: Kind) -> None:
        self.numbers = [START, START]
        self.keeps_grads = [kind.level != "O2", True]
        self.times_moved = 0
        self.forget()

    def forget(self) -> None:
        self.sums: list[float | None] = [None, None]
        self.is_bad = False
        #: The scale of delayed grads.
        self.delayed: tuple[int, int] | None = None

    def scale_of(self, loss_id: int) -> tuple[int, int]:
        return loss_id, self.times_moved if loss_id == 0 else 0

    def enter(self, loss_id: int) -> None:
        """Delayed grads of another scale are unscaled first."""
        if self.delayed != self.scale_of(loss_id):
            self.delayed = None

    def backward(self, grad: float, loss_id: int = 0, delay_unscale: bool = False) -> None:
        self.delayed = self.scale_of(loss_id) if delay_unscale else None
        self.is_bad |= grad == INF
        if grad == INF and not delay_unscale:
            self.times_moved += 1
        self.sums = [grad if total is None else total + grad for total in self.sums]

    def step(self) -> None:
        if self.is_bad:
            return self.forget()
        for i, total in enumerate(self.sums):
            self.numbers[i] -= total or 0.0
            if not self.keeps_grads[i]:
                self.sums[i] = None


EVENTS = {
    "backward": lambda run, grad: run.backward(grad),
    "other loss": lambda run, grad: run.backward(grad, 1),
    "delayed": lambda run, grad: run.backward(grad, delay_unscale=True),
    "other delayed": lambda run, grad: run.backward(grad, 1, delay_unscale=True),
    "overflow": lambda run, grad: run.backward(INF),
    "delayed overflow": lambda run, grad: run.backward(INF, delay_unscale=True),
    "raising": Run.raising,
    "empty": Run.empty,
    "move scale": Run.move_scale,
    "zero": Run.zero,
    "zero model": Run.zero_model,
    "step": Run.step,
}


def follow(rule: Rule, event: str, grad: float) -> None:
    if "overflow" in event:
        rule.backward(INF, 0, "delayed" in event)
    elif event in ("backward", "delayed", "other loss", "other delayed"):
        rule.backward(grad, int("other" in event), "delayed" in event)
    elif event == "raising":
        rule.enter(loss_id=0)
    elif event == "empty":
        rule.delayed = None
    elif event == "move scale":
        rule.times_moved += 1
    elif event in ("zero", "zero model"):
        rule.forget()
    elif event == "step":
        rule.step()


def check(kind: Kind, sequence: Iterable[str]) -> None:
    """A step ends the sequence; while grads are delayed, it raises and changes nothing."""
    run, rule = Run(kind), Rule(kind)
    for i, event in enumerate((*sequence, "step")):
        grad = UNIT * 2**i
        if event == "step" and rule.delayed:
            with pytest.raises(RuntimeError, match="expected unscaled grads"):
                run.step(grad)
        else:
            EVENTS[event](run, grad)
            follow(rule, event, grad)
        assert run.values() == tuple(rule.numbers), f"{kind}: {sequence}, after {event}"


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("first", EVENTS)
def test_every_sequence(kind, first):
    for rest in itertools.product(EVENTS, repeat=2):
        check(kind, (first, *rest))


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("first", EVENTS)
def test_every_longer_sequence(kind, first):
    for rest in itertools.product(EVENTS, repeat=3):
        check(kind, (first, *rest))
