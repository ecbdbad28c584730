"""An optimizer's own masters, for training without torchamp.amp."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from torchamp._load import _C
from torchamp.amp._masters import params_of
from torchamp.compat.apex.optimizers._counts import CountsByGroup

_NAME = "step"


class OwnMasters(CountsByGroup):
    """Steps float32 copies of the parameters of some dtypes, and writes the parameters from them.

    The copies are made by the first step, and follow when a parameter is written from outside.
    Groups show the parameters; `state` is kept by copy; state dicts hold the copies as
    "master_param", so that a resumed run is the run that never stopped.
    """

    #: The parameters of these dtypes have masters.
    mastered_dtypes: tuple[torch.dtype, ...] = ()

    kept_attributes: tuple[str, ...] = (*CountsByGroup.kept_attributes, "mastered_dtypes")

    _stepped: _C.OptimizerState | None = None

    def __getstate__(self) -> dict[str, Any]:
        params = self._stepped.params() if self._stepped else []
        pairs = [(param.model, param.master) for param in params]
        return {**super().__getstate__(), "pairs": pairs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        pairs = state.pop("pairs", None)
        super().__setstate__(state)
        if pairs is not None:
            self._stepped = _C.OptimizerState()
            for param, stepped in pairs:
                self._stepped.add(_NAME, param, None if stepped is param else stepped)

    def _step_params(self) -> None:
        if not self.mastered_dtypes:
            return super()._step_params()
        with self._masters_in_groups() as stepped:
            stepped.refresh()
            with _master_grads(stepped):
                super()._step_params()
                if getattr(self, "grad_scale", None) is not None:
                    _leave_unscaled(stepped)
            stepped.copy_to_model()

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with the masters."""
        if not self.mastered_dtypes:
            return super().state_dict()
        with self._masters_in_groups():
            state_dict = super().state_dict()
        for i, param in enumerate(params_of([self])):
            if param.dtype in self.mastered_dtypes:
                state = state_dict["state"].get(i, {})
                state_dict["state"][i] = {**state, "master_param": self._master_of(param)}
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, with or without masters."""
        if not self.mastered_dtypes:
            return super().load_state_dict(state_dict)
        with self._masters_in_groups() as stepped:
            super().load_state_dict(state_dict)
            for master in params_of([self]):
                saved = self.state[master].pop("master_param", None)
                if saved is not None:
                    master.detach().copy_(saved)
            stepped.copy_to_model()

    @contextlib.contextmanager
    def _masters_in_groups(self) -> Iterator[_C.OptimizerState]:
        self._stepped = self._stepped or _C.OptimizerState()
        shown = [group["params"] for group in self.param_groups]
        try:
            for group in self.param_groups:
                group["params"] = [self._master_of(param) for param in group["params"]]
            yield self._stepped
        finally:
            for group, params in zip(self.param_groups, shown):
                group["params"] = params

    def _master_of(self, param: torch.Tensor) -> torch.Tensor:
        if not self._stepped.steps(param):
            is_mastered = param.dtype in self.mastered_dtypes
            self._stepped.add(_NAME, param, _C.make_master(param) if is_mastered else None)
        return _C.stepped_for(param)


@contextlib.contextmanager
def _master_grads(stepped: _C.OptimizerState) -> Iterator[None]:
    """While this is open, masters have their parameters' grads in float32."""
    params = [param for param in stepped.params() if param.has_master]
    for param in params:
        grad = param.model.grad
        param.master.grad = None if grad is None else grad.float()
    try:
        yield
    finally:
        for param in params:
            param.master.grad = None


def _leave_unscaled(stepped: _C.OptimizerState) -> None:
    """Gives parameters the grads that a step has left their masters."""
    for param in stepped.params():
        if param.has_master and param.model.grad is not None:
            param.model.grad.copy_(param.master.grad)
