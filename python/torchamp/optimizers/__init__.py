"""Optimizers whose step is one pass over all parameters, in float32 whatever their dtype."""

from torchamp.optimizers._fused import FusedOptimizer
from torchamp.optimizers.adam import FusedAdam, FusedAdamW
from torchamp.optimizers.lamb import FusedLAMB
from torchamp.optimizers.novograd import FusedNovoGrad
from torchamp.optimizers.sgd import FusedSGD

__all__ = [
    "FusedAdam",
    "FusedAdamW",
    "FusedLAMB",
    "FusedNovoGrad",
    "FusedOptimizer",
    "FusedSGD",
]
