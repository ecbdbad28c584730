"""The steppers of a fused optimizer: of its groups' parameters by device, with their states."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch

from torchamp._load import _C
from torchamp._shards import Shards, local_state, shard_of, sharded_like


@dataclasses.dataclass
class Layout:
    """The steppers of an optimizer, and what they were made for."""

    steppers: list[Stepper]
    #: What each group was.
    groups: list[tuple[_C.StepAlgorithm, _C.ParamsSnapshot]]
    seen_state: _C.StateSnapshot
    #: The parameters that are DTensors.
    shards: Shards

    @functools.cached_property
    def counts(self) -> dict[int, list[torch.Tensor]]:
        """By group, the steps of its parameters: a float32 tensor a device, which steps write."""
        counts: dict[int, list[torch.Tensor]] = {}
        for stepper in self.steppers:
            for group, each in stepper.counts().items():
                counts.setdefault(group, []).append(each)
        return counts

    def set_counts(self, group: int, count: int, with_fresh: bool) -> None:
        """Writes all of them. with_fresh: also of the parameters that have no states yet."""
        for stepper in self.steppers:
            stepper.set_counts(group, count, with_fresh)

    def publish_new_states(self, state: dict[torch.Tensor, dict[str, Any]]) -> None:
        """Puts the states that steps have made in `state`."""
        has_new = False
        for stepper in self.steppers:
            has_new |= stepper.publish_new_states(state)
        if has_new:
            self.seen_state = _C.StateSnapshot(state)

    def republish_scalars(self, state: dict[torch.Tensor, dict[str, Any]]) -> None:
        """Puts the counts in `state` again, which a program may have moved by `.data`."""
        for stepper in self.steppers:
            stepper.republish_scalars(state)
        self.seen_state = _C.StateSnapshot(state)


class Stepper:
    """A FusedStepper, of one device and algorithm, and the optimizer's `state` of its
    parameters."""

    def __init__(
        self,
        algorithm: _C.StepAlgorithm,
        placed: list[tuple[torch.Tensor, int]],
        state_dtype: torch.dtype,
        stochastic_rounding: bool,
        state: dict[torch.Tensor, dict[str, Any]],
    ) -> None:
        """placed: parameters of one device, each with the number of its group; of DTensors the
        shards are stepped, and masters of those that have one. Goes on from what `state` has of
        them."""
        self._params = [param for param, _ in placed]
        self._groups = [group for _, group in placed]
        stepped = [_C.stepped_for(shard_of(param)) for param in self._params]
        self.core = _C.FusedStepper(
            algorithm, stepped, self._groups, state_dtype, stochastic_rounding
        )
        self._names = _C.state_names(algorithm)
        for i, param in enumerate(self._params):
            if param in state:
                self._adopt(i, state[param])

    def _adopt(self, i: int, state: dict[str, Any]) -> None:
        """Missing states start as zeros."""
        param = self._params[i]
        states = [local_state(param, name, state.get(name)) for name in self._names]
        if not state or (self._names and all(value is None for value in states)):
            return
        done = torch.as_tensor(float(state.get("step", 1.0)))
        norm = state.get("norm_average")
        norm_average = None if norm is None else torch.as_tensor(float(norm))
        self.core.set_state(i, states, done, norm_average)
        state.update(self._scalars(i))
        state.update(self._states(i))

    def _states(self, i: int) -> dict[str, torch.Tensor]:
        param = self._params[i]
        return {
            name: sharded_like(param, state)
            for name, state in zip(self._names, self.core.states(i))
        }

    def _scalars(self, i: int) -> dict[str, torch.Tensor]:
        scalars = {"step": self.core.step_count(i)}
        norm = self.core.norm_average(i)
        if norm is not None:
            scalars["norm_average"] = norm
        return scalars

    def counts(self) -> dict[int, torch.Tensor]:
        """By group, the steps of its parameters, which are neighbours in one tensor of counts."""
        return {
            group: self.core.step_count(i).as_strided((self._groups.count(group),), (1,))
            for i, group in enumerate(self._groups)
            if i == 0 or group != self._groups[i - 1]
        }

    def set_counts(self, group: int, count: int, with_fresh: bool) -> None:
        """Writes those of the group, or those of parameters that have states."""
        for i, each in enumerate(self._groups):
            if each == group and (with_fresh or self.core.states(i)):
                self.core.step_count(i).fill_(count)

    def update(self, options: _C.OptionTable, groups: list[dict[str, Any]]) -> None:
        """Takes the groups' hyperparameters over."""
        options.set_hyper(self.core, groups)
        for index, group in enumerate(groups):
            if isinstance(group["lr"], torch.Tensor):
                self.core.set_lr(index, group["lr"])

    def publish_new_states(self, state: dict[torch.Tensor, dict[str, Any]]) -> bool:
        """Puts the states that steps have made in `state`; returns whether there were any."""
        made = self.core.new_states()
        if not made:
            return False
        for i in made:
            state[self._params[i]] = {**self._scalars(i), **self._states(i)}
        self.core.clear_new_states()
        return True

    def republish_scalars(self, state: dict[torch.Tensor, dict[str, Any]]) -> None:
        """Puts the counts in `state` again."""
        for i, param in enumerate(self._params):
            if state.get(param):
                state[param].update(self._scalars(i))
