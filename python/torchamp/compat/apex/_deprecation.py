"""apex's deprecation warnings, for programs that filter or raise them; torchamp raises none."""

import warnings

import torch


class DeprecatedFeatureWarning(FutureWarning):
    """The category of apex's deprecation warnings."""


def deprecated_warning(msg: str) -> None:
    """Warns on the first rank, or without ranks."""
    distributed = torch.distributed
    ranked = distributed.is_available() and distributed.is_initialized()
    if not ranked or distributed.get_rank() == 0:
        warnings.warn(msg, DeprecatedFeatureWarning, stacklevel=2)
