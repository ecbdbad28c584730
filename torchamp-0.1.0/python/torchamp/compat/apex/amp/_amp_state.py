"""apex.amp._amp_state: the state of the last initialize. Programs use it as a module and as an
object in it of the same name, so the module is the object."""

from __future__ import annotations

import logging
import sys
import weakref
from types import ModuleType
from typing import Any

from torchamp._logging import log
from torchamp.amp import master_params
from torchamp.amp._amp import Last
from torchamp.amp._checks import Float16Models
from torchamp.amp._session import Session
from torchamp.amp._settings import Settings
from torchamp.compat.apex.amp.handle import AmpHandle
from torchamp.compat.apex.amp.scaler import LossScaler, SessionScaler

__all__ = ["AmpState", "master_params", "maybe_print"]

#: By session: apex's view of its loss scalers, and of its casts.
_scalers: weakref.WeakKeyDictionary[Session, list[LossScaler]] = weakref.WeakKeyDictionary()
_handles: weakref.WeakKeyDictionary[Session, AmpHandle] = weakref.WeakKeyDictionary()


class Properties:
    """A level's properties, as attributes and in the dict `options`."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.options: dict[str, Any] = _options_of(settings)

    def __getattr__(self, name: str) -> Any:
        options = self.__dict__.get("options", {})
        if name not in options:
            raise AttributeError(f"Properties: expected one of {', '.join(options)}, got {name!r}")
        return options[name]


def _options_of(settings: Settings | None) -> dict[str, Any]:
    properties = None if settings is None else settings.properties
    casts_ops = properties is not None and properties.autocast_type is not None
    return {
        "enabled": settings is not None,
        "opt_level": properties and properties.opt_level,
        "cast_model_type": properties and properties.cast_model_type,
        "patch_torch_functions": casts_ops,
        "keep_batchnorm_fp32": properties and properties.keep_batchnorm_fp32,
        "master_weights": properties and properties.master_weights,
        "loss_scale": properties.loss_scale if properties else 1.0,
    }


class AmpState(ModuleType):
    """The state. Attributes that initialize sets raise AttributeError before the first call, and
    once the models and optimizers of the last one are gone."""

    #: Accepted, and without effect: contradicting properties are always errors.
    hard_override = False

    verbosity = 1

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
    def opt_properties(self) -> Properties:
        return Properties() if Last.is_disabled else Properties(_last_session().settings)

    @property
    def min_loss_scale(self) -> float | None:
        return _last_session().settings.options["min_loss_scale"]

    @property
    def max_loss_scale(self) -> float | None:
        return _last_session().settings.options["max_loss_scale"]

    @property
    def loss_scalers(self) -> list[LossScaler]:
        session = _last_session()
        own: list[LossScaler] = [SessionScaler(session, i) for i in range(len(session.scalers))]
        return _scalers.setdefault(session, own)

    @property
    def handle(self) -> AmpHandle:
        if self.legacy_handle is not None:
            return self.legacy_handle
        session = _last_session()
        if session.casts is None:
            raise AttributeError
        return _handles.setdefault(session, AmpHandle(casts=session.casts))

    def __getattr__(self, name: str) -> None:
        raise AttributeError(
            f"_amp_state: expected {name!r} to be an attribute that initialize sets; call "
            "initialize first, with models and optimizers that still exist"
        )

    def forget_legacy_handle(self) -> None:
        """Lets the casts of the last initialize, if it has any, take the place of amp.init's."""
        session = Last.session()
        if session is not None and session.casts is not None:
            self.legacy_handle = None


def _last_session() -> Session:
    session = None if Last.is_disabled else Last.session()
    if session is None:
        raise AttributeError
    return session


def maybe_print(msg: str, rank0: bool = False) -> None:
    """Logs on the first rank."""
    log(logging.INFO, msg)


_amp_state: Any = sys.modules[__name__]
_amp_state.__class__ = AmpState
