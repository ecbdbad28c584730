"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from torchamp._load import _C
from torchamp.optimizers._fused import FusedOptimizer


class FusedSGD(FusedOptimizer):
    """torch.optim.SGD in one pass. State dicts go to and from torch.optim.SGD's.

    Args:
        params, lr, state_dtype, stochastic_rounding: as FusedOptimizer's.
        momentum, dampening, weight_decay, nesterov, maximize: as in torch.optim.SGD.
        decay_after_momentum: weight decay is added to the step instead of the grads; apex's
            wd_after_momentum.
    """

    options: _C.OptionTable = _C.OptionTable("FusedSGD")
    _largest_algorithm = _C.StepAlgorithm.MOMENTUM

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        decay_after_momentum: bool = False,
        state_dtype: torch.dtype = torch.float32,
        stochastic_rounding: bool = False,
    ) -> None:
        self._init_with(locals())

    def _check_options(self, values: dict[str, Any]) -> None:
        super()._check_options(values)
        momentum, dampening = values["momentum"], values["dampening"]
        if values["nesterov"] and (momentum <= 0.0 or dampening != 0.0):
            raise ValueError(
                f"{type(self).__name__}: expected a positive momentum and no dampening with "
                f"nesterov, got momentum {momentum} and dampening {dampening}"
            )

    def algorithm_of(self, group: dict[str, Any]) -> _C.StepAlgorithm:
        return _C.StepAlgorithm.MOMENTUM if group.get("momentum", 0) != 0 else _C.StepAlgorithm.SGD
