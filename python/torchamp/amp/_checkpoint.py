"""State dicts of loss scalers. Masters travel in the model's state dict."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, MutableMapping
from typing import Any

from torchamp._load import __version__
from torchamp.amp._session import Session

_KEY = "loss_scaler"


def state_dict(session: Session, destination: MutableMapping | None = None) -> MutableMapping:
    """{"loss_scaler0": {"loss_scale": float, "unskipped": int, …}, …}, one entry a loss, as apex
    has it, put into `destination` if given. Waits for the device.

    What apex has no place for stands inside each entry, where its loader does not look.
    """
    result = OrderedDict() if destination is None else destination
    for i, scaler in enumerate(session.scalers):
        loss_scale, growth_tracker, hysteresis_tracker = scaler.state()
        result[f"{_KEY}{i}"] = {
            "loss_scale": loss_scale,
            "unskipped": growth_tracker,
            "hysteresis": hysteresis_tracker,
            "torchamp": {
                "version": __version__,
                "opt_level": session.settings.properties.opt_level,
                "num_losses": len(session.scalers),
            },
        }
    return result


def load_state_dict(session: Session, state_dict: Mapping[str, Any]) -> None:
    """Takes over what state_dict() or apex gave; entries go to the losses in order.

    Raises RuntimeError, and changes nothing, where the dict is of another number of losses, of
    another level, incomplete or no such dict.
    """
    _check_keys(session, state_dict)
    states = [_read(name, entry) for name, entry in state_dict.items()]
    for name, entry in state_dict.items():
        _check_level(session, name, entry)
    for scaler, state in zip(session.scalers, states):
        scaler.load_state(*state)


def _check_keys(session: Session, state_dict: Mapping[str, Any]) -> None:
    strange = [name for name in state_dict if _KEY not in name]
    if strange:
        raise RuntimeError(
            f"load_state_dict: expected keys {_KEY}0, {_KEY}1, …, as amp.state_dict() gives them, "
            f"got {', '.join(map(repr, strange))}"
        )
    found, expected = len(state_dict), len(session.scalers)
    saved = max((_ours(entry).get("num_losses", found) for entry in state_dict.values()), default=0)
    if saved != found:
        raise RuntimeError(
            f"load_state_dict: expected {saved} entries in a checkpoint of {saved} losses, "
            f"got {found}: it is truncated"
        )
    if found != expected:
        raise RuntimeError(
            f"load_state_dict: expected a checkpoint of {expected} losses, as num_losses was in "
            f"initialize, got one of {found}"
        )


def _ours(entry: Any) -> Mapping[str, Any]:
    ours = entry.get("torchamp") if isinstance(entry, Mapping) else None
    return ours if isinstance(ours, Mapping) else {}


def _read(name: str, entry: Any) -> tuple[float, int, int]:
    missing = [key for key in ("loss_scale", "unskipped") if key not in entry]
    if missing:
        raise RuntimeError(
            f"load_state_dict: expected 'loss_scale' and 'unskipped' in {name}, found no "
            f"{' and no '.join(map(repr, missing))}: it is truncated"
        )
    loss_scale = float(entry["loss_scale"])
    if not 0 < loss_scale < float("inf"):
        raise RuntimeError(
            f"load_state_dict: expected loss_scale in {name} to be positive and finite, "
            f"got {loss_scale}"
        )
    return loss_scale, int(entry["unskipped"]), int(entry.get("hysteresis", 1))


def _check_level(session: Session, name: str, entry: Mapping[str, Any]) -> None:
    here = session.settings.properties.opt_level
    there = _ours(entry).get("opt_level", here)
    if there != here:
        raise RuntimeError(
            f"load_state_dict: expected a checkpoint of opt_level {here}, got one of {there} in "
            f"{name}; models and optimizers load across levels, and the loss scale starts afresh "
            "if you leave this entry out"
        )
