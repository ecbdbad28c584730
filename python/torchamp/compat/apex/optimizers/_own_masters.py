"""An optimizer's own masters, for training without torchamp.amp."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from torchamp._load import _C
from torchamp.compat.apex.optimizers._translated import Translated


class OwnMasters(Translated):
    """Steps float32 copies of the parameters of some dtypes, and writes the parameters from them.

    The copies are made by the first step, and follow when a parameter is written from outside.
    Groups show the parameters; `state` is kept by copy; state dicts hold the copies as
    "master_param", so that a resumed run is the run that never stopped.
    """

    #: The parameters of these dtypes have masters.
    mastered_dtypes: tuple[torch.dtype, ...] = ()

    kept_attributes: tuple[str, ...] = (*Translated.kept_attributes, "mastered_dtypes")

    _weights: _C.Masters | None = None

    def __getstate__(self) -> dict[str, Any]:
        weights = self._weights or _C.Masters()
        pairs = list(zip(weights.model_params(), weights.master_params()))
        return {**super().__getstate__(), "pairs": pairs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        pairs = state.pop("pairs", None)
        super().__setstate__(state)
        if pairs is not None:
            self._weights = _C.Masters()
            for param, stepped in pairs:
                self._weights.track(param, None if stepped is param else stepped)

    def _step_params(self) -> None:
        if not self.mastered_dtypes:
            return super()._step_params()
        with self._masters_in_groups() as weights:
            weights.refresh()
            with _master_grads(weights):
                super()._step_params()
                if getattr(self, "grad_scale", None) is not None:
                    _leave_unscaled(weights)
            weights.copy_to_model()

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with the masters."""
        if not self.mastered_dtypes:
            return super().state_dict()
        with self._masters_in_groups() as weights:
            state_dict = super().state_dict()
        for i, param in enumerate(self._params()):
            if param.dtype in self.mastered_dtypes:
                state = state_dict["state"].get(i, {})
                state_dict["state"][i] = {**state, "master_param": weights.master_of(param)}
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, with or without masters."""
        if not self.mastered_dtypes:
            return super().load_state_dict(state_dict)
        with self._masters_in_groups() as weights:
            super().load_state_dict(state_dict)
            for stepped in self._params():
                saved = self.state[stepped].pop("master_param", None)
                if saved is not None:
                    stepped.detach().copy_(saved)
            weights.copy_to_model()

    def _params(self) -> list[torch.Tensor]:
        return [param for group in self.param_groups for param in group["params"]]

    @contextlib.contextmanager
    def _masters_in_groups(self) -> Iterator[_C.Masters]:
        self._weights = self._weights or _C.Masters()
        shown = [group["params"] for group in self.param_groups]
        try:
            for group in self.param_groups:
                group["params"] = [self._master_of(param) for param in group["params"]]
            yield self._weights
        finally:
            for group, params in zip(self.param_groups, shown):
                group["params"] = params

    def _master_of(self, param: torch.Tensor) -> torch.Tensor:
        known = self._weights.master_of(param)
        if known is not None:
            return known
        has_master = param.dtype in self.mastered_dtypes
        return self._weights.track(param, _C.Masters.make_master(param) if has_master else None)


@contextlib.contextmanager
def _master_grads(weights: _C.Masters) -> Iterator[None]:
    """While this is open, masters have their parameters' grads in float32."""
    pairs = zip(weights.model_params(), weights.master_params())
    separate = [(param, master) for param, master in pairs if param is not master]
    for param, master in separate:
        master.grad = None if param.grad is None else param.grad.float()
    try:
        yield
    finally:
        for _, master in separate:
            master.grad = None


def _leave_unscaled(weights: _C.Masters) -> None:
    """Gives parameters the grads that a step has left their masters."""
    for param, master in zip(weights.model_params(), weights.master_params()):
        if param is not master and param.grad is not None:
            param.grad.copy_(master.grad)
