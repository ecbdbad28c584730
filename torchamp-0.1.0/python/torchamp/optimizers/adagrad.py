"""Adagrad."""

from __future__ import annotations

import torch
from torch.optim.optimizer import ParamsT

from torchamp._load import _C
from torchamp.optimizers._fused import FusedOptimizer


class FusedAdagrad(FusedOptimizer):
    """torch.optim.Adagrad in one pass.

    Args:
        lr_decay, weight_decay, eps, maximize: as in torch.optim.Adagrad.
        decoupled_weight_decay: weight decay shrinks the parameters; apex's adagrad_w_mode.
        params, lr, state_dtype, stochastic_rounding: as FusedOptimizer's.

    State dicts go to and from torch.optim.Adagrad's.
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
        self._init_with(locals())
