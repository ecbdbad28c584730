"""apex's deprecation warnings, for programs that filter or raise them; torchamp raises none."""

import warnings

from torchamp._logging import is_rank_zero


class DeprecatedFeatureWarning(FutureWarning):
    """The category of apex's deprecation warnings."""


def deprecated_warning(msg: str) -> None:
    """Warns on the first rank, or without ranks."""
    if is_rank_zero():
        warnings.warn(msg, DeprecatedFeatureWarning, stacklevel=2)
