"""The model that initialize returns: the same object, whose forward casts."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torchamp._load import _C
from torchamp.amp._convert import convert
from torchamp.amp._swap_class import Swapped, swap_class

if TYPE_CHECKING:
    from torchamp.amp._session import Session


@dataclasses.dataclass
class ModelState:
    """What forward does for one model, and the session that the model keeps alive."""

    input_type: torch.dtype | None
    output_type: torch.dtype | None
    #: Whether forward runs outside the autocast of other models in this thread.
    shielded: bool
    #: A forward that was bound to the object before initialize.
    inner_forward: Callable | None
    session: Session | None

    @property
    def changes_forward(self) -> bool:
        return bool(self.input_type or self.output_type or self.inner_forward)

    def __getstate__(self) -> dict:
        """Copies and pickles cast as the original, but belong to no session."""
        return {**self.__dict__, "session": None}

    def run(self, forward: Callable, args: tuple, kwargs: dict) -> Any:
        if self.input_type is not None:
            args = tuple(convert(arg, self.input_type) for arg in args)
            kwargs = {name: convert(arg, self.input_type) for name, arg in kwargs.items()}
        outputs = self._run(forward, args, kwargs)
        return outputs if self.output_type is None else convert(outputs, self.output_type)

    def _run(self, forward: Callable, args: tuple, kwargs: dict) -> Any:
        with self._context():
            return forward(*args, **kwargs)

    def _context(self) -> contextlib.AbstractContextManager[None]:
        """What forward runs in: at O1 the casts of the thread that called initialize."""
        if self.shielded:
            return _C.ShieldFromAutocast()
        if self.session is None or torch.compiler.is_compiling():
            return contextlib.nullcontext()
        return self.session.casts.join()


class AmpModel(Swapped):
    """A model that initialize returned."""

    def __reduce_ex__(self, protocol: int) -> tuple:
        function, args, *rest = super().__reduce_ex__(protocol)
        if self._torchamp.changes_forward:
            return _rebuild, (function, args), *rest
        return function, args, *_without_state(rest)


def _without_state(rest: list) -> list:
    """`rest` of a reduced model, without what ties it to torchamp."""
    if rest and isinstance(rest[0], dict):
        rest[0] = {name: value for name, value in rest[0].items() if name != "_torchamp"}
    return rest


def _rebuild(function: Callable, args: tuple) -> torch.nn.Module:
    model = function(*args)
    swap_class(model, AmpModel, _methods)
    return model


def _methods(original: type) -> dict:
    @functools.wraps(original.forward)
    def forward(self, *args, **kwargs):
        state = self._torchamp
        inner = state.inner_forward or functools.partial(original.forward, self)
        return state.run(inner, args, kwargs)

    return {"forward": forward}


def adopt_model(model: torch.nn.Module, session: Session) -> None:
    """Makes `model` an AmpModel that casts as the session's settings say, whatever an earlier
    session did."""
    settings = session.settings
    shielded = settings.properties.autocast_type is None
    _set_state(model, settings.input_type, settings.output_type, shielded, session)


def cast_calls(model: torch.nn.Module, input_type: torch.dtype, output_type: torch.dtype) -> None:
    """Makes `model` an AmpModel of no session whose forward casts."""
    _set_state(model, input_type, output_type, shielded=True, session=None)


def _set_state(
    model: torch.nn.Module,
    input_type: torch.dtype | None,
    output_type: torch.dtype | None,
    shielded: bool,
    session: Session | None,
) -> None:
    earlier = model.__dict__.get("_torchamp")
    inner_forward = model.__dict__.pop("forward", earlier and earlier.inner_forward)
    state = ModelState(input_type, output_type, shielded, inner_forward, session)
    model.__dict__["_torchamp"] = state
    if not isinstance(model, AmpModel):
        swap_class(model, AmpModel, _methods)
