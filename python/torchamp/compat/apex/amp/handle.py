"""apex.amp.handle: the contexts of apex.amp, and what amp.init returns."""

from __future__ import annotations

from typing import Any, NoReturn

from torchamp._load import _C
from torchamp.amp import disable_casts, scale_loss
from torchamp.amp._casts.autocast import Ban, OpenCasts
from torchamp.compat import _gone

__all__ = ["AmpHandle", "disable_casts", "scale_loss"]


class AmpHandle:
    """Casts of O1 in this thread, until _deactivate(). Without `casts` it does nothing."""

    def __init__(self, casts: OpenCasts | None) -> None:
        self._casts = casts
        self._shield: Any = None

    def is_active(self) -> bool:
        return self._is_active

    @property
    def _is_active(self) -> bool:
        return self._casts is not None and self._casts.is_open and self._shield is None

    @_is_active.setter
    def _is_active(self, value: bool) -> None:
        """False casts nothing in this thread until it is set again."""
        if self._shield is not None:
            self._shield.__exit__(None, None, None)
        self._shield = None if value or self._casts is None else _C.ShieldFromAutocast()
        if self._shield is not None:
            self._shield.__enter__()

    def _deactivate(self) -> None:
        """Ends the casts, and what amp.init has allowed."""
        if self._casts is not None:
            self._is_active = True
            self._casts.close()
            Ban.is_lifted = False

    def _clear_cache(self) -> None:
        """Does nothing: no casts are kept."""

    def __getattr__(self, name: str) -> NoReturn:
        message = _gone.message_of(f"apex.amp.handle.AmpHandle.{name}")
        raise AttributeError(message or f"'AmpHandle' object has no attribute {name!r}")
