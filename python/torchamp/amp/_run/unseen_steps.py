"""Stage 7: steps by code that calls no optimizer's `step`, which therefore no overflow skips."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torchamp._logging import warn


class UnseenSteps:
    """Tells of them, once. A step writes the parameters after a backward, and grads are zeroed
    before the next; writes through `.data` are not counted by torch, and stay unseen."""

    def __init__(self) -> None:
        #: The first parameter with a grad.
        self._param: torch.Tensor | None = None
        #: Its version after the last backward; None since a step was seen.
        self._version: int | None = None
        #: The version of its grad then.
        self._grad_version = 0
        self._in_a_row = 0

    def forget(self) -> None:
        """The parameters are about to be written, by torchamp's knowledge."""
        self._version = None

    def note_backward(self, params: Callable[[], Sequence[torch.Tensor]]) -> None:
        """After one in scale_loss, which has left grads to some of an optimizer's parameters."""
        if self._param is None or self._param.grad is None:
            self._param = next((param for param in params() if param.grad is not None), None)
        if self._param is None or self._param.grad is None:
            self._version = None
        else:
            self._version, self._grad_version = self._param._version, self._param.grad._version

    def look(self) -> None:
        """Before the next one. Two in a row, for the first may prepare a step that follows."""
        param, version, self._version = self._param, self._version, None
        if param is None or version is None or param._version == version:
            self._in_a_row = 0
        elif self._is_zeroed(param):  # else they accumulate
            self._in_a_row += 1
            if self._in_a_row == 2:
                warn(
                    "scale_loss: expected the optimizer's step() between backwards, got parameters "
                    "that other code has written, twice in a row, which no overflow skips; if that "
                    "code is a step, let the optimizer's run it: "
                    "optimizer.step = functools.partial(code, optimizer)"
                )

    def _is_zeroed(self, param: torch.Tensor) -> bool:
        """Whether its grad is gone, or was written, as zeroing in place does."""
        return param.grad is None or param.grad._version != self._grad_version
