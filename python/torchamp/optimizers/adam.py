"""Adam and AdamW."""

from __future__ import annotations

import torch
from torch.optim.optimizer import ParamsT

from torchamp._load import _C
from torchamp.optimizers._fused import FusedOptimizer


class FusedAdam(FusedOptimizer):
    """torch.optim.Adam in one pass: weight decay is added to the grads. State dicts go to and from
    torch.optim.Adam's and AdamW's.

    Args:
        params, lr, state_dtype, stochastic_rounding: as FusedOptimizer's.
        betas, eps, weight_decay, maximize: as in torch.optim.Adam.
        amsgrad: False.
        decoupled_weight_decay: True: weight decay as in AdamW.
        bias_correction: False disables bias correction, as in apex.

    Raises:
        RuntimeError: for amsgrad, as in apex, also in a state dict.
    """

    options: _C.OptionTable = _C.OptionTable("FusedAdam")
    _largest_algorithm = _C.StepAlgorithm.ADAM

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
        bias_correction: bool = True,
        state_dtype: torch.dtype = torch.float32,
        stochastic_rounding: bool = False,
    ) -> None:
        self._init_with(locals())

    _refused = {"amsgrad": "torch.optim.Adam and AdamW have it"}


class FusedAdamW(FusedAdam):
    """torch.optim.AdamW in one pass: weight decay shrinks the parameters themselves. State dicts go
    to and from torch.optim.Adam's and AdamW's.

    Args:
        params, lr, state_dtype, stochastic_rounding: as FusedOptimizer's.
        betas, eps, weight_decay, maximize: as in torch.optim.AdamW.
        amsgrad: False.
        decoupled_weight_decay: False adds weight decay to the grads, as in Adam.
        bias_correction: False disables bias correction, as in apex.

    Raises:
        RuntimeError: for amsgrad, as in apex, also in a state dict.
    """

    options: _C.OptionTable = _C.OptionTable("FusedAdamW")

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = True,
        bias_correction: bool = True,
        state_dtype: torch.dtype = torch.float32,
        stochastic_rounding: bool = False,
    ) -> None:
        self._init_with(locals())
