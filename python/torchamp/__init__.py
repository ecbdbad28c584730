"""torchamp: mixed precision training at apex's opt levels, for today's PyTorch."""

from torchamp import amp, ops, optimizers
from torchamp._load import _C, __version__, build_info, cmake_prefix_path
from torchamp.amp._amp import Amp

LossScaler = _C.LossScaler

__all__ = [
    "Amp",
    "LossScaler",
    "__version__",
    "amp",
    "build_info",
    "cmake_prefix_path",
    "ops",
    "optimizers",
]
