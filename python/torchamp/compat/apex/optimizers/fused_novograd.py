"""apex's FusedNovoGrad."""

from __future__ import annotations

from typing import Any

import torch

from torchamp import optimizers
from torchamp.compat.apex.optimizers._counts import CountsByGroup
from torchamp.compat.apex.optimizers._translated import refuse_amsgrad

__all__ = ["FusedNovoGrad"]


class FusedNovoGrad(CountsByGroup, optimizers.FusedNovoGrad):
    """torchamp.optimizers.FusedNovoGrad with apex's arguments.

    reg_inside_moment, grad_averaging, init_zero: its decay_in_moment, averages_grads and
    starts_at_zero. norm_type: 2, the Euclidean norm. set_grad_none: what zero_grad() does.

    Raises RuntimeError for amsgrad and for other norms.
    """

    group_names: dict[str, str] = {
        "grad_averaging": "averages_grads",
        "init_zero": "starts_at_zero",
    }

    counts_fresh = False  # their running norms start with the first step

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        reg_inside_moment: bool = False,
        grad_averaging: bool = True,
        norm_type: int = 2,
        init_zero: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        refuse_amsgrad(self, amsgrad)
        _check_norm(norm_type)
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            bias_correction=bool(bias_correction),
            decay_in_moment=bool(reg_inside_moment),
            averages_grads=bool(grad_averaging),
            starts_at_zero=bool(init_zero),
        )
        self.set_grad_none = set_grad_none

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's. Raises RuntimeError for other norms."""
        if isinstance(param_group, dict):
            _check_norm(param_group.setdefault("norm_type", 2))
        super().add_param_group(param_group)

    def _translated(self, group: dict[str, Any], current: dict[str, Any]) -> dict[str, Any]:
        _check_norm(group.get("norm_type", 2))
        return super()._translated(group, current)

    def _translate_state(
        self, group: dict[str, Any], params: list[torch.Tensor], state: dict[int, dict[str, Any]]
    ) -> None:
        super()._translate_state(group, params, state)
        norms = group.pop("exp_avg_sq", None)  # in apex: those of float16, those of float32
        if norms is None:
            return
        float16, float32 = map(iter, norms)
        for index, param in zip(group["params"], params):
            if index in state:
                of_dtype = float16 if param.dtype == torch.float16 else float32
                state[index]["norm_average"] = next(of_dtype)


def _check_norm(norm_type: int) -> None:
    if norm_type != 2:
        raise RuntimeError(
            f"FusedNovoGrad: expected norm_type to be 2, the only norm it has, got {norm_type}"
        )
