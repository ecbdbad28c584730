"""The precision plugin for programs that import `lightning.pytorch`."""

from __future__ import annotations

from lightning.pytorch import Callback
from lightning.pytorch.plugins.precision import Precision

from torchamp._tools.lightning import PrecisionMethods, ReleaseMethods


class _Release(ReleaseMethods, Callback):
    """Ends amp with the fit."""


class AmpPrecision(PrecisionMethods, Precision):
    __doc__ = PrecisionMethods.__doc__

    _release_callback = _Release


__all__ = ["AmpPrecision"]
