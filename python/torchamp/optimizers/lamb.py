"""LAMB."""

from __future__ import annotations

import torch
from torch.optim.optimizer import ParamsT

from torchamp._load import _C
from torchamp.optimizers._fused import FusedOptimizer


class FusedLAMB(FusedOptimizer):
    """LAMB (You et al., arXiv:1904.00962): Adam's update, scaled to each tensor's own length.
    Grads are left as they are.

    Args:
        params, lr, state_dtype, stochastic_rounding: as FusedOptimizer's.
        betas, eps, weight_decay, bias_correction, maximize: as FusedAdam's.
        decoupled_weight_decay: weight decay belongs to the update rather than to the grads.
        averages_grads: the share of a new grad is 1 - beta1 rather than 1; apex's grad_averaging.
        always_adapts: also groups without weight decay are scaled; apex's use_nvlamb.
        max_grad_norm: the norm to which the grads of all groups together are clipped; None: not.
    """

    options: _C.OptionTable = _C.OptionTable("FusedLAMB")
    _largest_algorithm = _C.StepAlgorithm.LAMB
    _takes_shards = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        maximize: bool = False,
        bias_correction: bool = True,
        decoupled_weight_decay: bool = True,
        averages_grads: bool = True,
        always_adapts: bool = False,
        max_grad_norm: float | None = 1.0,
        state_dtype: torch.dtype = torch.float32,
        stochastic_rounding: bool = False,
    ) -> None:
        self._init_with(locals())
