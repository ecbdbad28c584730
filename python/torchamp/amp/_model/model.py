"""Stage 2: cast. The models that initialize and cast_for_inference return.

Each stays the same object, of a subclass of its class, whose forward casts what goes in and what
comes out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NoReturn, SupportsIndex

import torch
from torch.nn.parallel import DistributedDataParallel

from torchamp._load import _C
from torchamp._shards import shard_of
from torchamp.amp._casts.autocast import shield, warn_of_autocast
from torchamp.amp._casts.cast import Float32Parts
from torchamp.amp._casts.explain import explain
from torchamp.amp._casts.masters import LOW_PRECISION
from torchamp.amp._model.conversion import (
    Conversion,
    Copy,
    name_of_argument,
    tell_rounded,
    write_back,
)
from torchamp.amp._model.state_dict import hook_state_dict
from torchamp.amp._model.swap_class import (
    BoundForward,
    PlainState,
    Swapped,
    make_plain,
    plain_state,
    remade,
    swap_class,
    unbind_forward,
)
from torchamp.amp._optimizer.states import narrow_states
from torchamp.amp._run.ranks import DataParallel
from torchamp.amp._run.session import Session


@dataclasses.dataclass
class ModelState:
    """The forward of one model, and the session that the model keeps alive."""

    input_type: torch.dtype | None
    output_type: torch.dtype | None
    #: Whether forward runs outside the autocast of other models in this thread.
    shielded: bool
    session: Session | None
    #: None if there is no session.
    data_parallel: DataParallel | None
    #: The places and names of arguments that are cast to float32, whatever the input_type.
    kept_inputs: tuple[int | str, ...] = ()
    #: A parameter of input_type, which is float32 while its master is lent.
    cast_param: torch.nn.Parameter | None = None
    #: Whether a torch.autocast around forward has been told.
    is_autocast_told: bool = False
    #: Whether a forward that trains has looked at what the cast of its arguments loses.
    has_looked: bool = False

    @property
    def changes_forward(self) -> bool:
        return bool(self.input_type or self.output_type)

    @property
    def is_for_inference(self) -> bool:
        return self.session is None and self.output_type is not None

    def is_cast(self, is_whole: bool) -> bool:
        """Whether the model is in another dtype than float32, or, as a part of one, casts what it
        is called with."""
        is_wide = self.input_type in (None, torch.float32)
        return not is_wide if is_whole else self.changes_forward

    def __getstate__(self) -> dict:
        """Copies and pickles belong to no session, and only those for inference cast."""
        own = {**self.__dict__, "session": None, "data_parallel": None, "cast_param": None}
        return own if self.is_for_inference else {**own, "input_type": None, "shielded": False}

    def call(self, forward: Callable, args: tuple, kwargs: dict) -> Any:
        """What the model gives where `forward`, the class's or one that was bound to the object,
        is called in its place."""
        wrapper, known = DistributedDataParallel._active_ddp_module, self.data_parallel
        if known is not None and (wrapper is not None or known.is_unsynced):
            known.note_forward(wrapper)
        if self.session is not None and not torch.compiler.is_compiling():
            self.session.publish_masters()
        try:
            return self.run(forward, args, kwargs)
        except (RuntimeError, ValueError) as error:
            if self.session is not None and not torch.compiler.is_compiling():
                self._explain(error, self.session)
            raise

    def _explain(self, error: Exception, session: Session) -> None:
        properties = session.settings.properties
        dtypes = properties.cast_model_type, properties.autocast_type
        for model in session.members.models():
            if model._torchamp is self:
                explain(error, model, session.device, *dtypes)

    def run(self, forward: Callable, args: tuple, kwargs: dict) -> Any:
        if self.input_type is None:
            outputs = self._run(forward, args, kwargs)
        else:
            if torch.compiler.is_compiling() or torch._C._is_any_autocast_enabled():
                self._note_autocast()
            is_lent = self.cast_param is not None and self.cast_param.dtype == torch.float32
            dtype = torch.float32 if is_lent else self.input_type
            outputs = self._run_on_copies(dtype, forward, args, kwargs)
        return self._converted(outputs)

    def _note_autocast(self) -> None:
        """Warns once of a torch.autocast of the program around a cast model, of a session."""
        if self.session is None or self.input_type not in LOW_PRECISION:
            return
        device_type = self.session.device.type
        if torch.compiler.is_compiling():
            warn_of_autocast(self.input_type, device_type)
        elif not self.is_autocast_told:
            self.is_autocast_told = warn_of_autocast(self.input_type, device_type)

    def _converted(self, outputs: Any) -> Any:
        if self.output_type is None:
            return outputs
        return Conversion(self.output_type).convert(outputs)[0]

    def _run_on_copies(
        self, dtype: torch.dtype, forward: Callable, args: tuple, kwargs: dict
    ) -> Any:
        """The caller sees what forward writes to them, but not in graphs."""
        copies: list[Copy] | None = None if torch.compiler.is_compiling() else []
        made = Conversion(dtype, copies)
        kept: dict[int | str, Conversion] = {}
        if self.kept_inputs:
            kept = dict.fromkeys(self.kept_inputs, Conversion(torch.float32, copies))
        cast_args = tuple([kept.get(i, made).convert(arg)[0] for i, arg in enumerate(args)])
        cast_kwargs = {name: kept.get(name, made).convert(arg)[0] for name, arg in kwargs.items()}
        if not copies:
            return self._run(forward, cast_args, cast_kwargs)
        name_of = functools.partial(name_of_argument, dtype, forward, args, kwargs)
        if not self.has_looked and self.session is not None and torch.is_grad_enabled():
            self.has_looked = True
            main = args[0] if args else None
            tell_rounded([copy for copy in copies if copy[0] is not main], dtype, name_of)
        outputs = self._run(forward, cast_args, cast_kwargs)
        write_back(copies, self._converted, name_of)
        return outputs

    def _run(self, forward: Callable, args: tuple, kwargs: dict) -> Any:
        """At O1 with the casts of the thread that called initialize, and with its float8."""
        context: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        is_compiling, session = torch.compiler.is_compiling(), self.session
        float8 = None if session is None or is_compiling else session.casts.float8
        if self.shielded and float8 is None:  # its forward has a shield of its own
            context = shield() if is_compiling else _C.ShieldFromAutocast()
        elif session is not None and session.casts.autocast is not None and not is_compiling:
            context = session.casts.autocast.join()
        if float8 is not None:
            with _C.Float8Forward(float8), context:
                return forward(*args, **kwargs)
        with context:
            return forward(*args, **kwargs)


class AmpModel(Swapped, torch.nn.Module):
    """A model that initialize returned."""

    _torchamp: ModelState

    @staticmethod
    def _torchamp_methods(original: type[torch.nn.Module]) -> dict[str, Any]:
        @functools.wraps(original.forward)
        def forward(self: AmpModel, *args: Any, **kwargs: Any) -> Any:
            return self._torchamp.call(functools.partial(original.forward, self), args, kwargs)

        return {"forward": forward}

    def __setattr__(self, name: str, value: Any) -> None:
        """As the original. What is bound as `forward` is called as the class's is."""
        if name == "forward" and not isinstance(value, BoundForward):
            value = BoundForward(value, self._torchamp)
        super().__setattr__(name, value)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the original, also for grads that an open scale_loss has set aside."""
        super().zero_grad(*args, **kwargs)
        session = self._torchamp.session
        if session is not None:
            params = [shard_of(param) for param in self.parameters()]
            for state in session.members.states:
                state.note_zeroed(params)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the original's, in float32, also of modules that were added since initialize."""
        self._hook_new_modules()
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the original; reaches the masters."""
        self._hook_new_modules()
        if (session := self._torchamp.session) is not None:
            session.forget_writes()
        return super().load_state_dict(*args, **kwargs)

    def _hook_new_modules(self) -> None:
        session = self._torchamp.session
        if session is not None and session.settings.properties.cast_model_type in LOW_PRECISION:
            session.members.hooks.extend(hook_state_dict(self))

    def extra_repr(self) -> str:
        """As the original, and a line that says what initialize has made of it."""
        state = self._torchamp
        if state.session is not None:
            own = f"torchamp: {state.session.settings.properties}"
        else:  # its calls alone are cast
            own = f"torchamp: called with {str(state.input_type).replace('torch.', '')}"
        return "\n".join(filter(None, [super().extra_repr(), own]))

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple:
        """Copies and pickles are plain float32 models. Those of cast_for_inference cast as it
        does."""
        function, args, *rest = super().__reduce_ex__(protocol)
        own, *items = rest or [None]
        if (session := self._torchamp.session) is not None:
            states = narrow_states(session.members.optimizers(), self.parameters())
            tensors = (*self.parameters(), *self.buffers(), *states)
            own = plain_state(own, tensors, session.settings.properties.cast_model_type)
        return remade, (AmpModel, function, args), own, *items

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, PlainState):
            state.set(super().__setstate__)
            make_plain(self)
        else:
            super().__setstate__(state)

    def __prepare_scriptable__(self) -> NoReturn:
        """torch.jit.script calls it."""
        raise RuntimeError(
            "torch.jit.script: expected a model that is not of amp, got one that initialize "
            "returned, whose forward it cannot read; use torch.compile, torch.jit.trace, or "
            "torch.export.export"
        )


def adopt_model(model: torch.nn.Module, session: Session, kept: Float32Parts) -> None:
    """Makes `model` an AmpModel that casts as the session's settings say, whatever an earlier
    session did. The kept modules in it cast what they are called with to float32, and, where the
    model itself is cast, those that have 16-bit parameters cast it to their dtype."""
    settings, properties = session.settings, session.settings.properties
    low, shielded = properties.cast_model_type, properties.autocast_type is None
    adopt(model, low, settings.output_type, shielded, session, kept.inputs_of(model))
    if low not in LOW_PRECISION and session.casts.autocast is None:
        return
    inside = [module for module in model.modules() if module is not model]
    for module in inside:
        own = {param.dtype for param in module.parameters(recurse=False)}
        if module in kept.outermost:
            adopt(module, torch.float32, None, shielded=True)
        elif kept and module not in kept and low in own:
            adopt(module, low, None, shielded=False)
        else:
            continue
        session.members.add_part(module)


def adopt(
    model: torch.nn.Module,
    input_type: torch.dtype | None,
    output_type: torch.dtype | None,
    shielded: bool,
    session: Session | None = None,
    kept_inputs: tuple[int | str, ...] = (),
) -> None:
    """Makes `model` an AmpModel of that state, whatever it was before."""
    data_parallel = None if session is None else session.members.add_model(model, session.scalers)
    earlier = model.__dict__.get("_torchamp")
    cast = input_type if input_type in LOW_PRECISION else None
    cast_param = next((param for param in model.parameters() if param.dtype == cast), None)
    model.__dict__["_torchamp"] = state = ModelState(
        input_type, output_type, shielded, session, data_parallel, kept_inputs, cast_param
    )
    if "forward" in vars(model):
        unbind_forward(model)
        model.__dict__["forward"] = BoundForward(model.__dict__["forward"], state)
    if earlier and earlier.session:
        earlier.session.close_if_left()
    if not isinstance(model, AmpModel):
        swap_class(model, AmpModel)
