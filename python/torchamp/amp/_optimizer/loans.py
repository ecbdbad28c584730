"""What an optimizer's own methods, which are no steps, find in its parameters: float32."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchamp._load import _C
from torchamp.amp._run.session import OptimizerSession


class _BeginsInTorch(TorchFunctionMode):
    """Begins a loan at the first call of torch, so that a method which calls none costs little."""

    def __init__(self, loan: _C.Loan, prepare: Callable[[], None]) -> None:
        super().__init__()
        self._loan, self._prepare = loan, prepare

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._loan.is_due:
            self._prepare()
            self._loan.begin()
        return func(*args, **(kwargs or {}))


def lend_to_method(
    optimizer: torch.optim.Optimizer,
    states: Sequence[OptimizerSession],
    method: Callable[[], Any],
) -> Any:
    """Calls a method that is no step, in which parameters have the contents of their masters."""
    loan = _C.Loan([state.core for state in states])
    for state in states:
        state.note_loan(loan)

    def prepare() -> None:
        for state in states:
            state.follow(optimizer, "step")
            _C.widen_states(optimizer.state, state.narrow_names)

    with contextlib.ExitStack() as stack:
        for session in {state.session for state in states if state.session.shards}:
            stack.enter_context(session.shards.mirrored())
        with loan, _BeginsInTorch(loan, prepare):
            return method()
