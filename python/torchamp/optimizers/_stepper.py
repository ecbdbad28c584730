"""A fused optimizer's stepper for one device and algorithm."""

from __future__ import annotations

from typing import Any

import torch

from torchamp._load import _C


class Stepper:
    """A FusedStepper, and the optimizer's `state` of its parameters."""

    def __init__(
        self,
        algorithm: _C.StepAlgorithm,
        placed: list[tuple[torch.Tensor, int]],
        state_dtype: torch.dtype,
        stochastic_rounding: bool,
    ) -> None:
        """placed: parameters of one device, each with the number of its group."""
        self._params = [param for param, _ in placed]
        self._device = self._params[0].device
        groups = [group for _, group in placed]
        self._stepper = _C.FusedStepper(
            algorithm, self._params, groups, state_dtype, stochastic_rounding
        )
        self._names = _C.state_names(algorithm)

    def adopt_states(self, state: dict[torch.Tensor, dict[str, Any]]) -> None:
        """Goes on from what `state` has of the parameters."""
        for i, param in enumerate(self._params):
            if param in state:
                self._adopt(i, state[param])

    def _adopt(self, i: int, state: dict[str, Any]) -> None:
        """Missing states start as zeros: the maxima if amsgrad was switched on later."""
        states = [state.get(name) for name in self._names]
        if self._names and all(value is None for value in states):
            return
        done = torch.as_tensor(float(state.get("step", 1.0)))
        norm = state.get("norm_average")
        norm_average = None if norm is None else torch.as_tensor(float(norm))
        self._stepper.set_state(i, states, done, norm_average)
        state.update(self._scalars(i))
        state.update(zip(self._names, self._stepper.states(i)))

    def _scalars(self, i: int) -> dict[str, torch.Tensor]:
        scalars = {"step": self._stepper.step_count(i)}
        norm = self._stepper.norm_average(i)
        if norm is not None:
            scalars["norm_average"] = norm
        return scalars

    def update(self, rows: list[list[float]], groups: list[dict[str, Any]]) -> None:
        """Takes the groups' hyperparameters over."""
        self._stepper.set_hyper(rows)
        for index, group in enumerate(groups):
            if isinstance(group["lr"], torch.Tensor):
                self._stepper.set_lr(index, group["lr"])

    def publish_new_states(self, state: dict[torch.Tensor, dict[str, Any]]) -> None:
        """Puts the states that steps have made in `state`."""
        for i in self._stepper.take_new_states():
            values = dict(zip(self._names, self._stepper.states(i)))
            state[self._params[i]] = {**self._scalars(i), **values}

    def republish_scalars(self, state: dict[torch.Tensor, dict[str, Any]]) -> None:
        """Puts the counts in `state` again, which a program may have moved by `.data`."""
        for i, param in enumerate(self._params):
            if param in state:
                state[param].update(self._scalars(i))

    def step(
        self,
        grad_factor: torch.Tensor | None,
        skip: torch.Tensor | None,
        masters: _C.Masters | None,
    ) -> None:
        """Steps the parameters that have a grad, multiplied with `grad_factor`; or masters, by the
        model's grads if need be."""
        if masters is None:
            self._stepper.step(_on(self._device, grad_factor), _on(self._device, skip))
        else:
            masters.step(self._stepper, _on(self._device, skip))


def _on(device: torch.device, scalar: torch.Tensor | float | None) -> torch.Tensor | None:
    """`scalar` on `device`. torch's GradScaler leaves a number where no parameter has a grad."""
    if scalar is None:
        return None
    return torch.as_tensor(scalar).to(device, torch.float32, non_blocking=True)
