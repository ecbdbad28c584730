"""The module that `import apex` gives under the alias."""

import torch

from torchamp.compat import _gone
from torchamp.compat.apex import amp, fp16_utils, multi_tensor_apply, normalization, optimizers

__all__ = ["amp", "fp16_utils", "multi_tensor_apply", "normalization", "optimizers"]

if torch.distributed.is_available():
    from torchamp.compat.apex import parallel  # noqa: F401  as in apex, only then

    __all__.append("parallel")

__getattr__: _gone.Getattr = _gone.attributes_of("apex")

#: The version of the apex whose names these are.
__version__ = "0.1"
