"""The precision plugin for programs that import `pytorch_lightning`."""

from __future__ import annotations

from pytorch_lightning import Callback
from pytorch_lightning.plugins.precision import Precision

from torchamp._tools.lightning import PrecisionMethods, ReleaseMethods


class _Release(ReleaseMethods, Callback):
    """Ends amp with the fit."""


class AmpPrecision(PrecisionMethods, Precision):
    __doc__ = PrecisionMethods.__doc__

    _release_callback = _Release


__all__ = ["AmpPrecision"]
