"""The loss scalers of one initialize, and their state dict, which is apex.amp's."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch

from torchamp import ops
from torchamp._arguments import expect
from torchamp._load import _C
from torchamp.amp._run.ranks import agreement_over
from torchamp.amp._run.settings import Settings

_KEY = "loss_scaler"


class LossScalers(list[_C.LossScaler]):
    """One a loss."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        super().__init__(
            _make_scaler(settings, device) for _ in range(settings.options["num_losses"])
        )
        self._opt_level = settings.properties.opt_level
        #: The ranks of these agree on overflows.
        self._groups: list[Any] = []

    def agree_over(self, groups: Sequence[Any]) -> None:
        """Makes the ranks of `groups`, which are ProcessGroups, and of those of earlier calls agree
        on overflows. All ranks must name them in the same order."""
        new = [group for group in dict.fromkeys(groups) if group not in self._groups]
        if not new:
            return
        self._groups += new
        agreement = agreement_over(tuple(self._groups))
        for scaler in self:
            scaler.set_agreement(agreement)

    @property
    def are_dynamic(self) -> bool:
        """Whether overflows skip steps."""
        return any(scaler.dynamic for scaler in self)

    def state_dict(
        self, destination: MutableMapping[str, Any] | None = None
    ) -> MutableMapping[str, Any]:
        """{"loss_scaler0": {"loss_scale": float, "unskipped": int}, …}, one entry per loss, as in
        apex, added to `destination` if given. Waits for the device.

        An entry also has "recovering", the overflows that its scale's recovery from a collapse
        tolerates, but only in one. An OrderedDict has the opt level in its attribute `_metadata`,
        as torch.nn.Module's state dicts have versions.
        """
        result = OrderedDict() if destination is None else destination
        is_right = isinstance(result, MutableMapping)
        expect(is_right, "state_dict", "destination", "a dict or None", result)
        for i, scaler in enumerate(self):
            result[f"{_KEY}{i}"] = _saved(scaler)
        if isinstance(result, OrderedDict):
            vars(result)["_metadata"] = {"opt_level": self._opt_level}
        return result

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over what state_dict() or apex gave; entries go to the losses in order.

        Raises RuntimeError, and changes nothing, where the dict is of another number of losses, of
        another level, incomplete or no such dict.
        """
        is_right = isinstance(state_dict, Mapping)
        expect(is_right, "load_state_dict", "state_dict", "a dict", state_dict)
        _check_keys(state_dict, len(self))
        _check_level(self._opt_level, state_dict)
        states = [_read(name, entry) for name, entry in state_dict.items()]
        for scaler, state in zip(self, states):
            scaler.load_state(*state)


def _make_scaler(settings: Settings, device: torch.device) -> _C.LossScaler:
    rule = ops.ScaleRule()
    low, high = settings.options["min_loss_scale"], settings.options["max_loss_scale"]
    if low is not None:
        rule.min_scale = low
    if high is not None:
        rule.max_scale = high
    return _C.LossScaler(settings.properties.loss_scale, rule=rule, device=device)


def _saved(scaler: _C.LossScaler) -> dict[str, Any]:
    """The tracker is saved as what apex counts; apex's loader ignores the other entry."""
    loss_scale, growth_tracker = scaler.state()
    saved = {"loss_scale": loss_scale, "unskipped": max(growth_tracker, 0)}
    if growth_tracker < 0:
        saved["recovering"] = -growth_tracker
    return saved


def _check_keys(state_dict: Mapping[str, Any], expected: int) -> None:
    strange = [name for name in state_dict if _KEY not in name]
    if strange:
        raise RuntimeError(
            f"load_state_dict: expected keys {_KEY}0, {_KEY}1, …, as amp.state_dict() gives them, "
            f"got {', '.join(map(repr, strange))}"
        )
    if len(state_dict) != expected:
        raise RuntimeError(
            f"load_state_dict: expected a checkpoint of {expected} losses, as num_losses was in "
            f"initialize, got one of {len(state_dict)}"
        )


def _check_level(here: str, state_dict: Mapping[str, Any]) -> None:
    there = getattr(state_dict, "_metadata", {}).get("opt_level", here)
    if there != here:
        raise RuntimeError(
            f"load_state_dict: expected a checkpoint of opt_level {here}, got one of {there}; "
            "models and optimizers load across levels, omit this dict to reset the loss scale"
        )


def _read(name: str, entry: Any) -> tuple[float, int]:
    """The arguments of LossScaler.load_state."""
    if not isinstance(entry, Mapping):
        raise RuntimeError(f"load_state_dict: expected {name} to be a dict, got {entry!r}")
    missing = [key for key in ("loss_scale", "unskipped") if key not in entry]
    if missing:
        raise RuntimeError(
            f"load_state_dict: expected 'loss_scale' and 'unskipped' in {name}, found no "
            f"{' and no '.join(map(repr, missing))}: it is truncated"
        )
    try:
        growth_tracker = int(entry["unskipped"]) - int(entry.get("recovering", 0))
        state = float(entry["loss_scale"]), growth_tracker
        _C.LossScaler().load_state(*state)
    except (TypeError, ValueError, OverflowError):
        raise RuntimeError(
            f"load_state_dict: expected {name} to have a loss_scale that is positive and finite in "
            f"float32, and counts of 32 bits, got {dict(entry)}"
        ) from None
    return state
