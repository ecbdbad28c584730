"""What torchamp knows of one optimizer."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchamp._load import _C
from torchamp.amp._master_list import MasterList, Watch
from torchamp.amp._master_weights import track

if TYPE_CHECKING:
    from torchamp.amp._session import Session


@contextlib.contextmanager
def look_away(states: Sequence[OptimizerState]) -> Iterator[None]:
    """A context in which looking at the optimizers' masters does not count."""
    with contextlib.ExitStack() as stack:
        for state in states:
            stack.enter_context(state.watch.look_away())
        yield


class OptimizerState:
    """One optimizer's masters, who looks at them, and what is reported of its steps."""

    def __init__(
        self, session: Session, weights: _C.Masters, inner_step: Callable | None
    ) -> None:
        self.session = session
        self.weights = weights
        self.core = _C.OptimizerState(weights)
        #: A step that was bound to the object before initialize: a profiler's, a scheduler's.
        self.inner_step = inner_step
        #: Who looks at the masters, while their grads need not be made.
        self.watch = Watch(weights)
        session.optimizer_states.add(self)

    def __reduce__(self) -> tuple:
        """Copies and pickles of the optimizer belong to no session: None takes this place."""
        return type(None), ()

    def adopt_group(
        self,
        optimizer: torch.optim.Optimizer,
        group: dict[str, Any],
        masters: dict[torch.Tensor, torch.Tensor],
    ) -> None:
        """Puts masters in the place of the group's parameters, in its own list, and hands their
        state over."""
        keeps_masters = self.session.settings.keeps_masters
        params = group["params"]
        for i, param in enumerate(params):
            params[i] = stepped = track(self.weights, param, masters, keeps_masters)
            if stepped is param:
                continue
            self.core.add_master(stepped)
            if param in optimizer.state:
                optimizer.state[stepped] = optimizer.state.pop(param)
        if self.weights.lazy:
            group["params"] = MasterList(params, self.watch)
        if self.weights.is_split:
            self.weights.split()

    def report_skips(self) -> None:
        """Reports the skipped steps that are known by now."""
        for skipped in self.core.flush_report():
            self.session.reporter.report_skip(skipped, self.weights)

    def telemetry(self) -> Telemetry:
        """What is known of the steps since the first call."""
        self.report_skips()
        return Telemetry(*self.core.telemetry())


@dataclasses.dataclass(frozen=True)
class Telemetry:
    """What the host knows of an optimizer's steps. On CUDA the last ones may be missing."""

    steps: int = 0  #: since the first call of telemetry, with those that were skipped
    skipped_steps: int = 0
    stepped: bool | None = None  #: whether the last one known was a step, and not skipped
    loss_scales: tuple[float, ...] = ()  #: one a loss, as they were at that step
