"""torchamp: mixed precision training at apex's opt levels, for today's PyTorch."""

from torchamp import amp, ops, optimizers
from torchamp._load import _C, __version__, build_info, cmake_prefix_path
from torchamp.amp._amp import Amp
from torchamp.amp._casts.autocast import autocast
from torchamp.amp._grad_scaler import GradScaler
from torchamp.amp._policy import global_policy, set_global_policy

LossScaler = _C.LossScaler


def install_as_apex() -> None:
    """Makes `import apex` give torchamp in this process, for programs written for apex. An apex
    that is installed keeps its own names; missing ones are added."""
    from torchamp.compat.alias import install

    install()


__all__ = [
    "Amp",
    "GradScaler",
    "LossScaler",
    "__version__",
    "amp",
    "autocast",
    "build_info",
    "cmake_prefix_path",
    "global_policy",
    "install_as_apex",
    "ops",
    "optimizers",
    "set_global_policy",
]
