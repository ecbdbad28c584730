"""What became of steps that the device decided about, without waiting for it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

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


class LateReport:
    """Counts an optimizer's steps, and reports those that were skipped, once that is known."""

    def __init__(self, session: Session, weights: _C.MasterWeights) -> None:
        self._session = session
        self._weights = weights
        self._core = _C.LateReport()

    def gather(self, loss_id: int) -> None:
        """Takes note of the backward that has just ended."""
        self._core.gather(loss_id, self._session.scalers[loss_id], self._weights)

    def clear(self) -> None:
        """Forgets the backwards since the last step."""
        self._core.clear()

    def note(self) -> None:
        """Ends a step of those backwards."""
        self._core.note(self._session.scalers)
        self.flush()

    def flush(self) -> None:
        """Reports what is known by now."""
        for skipped in self._core.flush():
            self._session.reporter.report_skip(skipped, self._weights)

    def telemetry(self) -> Telemetry:
        """What is known of the steps since the first call."""
        self.flush()
        return Telemetry(*self._core.telemetry())
