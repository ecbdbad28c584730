"""Overflow messages of steps that were skipped on the device, without waiting for it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torchamp.amp._optimizer_state import OptimizerState


class LateReport:
    """Copies flags to the host while the device works, and reports them once they have arrived."""

    def __init__(self, state: OptimizerState) -> None:
        self._state = weakref.ref(state)
        self._arriving: tuple | None = None

    def note(self) -> None:
        """Takes what the state's flags are now. On the CPU they are reported at once."""
        state = self._state()
        device = state.skip.device
        if not state.session.reporter.is_on or _is_capturing(device):
            return
        copies = [
            None if flags is None else flags.to("cpu", non_blocking=True, copy=True)
            for flags in (state.skip, state.weights.found_inf_per_param())
        ]
        self._arriving = (*copies, _recorded_event(device))
        self.flush()

    def flush(self) -> None:
        """Reports what has arrived."""
        if self._arriving is None:
            return
        skip, found_inf_per_param, event = self._arriving
        if event is not None and not event.query():
            return
        self._arriving = None
        state = self._state()
        state.session.reporter.report_skip(
            state.overflowed(skip), state.weights, found_inf_per_param
        )


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _recorded_event(device: torch.device) -> torch.cuda.Event | None:
    if device.type == "cpu":
        return None
    event = torch.Event(device)
    event.record()
    return event
