"""KeyboardInterrupt anywhere in torchamp's code, in one iteration: either the iteration took place
or it did not, and the next ones go on from there."""

from __future__ import annotations

import contextlib
import pathlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest
import torch
from nets import batch, linear_net, master_values, overflow_at

import torchamp
from torchamp import amp, optimizers

OURS = str(pathlib.Path(torchamp.__file__).parent)
#: Has the hash of the tensors in an optimizer's state. torch's own optimizers use it too, which may
#: be interrupted between two parameters.
HASH = torch._tensor.__file__


@dataclass(frozen=True)
class Kind:
    """How the net is trained."""

    level: str
    make: Callable[..., torch.optim.Optimizer]
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return "-".join((self.level, self.make.__name__, *(name for name, _ in self.options)))

    @property
    def interruptible(self) -> tuple[str, ...]:
        """The code that is interrupted."""
        is_ours = self.make in (optimizers.FusedAdam, optimizers.FusedSGD)
        return (OURS, HASH) if is_ours else (OURS,)


KINDS = (
    Kind("O2", torch.optim.SGD, (("momentum", 0.5),)),
    Kind("O2", optimizers.FusedAdam),
    Kind("O2", torch.optim.Adam, (("fused", True),)),
    Kind("O2", optimizers.FusedSGD, (("momentum", 0.5),)),
    Kind("O1", torch.optim.SGD, (("momentum", 0.5),)),
)
every_kind = pytest.mark.parametrize(
    "kind",
    [*KINDS[:2], *[pytest.param(kind, marks=pytest.mark.soak) for kind in KINDS[2:]]],
    ids=str,
)


class Run:
    """One net in training, on the same data every time."""

    def __init__(self, kind: Kind) -> None:
        torch.manual_seed(1)
        self.model = linear_net()
        self.optimizer = kind.make(self.model.parameters(), lr=0.125, **dict(kind.options))
        amp.initialize(self.model, self.optimizer, opt_level=kind.level, verbosity=0)
        self.kind = kind
        self.clips = kind.make is optimizers.FusedAdam

    def iterate(self) -> None:
        self.optimizer.zero_grad()
        x, target = batch()
        loss = torch.nn.functional.cross_entropy(self.model(x).float(), target)
        with amp.scale_loss(loss, self.optimizer) as scaled_loss:
            scaled_loss.backward()
        if self.clips:
            amp.clip_grad_norm_(self.optimizer, 0.5)
        self.optimizer.step()

    def values(self) -> tuple[torch.Tensor, ...]:
        """All that a step writes, but what the host counts."""
        masters = master_values(self.optimizer)
        states = [
            value.clone()
            for entry in self.optimizer.state.values()
            for value in entry.values()
            if isinstance(value, torch.Tensor)
        ]
        return (*(param.detach().clone() for param in self.model.parameters()), *masters, *states)

    def loss_scale(self) -> float:
        return self.optimizer._torchamp.session.scalers[0].loss_scale()


def is_torch_s_context(frame: FrameType) -> bool:
    """Tracing interrupts between a body and the context's end, where Python looks for no signal: a
    context of torch's would never end."""
    return frame.f_code.co_name == "__torch_function__"


def interrupted(run: Run, at: int, event: str) -> bool:
    """Iterates with a KeyboardInterrupt at the `at`-th event; False if there are less. In the
    callback of a weak reference to what the collector frees meanwhile it interrupts nothing."""
    code, seen = run.kind.interruptible, 0

    def trace(frame: FrameType, what: str, _: Any) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.startswith(code) or is_torch_s_context(frame):
            return None
        frame.f_trace_opcodes = event == "opcode"
        if what == event:
            seen += 1
            if seen == at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            run.iterate()
    finally:
        sys.settrace(None)
    return seen == at


def equal(one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other))


def course_of(kind: Kind) -> list[tuple[torch.Tensor, ...]]:
    """The values after 1, 2, … clean iterations."""
    run = Run(kind)
    course = []
    for _ in range(4):
        run.iterate()
        course.append(run.values())
    return course


def places(kind: Kind, overflows: bool, event: str) -> Iterator[tuple[int, Run]]:
    """A run for each place of its second iteration, interrupted there."""
    for at in range(1, sys.maxsize):
        run = Run(kind)
        run.iterate()
        with overflow_at(run.model[0].weight) if overflows else contextlib.nullcontext():
            was_interrupted = interrupted(run, at, event)
        if not was_interrupted:
            return
        yield at, run


@pytest.mark.parametrize("event", ["line", pytest.param("opcode", marks=pytest.mark.soak)], ids=str)
@pytest.mark.parametrize("overflows", [False, True], ids=["clean", "overflow"])
@every_kind
def test_an_interrupted_iteration_took_place_or_did_not(kind, overflows, event):
    course = course_of(kind)
    interruptions = 0
    for at, run in places(kind, overflows, event):
        interruptions += 1
        was_lazy = run.optimizer._torchamp.core.lazy
        assert run.optimizer._torchamp.open_step is None, at
        assert not {"found_inf", "grad_scale"} & vars(run.optimizer).keys(), at
        run.iterate()
        steps = next((n for n in (1, 2) if equal(run.values(), course[n])), None)
        assert steps is not None, at
        assert steps == 1 or not overflows, at
        run.iterate()
        assert equal(run.values(), course[steps + 1]), at
        assert run.loss_scale() in ({2.0**16, 2.0**15} if overflows else {2.0**16}), at
        assert run.optimizer._torchamp.core.lazy == was_lazy, at
    assert interruptions > 50


@every_kind
def test_the_first_iteration_may_be_interrupted(kind):
    course = course_of(kind)
    for at in range(1, sys.maxsize):
        run = Run(kind)
        if not interrupted(run, at, "line"):
            break
        run.iterate()
        assert any(equal(run.values(), course[n]) for n in (0, 1)), at
