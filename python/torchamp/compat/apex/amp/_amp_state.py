"""apex.amp._amp_state: the state of the last initialize. Programs use it as a module and as an
object in it of the same name, so the module is the object."""

from __future__ import annotations

import logging
import sys
import weakref
from types import ModuleType
from typing import Any

from torchamp._logging import log, warn
from torchamp.amp import master_params
from torchamp.amp._checks import Float16Models
from torchamp.amp._session import Last, Session
from torchamp.compat.apex.amp._properties import ChosenProperties
from torchamp.compat.apex.amp.handle import AmpHandle
from torchamp.compat.apex.amp.scaler import LossScaler, scalers_of

__all__ = ["AmpState", "master_params", "maybe_print", "warn_or_err"]

#: apex's views of a session's loss scalers, and of its casts.
_scalers: weakref.WeakKeyDictionary[Session, list[LossScaler]] = weakref.WeakKeyDictionary()
_handles: weakref.WeakKeyDictionary[Session, AmpHandle] = weakref.WeakKeyDictionary()


class AmpState(ModuleType):
    """The state. Attributes that initialize sets raise AttributeError before the first call, and
    once the models and optimizers of the last one are gone."""

    #: Whether what warn_or_err is given is a warning. Contradicting properties are errors always.
    hard_override = False

    #: amp.init's handle.
    legacy_handle: AmpHandle | None = None

    @property
    def verbosity(self) -> int:
        """The last initialize's; 1 without one. At 0 nothing is logged."""
        session = Last.session()
        return 1 if session is None else session.verbosity

    @verbosity.setter
    def verbosity(self, value: int) -> None:
        session = Last.session()
        if session is not None:
            session.verbosity = value

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
    def min_loss_scale(self) -> float | None:
        return _last_session().settings.options["min_loss_scale"]

    @property
    def max_loss_scale(self) -> float | None:
        return _last_session().settings.options["max_loss_scale"]

    @property
    def loss_scalers(self) -> list[LossScaler]:
        session = _last_session()
        return _scalers.setdefault(session, scalers_of(session))

    @property
    def handle(self) -> AmpHandle:
        if self.legacy_handle is not None:
            return self.legacy_handle
        session = _last_session()
        if session.casts is None:
            raise AttributeError
        return _handles.setdefault(session, AmpHandle(session.casts))

    def __getattr__(self, name: str) -> None:
        raise AttributeError(
            f"_amp_state: expected {name!r} to be an attribute that initialize sets; call "
            "initialize first, with models and optimizers that still exist"
        )

    def forget_legacy_handle(self) -> None:
        """Lets the casts of the last initialize, if it has any, replace amp.init's."""
        session = Last.session()
        if session is not None and session.casts is not None:
            self.legacy_handle = None


def _last_session() -> Session:
    session = None if Last.is_disabled else Last.session()
    if session is None:
        raise AttributeError
    return session


def maybe_print(msg: str, rank0: bool = False) -> None:
    """Logs on the first rank, unless verbosity is 0."""
    if _amp_state.verbosity > 0:
        log(logging.INFO, msg)


def warn_or_err(msg: str) -> None:
    """Raises RuntimeError; with hard_override it warns."""
    if not _amp_state.hard_override:
        raise RuntimeError(msg)
    warn(msg)


_amp_state: Any = sys.modules[__name__]
_amp_state.__class__ = AmpState
