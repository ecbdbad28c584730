"""Keras's words for the opt levels: dtype policies, and an optimizer that scales its loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from torchamp._arguments import expect, module_of, with_hints
from torchamp.amp._casts.masters import mastered
from torchamp.amp._grad_scaler import GradScaler

_LEVELS: dict[str, tuple[str, dict[str, Any]]] = {
    "float32": ("O0", {}),
    "mixed_float16": ("O1", {}),
    "mixed_bfloat16": ("O4", {}),
    "float16": ("O3", {}),
    "bfloat16": ("O3", {"cast_model_type": torch.bfloat16}),
}


@dataclasses.dataclass(frozen=True)
class Policy:
    """A dtype policy by Keras's name. initialize takes it as opt_level.

    Args:
        name: "float32", "mixed_float16", "mixed_bfloat16", "float16" or "bfloat16".

    Raises:
        ValueError: for another name.
    """

    name: str

    def __post_init__(self) -> None:
        expect(isinstance(self.name, str), "Policy", "name", "text", self.name)
        if self.name not in _LEVELS:
            raise ValueError(
                f"Policy: expected name to be one of {', '.join(map(repr, _LEVELS))}, got "
                f"{self.name!r}"
            )

    @property
    def opt_level(self) -> str:
        """The level that initialize uses."""
        return _LEVELS[self.name][0]

    @property
    def overrides(self) -> dict[str, Any]:
        """What initialize changes of the level."""
        return dict(_LEVELS[self.name][1])

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of the ops that are safe in it, with mixed_float16 and mixed_bfloat16; else of
        all."""
        return getattr(torch, self.name.replace("mixed_", ""))

    @property
    def variable_dtype(self) -> torch.dtype:
        """The dtype of the parameters."""
        return torch.float32 if self.name.startswith("mixed_") else self.compute_dtype


class _Global:
    policy: Policy | None = None


def set_global_policy(policy: Policy | str | None) -> None:
    """Makes initialize use this policy where it is given no opt_level. None: O1, again."""
    _Global.policy = None if policy is None else _policy_of("set_global_policy", policy)


def global_policy() -> Policy | None:
    """Returns the one that set_global_policy was given."""
    return _Global.policy


def _policy_of(function: str, policy: Any) -> Policy:
    expect(isinstance(policy, (Policy, str)), function, "policy", "a Policy or its name", policy)
    return Policy(policy) if isinstance(policy, str) else policy


def level_and_overrides(opt_level: Any, overrides: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Makes a level and overrides of initialize's arguments: a policy's, under those that the
    program gives."""
    policy = global_policy() if opt_level is None else opt_level
    given = {name: value for name, value in overrides.items() if value is not None}
    if policy is None:
        return "O1", given
    if not isinstance(policy, Policy):
        return policy, given
    return policy.opt_level, {**policy.overrides, **given}


def set_policy(module: torch.nn.Module, policy: Policy | str) -> torch.nn.Module:
    """Marks `module`, in a model that initialize gets later, and returns it: with "float32" it
    computes in float32 at every level, like one of keep_fp32.

    Raises:
        TypeError: for what is no module, and for what is no policy.
        ValueError: for other policies, which are a whole model's.
        RuntimeError: for a model that initialize returned, and for a module whose parameters have
            masters.
    """
    policy = _policy_of("set_policy", policy)
    module_of("set_policy", module)
    if policy.name != "float32":
        raise ValueError(
            f"set_policy: expected the policy of a module to be 'float32', got {policy.name!r}, "
            "which is a whole model's; call initialize with it"
        )
    if hasattr(module, "_torchamp") or any(map(mastered, module.parameters())):
        raise RuntimeError(
            "set_policy: expected a module before initialize, got one of a model that initialize "
            "returned; call set_policy first, or amp.release(model)"
        )
    vars(module)["dtype_policy"] = policy
    return module


def is_marked(name: str, module: torch.nn.Module) -> bool:
    """Whether set_policy was called with the module; a rule for keep_fp32."""
    return isinstance(getattr(module, "dtype_policy", None), Policy)


class LossScaleOptimizer:
    """An optimizer whose loss is scaled dynamically, for loops written like Keras's::

        optimizer = amp.LossScaleOptimizer(torch.optim.Adam(model.parameters()))
        optimizer.zero_grad()
        optimizer.scale_loss(loss).backward()
        optimizer.step()  # unscales the grads, and skips the step after an overflow

    It is not a torch.optim.Optimizer: give inner_optimizer to schedulers.

    Args:
        inner_optimizer: not one that initialize returned, whose losses amp.scale_loss scales.
        initial_scale: the first loss scale.
        dynamic_growth_steps: after how many steps without an overflow it doubles.
    """

    @with_hints("LossScaleOptimizer", {})
    def __init__(
        self,
        inner_optimizer: torch.optim.Optimizer,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
    ) -> None:
        is_right = isinstance(inner_optimizer, torch.optim.Optimizer)
        what = "a torch.optim.Optimizer"
        expect(is_right, "LossScaleOptimizer", "inner_optimizer", what, inner_optimizer)
        self.inner_optimizer = inner_optimizer
        device = inner_optimizer.param_groups[0]["params"][0].device.type
        self.scaler: GradScaler = GradScaler(
            device, initial_scale, growth_interval=dynamic_growth_steps
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The inner optimizer's."""
        return self.inner_optimizer.param_groups

    @property
    def dynamic_scale(self) -> float:
        """The current loss scale. Waits for the device."""
        return self.scaler.get_scale()

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """`loss` times the scale, float32."""
        return self.scaler.scale(loss)

    def step(self) -> Any:
        """Unscales the grads and steps, unless one is not finite; then updates the scale.

        Returns:
            What the inner step does; None if the host skipped it.
        """
        result = self.scaler.step(self.inner_optimizer)
        self.scaler.update()
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The inner optimizer's."""
        self.inner_optimizer.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The state dicts of the inner optimizer and the scaler."""
        return {
            "inner_optimizer": self.inner_optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads what state_dict() gave.

        Raises:
            KeyError: for anything else.
        """
        inner, scaler = state_dict["inner_optimizer"], state_dict["scaler"]
        self.inner_optimizer.load_state_dict(inner)
        self.scaler.load_state_dict(scaler)

    def __repr__(self) -> str:
        return f"LossScaleOptimizer({self.scaler!r}, {self.inner_optimizer!r})"
