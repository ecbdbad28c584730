"""torchamp: mixed precision training at apex's opt levels, for today's PyTorch."""

from torchamp import amp, ops, optimizers
from torchamp._load import _C, __version__, build_info, cmake_prefix_path
from torchamp.amp._amp import Amp

LossScaler = _C.LossScaler


def install_as_apex() -> None:
    """Makes `import apex` give torchamp in this process, for programs written for apex. An apex
    that is installed keeps its own names; what it lacks is added."""
    from torchamp.compat.alias import install

    install()


__all__ = [
    "Amp",
    "LossScaler",
    "__version__",
    "amp",
    "build_info",
    "cmake_prefix_path",
    "install_as_apex",
    "ops",
    "optimizers",
]
