"""torchamp: mixed precision training at apex's opt levels, for today's PyTorch."""

from torchamp._load import build_info

__all__ = ["build_info"]
