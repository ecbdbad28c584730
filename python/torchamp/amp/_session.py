"""The state of one initialize, shared by the models and optimizers that it returned."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from torchamp import ops
from torchamp._load import _C, __version__
from torchamp.amp._autocast import OpenCasts
from torchamp.amp._report import Reporter
from torchamp.amp._settings import Settings

_KEY = "loss_scaler"


class Session:
    """Settings, loss scalers, masters and O1's autocast of one initialize.

    Models and optimizers hold it; it holds neither, so that all are freed with the last of them.
    """

    def __init__(
        self,
        models: list[torch.nn.Module],
        device: torch.device,
        settings: Settings,
    ) -> None:
        self.settings = settings
        self.scalers = [_make_scaler(settings, device) for _ in range(settings.num_losses)]
        #: Kept alive here, for as long as a model or an optimizer of the session lives.
        self.weights: list[_C.Masters] = []
        #: Of the optimizers that are still there.
        self.optimizer_states: weakref.WeakSet[_C.OptimizerState] = weakref.WeakSet()
        #: Of the models' state dicts.
        self.hooks: list[RemovableHandle] = []
        self._models: list[weakref.ref[torch.nn.Module]] = []
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self.reporter = Reporter(settings, _names_of(models))
        self.casts = _open_casts(models, settings)

    def add_model(self, model: torch.nn.Module) -> None:
        self._models.append(weakref.ref(model))

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers.append(weakref.ref(optimizer))

    def models(self) -> list[Any]:
        """Those that are still there."""
        return _existing(self._models)

    def optimizers(self) -> list[Any]:
        """Those that are still there."""
        return _existing(self._optimizers)

    @property
    def is_identity(self) -> bool:
        """Whether no loss is scaled."""
        return all(scaler.is_identity for scaler in self.scalers)

    def scaler(self, loss_id: int) -> _C.LossScaler:
        """Raises IndexError for a loss_id beyond num_losses."""
        if not 0 <= loss_id < len(self.scalers):
            raise IndexError(
                f"scale_loss: expected loss_id to be below num_losses, {len(self.scalers)}, "
                f"got {loss_id}"
            )
        return self.scalers[loss_id]

    def other_states(self, given: list[_C.OptimizerState]) -> list[_C.OptimizerState]:
        """Those of the session that are not among `given`."""
        if len(given) == len(self.optimizer_states):
            return []
        return [state for state in self.optimizer_states if state not in given]

    def leave_step_to_the_program(self, loss_id: int) -> None:
        """Forgets overflows of a loss whose scale the program has updated itself: whether to step
        is its decision."""
        self.scalers[loss_id].forget_deferred()
        for state in self.optimizer_states:
            state.clear_overflows()

    def state_dict(self, destination: MutableMapping | None = None) -> MutableMapping:
        """The loss scalers' state, as in apex: {"loss_scaler0": {"loss_scale": float,
        "unskipped": int, …}, …}, one entry per loss, added to `destination` if given. Waits for the
        device. Masters travel in the model's state dict."""
        result = OrderedDict() if destination is None else destination
        for i, scaler in enumerate(self.scalers):
            result[f"{_KEY}{i}"] = self._saved_scaler(scaler)
        return result

    def _saved_scaler(self, scaler: _C.LossScaler) -> dict[str, Any]:
        """Additional entries are under "torchamp", which apex's loader ignores."""
        loss_scale, growth_tracker, hysteresis_tracker = scaler.state()
        return {
            "loss_scale": loss_scale,
            "unskipped": growth_tracker,
            "hysteresis": hysteresis_tracker,
            "torchamp": {
                "version": __version__,
                "opt_level": self.settings.properties.opt_level,
                "num_losses": len(self.scalers),
            },
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over what state_dict() or apex gave; entries go to the losses in order.

        Raises RuntimeError, and changes nothing, where the dict is of another number of losses, of
        another level, incomplete or no such dict.
        """
        _check_keys(state_dict, len(self.scalers))
        states = [_read(name, entry) for name, entry in state_dict.items()]
        for name, entry in state_dict.items():
            _check_level(self.settings.properties.opt_level, name, entry)
        for scaler, state in zip(self.scalers, states):
            scaler.load_state(*state)

    def close(self) -> None:
        """Ends O1's autocast."""
        if self.casts is not None:
            self.casts.close()

    def end(self) -> None:
        """Forgets models and optimizers, which are plain again."""
        self.close()
        for hook in self.hooks:
            hook.remove()
        self.hooks, self.weights = [], []
        self._models, self._optimizers = [], []


def _existing(references: list[weakref.ref[Any]]) -> list[Any]:
    return [each for each in (reference() for reference in references) if each is not None]


def _make_scaler(settings: Settings, device: torch.device) -> _C.LossScaler:
    rule = ops.ScaleRule(max_scale=settings.max_loss_scale)
    if settings.min_loss_scale is not None:
        rule.min_scale = settings.min_loss_scale
    return _C.LossScaler(settings.properties.loss_scale, rule=rule, device=device)


def _names_of(models: list[torch.nn.Module]) -> dict[int, str]:
    """The models' parameters' names by id; with the model's number if there are several."""
    names: dict[int, str] = {}
    for i, model in enumerate(models):
        prefix = f"models[{i}]." if len(models) > 1 else ""
        for name, param in model.named_parameters():
            names.setdefault(id(param), prefix + name)
    return names


def _open_casts(models: list[torch.nn.Module], settings: Settings) -> OpenCasts | None:
    dtype = settings.properties.autocast_type
    if dtype is None:
        return None
    types = {param.device.type for model in models for param in model.parameters()}
    return OpenCasts(sorted(types), dtype)


def _check_keys(state_dict: Mapping[str, Any], expected: int) -> None:
    strange = [name for name in state_dict if _KEY not in name]
    if strange:
        raise RuntimeError(
            f"load_state_dict: expected keys {_KEY}0, {_KEY}1, …, as amp.state_dict() gives them, "
            f"got {', '.join(map(repr, strange))}"
        )
    found = len(state_dict)
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


def _check_level(here: str, name: str, entry: Mapping[str, Any]) -> None:
    there = _ours(entry).get("opt_level", here)
    if there != here:
        raise RuntimeError(
            f"load_state_dict: expected a checkpoint of opt_level {here}, got one of {there} in "
            f"{name}; models and optimizers load across levels, omit this entry to reset the "
            "loss scale"
        )
