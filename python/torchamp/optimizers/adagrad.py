"""Adagrad."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from torchamp._load import _C
from torchamp.optimizers._fused import FusedOptimizer


class FusedAdagrad(FusedOptimizer):
    """torch.optim.Adagrad in one pass.

    Args:
        params: parameters or groups.
        lr: float or scalar tensor.
        lr_decay, weight_decay, eps, maximize: as in torch.optim.Adagrad.
        decoupled_weight_decay: weight decay shrinks the parameters; apex's adagrad_w_mode.
        state_dtype, stochastic_rounding: as FusedOptimizer's.

    Raises ValueError for values outside of their range. State dicts go to and from
    torch.optim.Adagrad's.
    """

    options: _C.OptionTable = _C.OptionTable("FusedAdagrad")
    _largest_algorithm = _C.StepAlgorithm.ADAGRAD

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
        state_dtype: torch.dtype = torch.float32,
        stochastic_rounding: bool = False,
    ) -> None:
        defaults = dict(
            lr=lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            eps=eps,
            maximize=maximize,
            decoupled_weight_decay=decoupled_weight_decay,
        )
        super().__init__(
            params,
            defaults,
            state_dtype=state_dtype,
            stochastic_rounding=stochastic_rounding,
        )

    def algorithm_of(self, group: dict[str, Any]) -> _C.StepAlgorithm:
        return _C.StepAlgorithm.ADAGRAD
