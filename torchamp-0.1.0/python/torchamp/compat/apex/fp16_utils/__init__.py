"""apex.fp16_utils: mixed precision by hand, from before apex.amp."""

from torchamp.compat.apex.fp16_utils import fp16util
from torchamp.compat.apex.fp16_utils.fp16_optimizer import FP16_Optimizer
from torchamp.compat.apex.fp16_utils.fp16util import *  # noqa: F403
from torchamp.compat.apex.fp16_utils.loss_scaler import DynamicLossScaler, LossScaler

__all__ = ["DynamicLossScaler", "FP16_Optimizer", "LossScaler"]
__all__ += fp16util.__all__
