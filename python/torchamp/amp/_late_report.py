"""What became of steps that the device decided about, without waiting for it."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import torch

from torchamp._load import _C

if TYPE_CHECKING:
    from torchamp.amp._session import Session


@dataclasses.dataclass(frozen=True)
class Telemetry:
    """What the host knows of an optimizer's steps. On CUDA the last ones may be missing."""

    steps: int = 0  #: since the first call of telemetry, with those that were skipped
    skipped_steps: int = 0
    stepped: bool | None = None  #: whether the last one known was a step, and not skipped
    loss_scales: tuple[float, ...] = ()  #: one a loss, as they were at that step


class _Arriving(NamedTuple):
    flags_and_scales: torch.Tensor
    found_inf_per_param: torch.Tensor | None
    event: torch.Event | None


class LateReport:
    """Copies flags to the host while the device works, and reports them once they have arrived."""

    def __init__(self, session: Session, weights: _C.MasterWeights) -> None:
        self._session = session
        self._weights = weights
        self._arriving: deque[_Arriving] = deque()
        self._telemetry: Telemetry | None = None

    def telemetry(self) -> Telemetry:
        """What has arrived since the first call."""
        self.flush()
        if self._telemetry is None:
            self._telemetry = Telemetry()
        return self._telemetry

    def note(self, skip: dict[int, torch.Tensor], wait: bool = False) -> None:
        """Takes what the flags are now, after a step; `skip` as OptimizerState has it. They are
        reported at once on the CPU, and if the host may `wait` for them."""
        device = self._session.device
        is_wanted = self._telemetry is not None or (bool(skip) and self._session.reporter.is_on)
        if not is_wanted or _is_capturing(device):
            return
        scales = [scaler.loss_scale_tensor() for scaler in self._session.scalers]
        no = torch.zeros_like(scales[0])
        flags = [skip.get(loss_id, no) for loss_id in range(len(scales))]
        arriving = _Arriving(
            _on_the_way(torch.stack([*flags, *scales])),
            _on_the_way(self._weights.found_inf_per_param()),
            _recorded_event(device),
        )
        self._arriving.append(arriving)
        if wait and arriving.event is not None:
            arriving.event.synchronize()
        self.flush()

    def flush(self) -> None:
        """Reports what has arrived."""
        while self._arriving and _is_there(self._arriving[0].event):
            self._take(self._arriving.popleft())

    def _take(self, arrived: _Arriving) -> None:
        numbers = arrived.flags_and_scales.tolist()
        flags, scales = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
        overflowed = {i: scales[i] for i, flag in enumerate(flags) if flag}
        if self._telemetry is not None:
            self._telemetry = Telemetry(
                self._telemetry.steps + 1,
                self._telemetry.skipped_steps + bool(overflowed),
                not overflowed,
                tuple(scales),
            )
        report_skip = self._session.reporter.report_skip
        report_skip(overflowed, self._weights, arrived.found_inf_per_param)


def _on_the_way(flags: torch.Tensor | None) -> torch.Tensor | None:
    return None if flags is None else flags.to("cpu", non_blocking=True, copy=True)


def _is_there(event: torch.Event | None) -> bool:
    return event is None or event.query()


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _recorded_event(device: torch.device) -> torch.Event | None:
    if device.type == "cpu":
        return None
    event = torch.Event(device)
    event.record()
    return event
