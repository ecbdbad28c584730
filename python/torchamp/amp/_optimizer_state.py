"""What torchamp knows of one optimizer."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchamp._load import _C
from torchamp.amp._late_report import LateReport
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
    """One optimizer's masters, and the overflows of its backwards since it stepped last.

    `skip` is not a scaler's found_inf: that belongs to one backward and moves the scale, while
    this gathers over losses and micro-batches and decides about the step.
    """

    def __init__(
        self, session: Session, weights: _C.MasterWeights, inner_step: Callable | None
    ) -> None:
        self.session = session
        self.weights = weights
        #: A step that was bound to the object before initialize: a profiler's, a scheduler's.
        self.inner_step = inner_step
        #: Who looks at the masters, while their grads need not be made.
        self.watch = Watch(weights)
        #: The masters in the optimizer's groups.
        self.masters: list[torch.Tensor] = []
        #: Whether it has stepped since the last backward.
        self.has_stepped = False
        #: Which loss's scale the model's grads bear while weights.grads_are_scaled.
        self.scaled_by = 0
        #: By loss, float32 scalars: not 0 where a backward overflowed.
        self.skip: dict[int, torch.Tensor] = {}
        self.late_report = LateReport(session, weights)
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
            self.masters.append(stepped)
            if param in optimizer.state:
                optimizer.state[stepped] = optimizer.state.pop(param)
        if self.weights.lazy:
            group["params"] = MasterList(params, self.watch)
        if self.weights.is_split:
            self.weights.split()

    def gather(self, loss_id: int, found_inf: torch.Tensor) -> None:
        """Takes note of a backward's overflow, if any."""
        before = self.skip.get(loss_id)
        self.skip[loss_id] = found_inf if before is None else torch.maximum(before, found_inf)
        self.late_report.gather(loss_id)

    def clear_skip(self) -> None:
        self.skip.clear()
        self.late_report.clear()

    def found_inf(self) -> torch.Tensor | None:
        """float32 scalar on the device: not 0 if the next step is to be skipped. None: it is not,
        which is known without asking the device."""
        return functools.reduce(torch.maximum, self.skip.values()) if self.skip else None

    def has_overflowed(self) -> bool:
        """Whether the next step is to be skipped. Waits for the device, once."""
        return bool(self.skip) and bool(self.found_inf())

    def drop_master_grads(self) -> None:
        """Ends a step: the grads of the masters, made or still to be made, are used up, but for
        those of parameters that another optimizer is still to step too."""
        if self.session.weights.count(self.weights) == 1:
            self.weights.drop_master_grads()
            return
        self.has_stepped = True
        needed = self._masters_of_others_to_step()
        for master in self.masters:
            if master not in needed:
                master.grad = None
        self.weights.clear_found_inf_per_param()

    def _masters_of_others_to_step(self) -> set[torch.Tensor]:
        states = [state for state in self.session.optimizer_states if not state.has_stepped]
        return {
            master for state in states if state.weights is self.weights for master in state.masters
        }
