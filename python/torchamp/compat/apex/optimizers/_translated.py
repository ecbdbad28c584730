"""The base of apex's optimizers, on top of torchamp's."""

from __future__ import annotations

from typing import Any

import torch

from torchamp.optimizers import FusedOptimizer
from torchamp.optimizers._layout import Layout


class Translated(FusedOptimizer):
    """A fused optimizer of torchamp's that answers to apex's names.

    `zero_grad()` follows `set_grad_none`, unless given an argument. Param groups and state dicts
    have apex's names, which count, beside torchamp's.
    """

    #: apex's names of a group's options, and torchamp's.
    group_names: dict[str, str] = {}

    #: The default of zero_grad()'s argument.
    set_grad_none = True

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "set_grad_none": self.set_grad_none}

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drops the grads, or fills them with zeros."""
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's."""
        if isinstance(param_group, dict):
            _name(param_group, self.group_names)
        super().add_param_group(param_group)
        _name(self.param_groups[-1], self.group_names)

    def _current_layout(self) -> Layout:
        self._name_groups()
        return super()._current_layout()

    def state_dict(self) -> dict[str, Any]:
        """As torch's."""
        self._name_groups()
        return super().state_dict()

    def _name_groups(self) -> None:
        for group in self.param_groups:
            _name(group, self.group_names)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's; from apex's too."""
        groups = [
            self._translated(group, current)
            for group, current in zip(state_dict["param_groups"], self.param_groups)
        ]
        groups += state_dict["param_groups"][len(groups) :]
        state = {key: dict(value) for key, value in state_dict["state"].items()}
        for group, current in zip(groups, self.param_groups):
            self._translate_state(group, current["params"], state)
        super().load_state_dict({**state_dict, "param_groups": groups, "state": state})

    def _translated(self, group: dict[str, Any], current: dict[str, Any]) -> dict[str, Any]:
        """The group with both names, and with the options that apex does not keep in it."""
        result = dict(group)
        _name(result, self.group_names)
        return {**{name: current[name] for name in current if name != "step"}, **result}

    def _translate_state(
        self, group: dict[str, Any], params: list[torch.Tensor], state: dict[int, dict[str, Any]]
    ) -> None:
        """What apex keeps in the group, torchamp in `state`."""


def _name(group: dict[str, Any], names: dict[str, str]) -> None:
    """Gives the group's options apex's names too; where both are there, apex's counts."""
    for theirs, ours in names.items():
        if theirs in group:
            group[ours] = bool(group[theirs])
        elif ours in group:
            group[theirs] = group[ours]


def refuse_amsgrad(optimizer: FusedOptimizer, amsgrad: bool) -> None:
    """Raises RuntimeError for amsgrad, which apex's optimizers do not have."""
    if amsgrad:
        raise RuntimeError(
            f"{type(optimizer).__name__}: expected amsgrad to be False, as in apex, got True; "
            "torch.optim.Adam and AdamW have it"
        )
