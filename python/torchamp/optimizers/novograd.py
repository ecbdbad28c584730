"""NovoGrad."""

from __future__ import annotations

import torch
from torch.optim.optimizer import ParamsT

from torchamp._load import _C
from torchamp.optimizers._fused import FusedOptimizer


class FusedNovoGrad(FusedOptimizer):
    """NovoGrad (Ginsburg et al., arXiv:1905.11286): the second moment is one number per tensor, the
    running norm of its grads.

    Args:
        params, lr, state_dtype, stochastic_rounding: as FusedOptimizer's.
        betas, eps, weight_decay, bias_correction, maximize: as FusedAdam's.
        decay_in_moment: weight decay is averaged with the grads; apex's reg_inside_moment.
        averages_grads: the share of a new grad is 1 - beta1 rather than 1; apex's grad_averaging.
        starts_at_zero: the running norm starts at zero rather than at the first norm; apex's
            init_zero.
    """

    options: _C.OptionTable = _C.OptionTable("FusedNovoGrad")
    _largest_algorithm = _C.StepAlgorithm.NOVOGRAD
    _takes_shards = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        bias_correction: bool = True,
        decay_in_moment: bool = False,
        averages_grads: bool = True,
        starts_at_zero: bool = False,
        state_dtype: torch.dtype = torch.float32,
        stochastic_rounding: bool = False,
    ) -> None:
        self._init_with(locals())
