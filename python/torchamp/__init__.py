"""torchamp: mixed precision training at apex's opt levels, for today's PyTorch."""

from torchamp._load import __version__, build_info, cmake_prefix_path

from torchamp import amp, ops
from torchamp.amp._amp import Amp

__all__ = ["Amp", "__version__", "amp", "build_info", "cmake_prefix_path", "ops"]
