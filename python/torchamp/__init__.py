"""torchamp: mixed precision training at apex's opt levels, for today's PyTorch."""

from torchamp._load import __version__, build_info, cmake_prefix_path

from torchamp import ops

__all__ = ["__version__", "build_info", "cmake_prefix_path", "ops"]
