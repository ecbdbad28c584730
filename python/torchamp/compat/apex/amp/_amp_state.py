"""apex.amp._amp_state: the state of the last initialize. Programs use it as a module and as an
object in it of the same name, so the module is the object."""

from __future__ import annotations

import sys
import weakref
from types import ModuleType
from typing import Any

from torchamp.amp import master_params
from torchamp.amp._checks import Float16Models
from torchamp.amp._run.session import Last, Session
from torchamp.compat import _gone
from torchamp.compat.apex.amp._properties import ChosenProperties
from torchamp.compat.apex.amp.handle import AmpHandle
from torchamp.compat.apex.amp.scaler import LossScaler, scalers_of

__all__ = ["AmpState", "master_params"]

#: apex's views of a session's loss scalers, and of its casts.
_scalers: weakref.WeakKeyDictionary[Session, list[LossScaler]] = weakref.WeakKeyDictionary()
_handles: weakref.WeakKeyDictionary[Session, AmpHandle] = weakref.WeakKeyDictionary()


class AmpState(ModuleType):
    """The state. Attributes that initialize sets raise AttributeError before the first call, and
    once the models and optimizers of the last one are gone."""

    #: amp.init's handle.
    legacy_handle: AmpHandle | None = None

    @property
    def allow_incoming_model_not_fp32(self) -> bool:
        """Whether initialize takes models that are in float16 already. What it does not cast stays
        as it is."""
        return Float16Models.are_allowed

    @allow_incoming_model_not_fp32.setter
    def allow_incoming_model_not_fp32(self, value: bool) -> None:
        Float16Models.are_allowed = bool(value)

    @property
    def opt_properties(self) -> ChosenProperties:
        return ChosenProperties(None if Last.is_disabled else _last_session().settings)

    @property
    def loss_scalers(self) -> list[LossScaler]:
        session = _last_session()
        return _scalers.setdefault(session, scalers_of(session))

    @property
    def handle(self) -> AmpHandle:
        if self.legacy_handle is not None:
            return self.legacy_handle
        session = _last_session()
        if session.casts.autocast is None:
            raise AttributeError
        return _handles.setdefault(session, AmpHandle(session.casts.autocast))

    def __getattr__(self, name: str) -> None:
        raise AttributeError(
            _gone.message_of(f"apex.amp._amp_state.{name}")
            or f"_amp_state: expected {name!r} to be an attribute that initialize sets; call "
            "initialize first, with models and optimizers that still exist"
        )

    def forget_legacy_handle(self) -> None:
        """Lets the casts of the last initialize, if it has any, replace amp.init's."""
        session = Last.session()
        if session is not None and session.casts.autocast is not None:
            self.legacy_handle = None


def _last_session() -> Session:
    session = None if Last.is_disabled else Last.session()
    if session is None:
        raise AttributeError
    return session


_amp_state: Any = sys.modules[__name__]
_amp_state.__class__ = AmpState
