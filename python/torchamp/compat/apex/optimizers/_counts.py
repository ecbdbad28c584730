"""`group["step"]`, where apex's FusedAdam, FusedLAMB and FusedNovoGrad keep their count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchamp.compat.apex.optimizers._translated import Translated
from torchamp.optimizers._layout import Layout


class CountsByGroup(Translated):
    """Shows the largest count of a group's parameters in `group["step"]` after each step.

    It is an int, or an int32 scalar on the parameters' device, where the host does not know whether
    a step was skipped; an int in state dicts. What a program writes there, or a state dict has
    there, becomes the count of all of the group's parameters.
    """

    #: Whether that includes parameters that have not been stepped.
    counts_fresh = True

    #: What the last step has put there, by group.
    _shown: dict[int, Any] = {}

    def _step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = super()._step(closure)
        self._show_counts(self._layout)
        return loss

    _watched_step: Callable[..., Any] = torch.optim.Optimizer.profile_hook_step(_step)

    def _show_counts(self, layout: Layout) -> None:
        self._shown = {}
        for index, counts in layout.counts.items():
            self.param_groups[index]["step"] = self._shown[index] = _largest(counts)

    def _take_counts(self, layout: Layout) -> None:
        """Makes what programs wrote to groups the counts of their parameters."""
        for index, group in enumerate(self.param_groups):
            step = group.get("step")
            if step is None or step is self._shown.get(index) or index not in layout.counts:
                continue
            largest = int(_largest(layout.counts[index])) if self.state else 0
            if int(step) != largest:
                layout.set_counts(index, int(step), self.counts_fresh)

    def _current_layout(self) -> Layout:
        layout = super()._current_layout()
        self._take_counts(layout)
        return layout

    def publish_states(self) -> None:
        """As FusedOptimizer's, and the groups' counts with them."""
        layout = self._known_layout()
        if layout is None:
            return
        self._take_counts(layout)
        super().publish_states()
        self._show_counts(layout)

    def _make_layout(self) -> Layout:
        self._shown = {}
        return super()._make_layout()

    def state_dict(self) -> dict[str, Any]:
        """As torch's. Waits for the device."""
        state_dict = super().state_dict()
        for group in state_dict["param_groups"]:
            if "step" in group:
                group["step"] = int(group["step"])
        return state_dict

    def _translate_state(
        self, group: dict[str, Any], params: list[torch.Tensor], state: dict[int, dict[str, Any]]
    ) -> None:
        """Makes the counts of the group and of its parameters agree: apex has the former alone,
        torch the latter."""
        states = [state[index] for index in group["params"] if index in state]
        largest = max((int(each["step"]) for each in states if "step" in each), default=None)
        step = group.get("step", largest)
        if step is None:
            return
        group["step"] = int(step)
        for each in states:
            if "step" not in each or largest != group["step"]:
                each["step"] = torch.tensor(float(group["step"]))


def _largest(counts: list[torch.Tensor]) -> int | torch.Tensor:
    """counts: by device. The largest on the first, without a wait."""
    largest, *others = [each.amax() for each in counts]
    for each in others:
        largest = torch.maximum(largest, each.to(largest.device, non_blocking=True))
    return int(largest) if largest.is_cpu else largest.int()
