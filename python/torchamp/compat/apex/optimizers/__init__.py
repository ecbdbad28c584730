"""apex.optimizers: torchamp's fused optimizers with apex's arguments."""

from torchamp.compat import _gone
from torchamp.compat.apex.optimizers.fused_adam import FusedAdam
from torchamp.compat.apex.optimizers.fused_lamb import FusedLAMB
from torchamp.compat.apex.optimizers.fused_novograd import FusedNovoGrad
from torchamp.compat.apex.optimizers.fused_sgd import FusedSGD

__all__ = ["FusedAdam", "FusedLAMB", "FusedNovoGrad", "FusedSGD"]

__getattr__: _gone.Getattr = _gone.attributes_of("apex.optimizers")
