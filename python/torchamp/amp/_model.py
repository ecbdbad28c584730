"""Stage 2: cast. The models that initialize and cast_for_inference return.

Each stays the same object, of a subclass of its class, whose forward casts what goes in and what
comes out.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import copyreg
import dataclasses
import functools
import inspect
import operator
import types
from collections.abc import (
    Callable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
    Set,
)
from typing import Any, NoReturn, SupportsIndex

import torch
from torch.nn.parallel import DistributedDataParallel

from torchamp._in_graphs import constant_in_graphs
from torchamp._load import _C
from torchamp._logging import warn
from torchamp._shards import shard_of
from torchamp.amp._autocast import shield, warn_of_autocast
from torchamp.amp._cast import Float32Parts, explain
from torchamp.amp._masters import LOW_PRECISION, hook_state_dict, narrow_states
from torchamp.amp._ranks import DataParallel
from torchamp.amp._session import Session
from torchamp.amp._swap_class import (
    BoundForward,
    PlainState,
    Swapped,
    make_plain,
    plain_state,
    remade,
    swap_class,
    unbind_forward,
)

#: Kinds in which the caller sees what forward sets, as in attributes.
_MAPPINGS = (dict, collections.UserDict)
_SEQUENCES = (list, collections.deque)
#: An argument or what is in it, what was made of it, and the state of that before forward.
Copy = tuple[Any, Any, Any]
#: Kinds whose elements are not their attributes. Dynamo cannot ask each for a method `to`.
_BUILT_IN = (dict, list, tuple, set, frozenset)
_MUTABLE = (dict, collections.OrderedDict, list, collections.deque)


def convert(value: Any, dtype: torch.dtype) -> Any:
    """`value` with its floating tensors in `dtype`; the caller's objects stay as they are.

    Traverses mappings (keys stay), lists, tuples, named tuples, sets and iterators, and the
    attributes of dataclasses, of SimpleNamespaces and of other objects that have a method `to`,
    which is not called.
    Keeps their types, without calling __init__ of such objects, and returns the very object where
    nothing changes. Strings, arrays, modules and all else stay as they are.
    """
    return Conversion(dtype).convert(value)[0]


class Conversion:
    """Converts what one call of forward takes or returns."""

    def __init__(self, dtype: torch.dtype, copies: list[Copy] | None = None) -> None:
        self.dtype = dtype
        #: Collects what may be written; None where nobody asks.
        self.copies = copies
        #: The objects that are converted, by id: they may refer to each other.
        self._objects: dict[int, tuple[Any, bool]] = {}

    def convert(self, value: Any) -> tuple[Any, bool]:
        """`value` in the dtype, and whether it is another object: Dynamo cannot compare containers
        by identity."""
        if isinstance(value, torch.Tensor):
            if not value.is_floating_point() or value.dtype == self.dtype:
                return value, False
            if self.copies is None:
                return value.to(self.dtype), True
            return self._noted(value, self._cast(value))
        if isinstance(value, (str, bytes, torch.nn.Module, type)):
            return value, False
        if not isinstance(value, _BUILT_IN) and _is_batch(value):
            return self._convert_object(value)
        if isinstance(value, Mapping):
            converted, changes = self._convert_values(value)
            if not (changes or self._may_get_16_bits(value)):
                return value, False
            return self._noted(value, _with_values(value, converted))
        if isinstance(value, (Sequence, Set)):
            return self._convert_elements(value)
        if isinstance(value, Iterator):
            return (convert(element, self.dtype) for element in value), True
        return value, False

    def _may_get_16_bits(self, value: Any) -> bool:
        """Whether forward may leave such tensors in it, which the caller gets as outputs."""
        return self.copies is not None and self.dtype.itemsize < 4 and type(value) in _MUTABLE

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Outside of inference mode, which would not count writes to what this makes."""
        if not torch.is_inference_mode_enabled():
            return tensor.to(self.dtype)
        with torch.inference_mode(False), torch.no_grad():
            return tensor.to(self.dtype)

    def _noted(self, given: Any, made: Any) -> tuple[Any, bool]:
        if self.copies is not None:
            self.copies.append((given, made, _state(made)))
        return made, True

    def _convert_object(self, value: Any) -> tuple[Any, bool]:
        if torch.compiler.is_compiling():  # a graph would hold for objects of the same id alone
            return self._convert_attributes(value, object.__new__(type(value)))
        if id(value) not in self._objects:
            result = _empty(type(value))
            self._objects[id(value)] = result, False
            self._objects[id(value)] = self._convert_attributes(value, result)
        return self._objects[id(value)]

    def _convert_attributes(self, value: Any, result: Any) -> tuple[Any, bool]:
        own, has_own = self._convert_values(getattr(value, "__dict__", {}))
        slots, has_slots = self._convert_values(_slots_of(value))
        if result is None or not (has_own or has_slots):
            return value, False
        if own:
            vars(result).update(own)
            self._noted(vars(value), vars(result))
        for name, element in slots.items():
            object.__setattr__(result, name, element)
        return self._noted(value, result)

    def _convert_values(self, value: Mapping) -> tuple[dict, bool]:
        converted, changes = {}, False
        for key, element in value.items():
            converted[key], changed = self.convert(element)
            changes |= changed
        return converted, changes

    def _convert_elements(self, value: Sequence | Set) -> tuple[Any, bool]:
        converted, changes = [], False
        for element in value:
            result, changed = self.convert(element)
            converted.append(result)
            changes |= changed
        if not (changes or self._may_get_16_bits(value)):
            return value, False
        if hasattr(value, "_fields"):
            return type(value)(*converted), True
        return self._noted(value, _of_kind(type(value), converted))


def _name_of_argument(
    dtype: torch.dtype, forward: Callable, args: tuple, kwargs: dict, tensor: torch.Tensor
) -> str:
    """The name of the argument whose conversion to `dtype` cast `tensor`."""
    bound = inspect.signature(forward).bind(*args, **kwargs)
    for name, value in bound.arguments.items():
        copies: list[Copy] = []
        Conversion(dtype, copies).convert(value)
        if any(given is tensor for given, _, _ in copies):
            return name
    return ""


def _state(made: Any) -> Any:
    return made._version if isinstance(made, torch.Tensor) else _elements(made)


def _is_written(copy: Copy) -> bool:
    _, made, state = copy
    if isinstance(made, torch.Tensor):
        return made._version != state
    elements = _elements(made)
    return len(elements) != len(state) or not all(map(operator.is_, elements, state))


def _elements(made: Any) -> list:
    """What forward may replace in it."""
    if isinstance(made, _SEQUENCES):
        return list(made)
    if isinstance(made, _MAPPINGS):
        return [*made, *made.values()]
    return [] if isinstance(made, _BUILT_IN) else list(_slots_of(made).values())


def _is_batch(value: Any) -> bool:
    has_to = callable(getattr(value, "to", None))
    return has_to or dataclasses.is_dataclass(value) or isinstance(value, types.SimpleNamespace)


def _empty(kind: type) -> Any:
    """An object of `kind` that lacks its attributes; None for kinds that C makes."""
    try:
        base = types.SimpleNamespace if issubclass(kind, types.SimpleNamespace) else object
        return base.__new__(kind)
    except TypeError:
        return None


def _with_values(value: Mapping, converted: dict) -> Mapping:
    if type(value) is collections.OrderedDict:  # by name, for Dynamo
        return collections.OrderedDict(converted)
    if type(value) is dict or not isinstance(value, MutableMapping):
        return _of_kind(type(value), converted)
    result = copy.copy(value)
    for key, element in converted.items():
        result[key] = element
    return result


def _of_kind(kind: Callable, content: dict | list) -> Any:
    """A `kind` of `content`; plain content where a `kind` is not made that way."""
    try:
        return kind(content)
    except TypeError:
        return content


@constant_in_graphs
def _slot_names(kind: type) -> list[str]:
    return copyreg._slotnames(kind)  # type: ignore[attr-defined]


def _slots_of(value: Any) -> dict[str, Any]:
    """Its attributes that have a slot."""
    names = _slot_names(type(value))
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _write_back(
    copies: list[Copy],
    convert: Callable[[Any], Any],
    name_of: Callable[[torch.Tensor], str],
) -> None:
    """Gives arguments what forward wrote to the copies that were made of them.

    Args:
        convert: makes an output of an object that forward left in an argument.
        name_of: the name of the argument that a tensor is in, for a warning that it is not written.
    """
    written = [copy for copy in copies if _is_written(copy)]
    originals = {id(made): given for given, made, _ in copies} if written else {}

    def callers(element: Any) -> Any:
        return originals[id(element)] if id(element) in originals else convert(element)

    for given, made, _ in written:
        if isinstance(made, torch.Tensor):
            _write_tensor(given, made, name_of)
        elif isinstance(made, _SEQUENCES):
            given.clear()
            given.extend(map(callers, made))
        elif isinstance(made, _MAPPINGS):
            for key in given.keys() - made.keys():
                del given[key]
            for key, element in made.items():
                given[key] = callers(element)
        else:
            for name, element in _slots_of(made).items():
                object.__setattr__(given, name, callers(element))


def _write_tensor(given: torch.Tensor, made: torch.Tensor, name_of: Callable[[Any], str]) -> None:
    try:
        given.copy_(_merged(given, made))
    except RuntimeError as error:
        warn(
            f"forward: expected to write its argument {name_of(given)!r} back to the caller's "
            f"tensor, got one that cannot be written and stays as it was: {error}; return the new "
            "value from forward instead",
        )


def _tell_rounded(
    copies: list[Copy], dtype: torch.dtype, name_of: Callable[[torch.Tensor], str]
) -> None:
    """Warns of an argument whose numbers a cast to 16 bits moves by more than a half, as it does
    boxes, times and positions; not of masks, which have one number beside 0. Waits for the
    device."""
    for given, made, _ in copies:
        if type(given) is not torch.Tensor or not _C.has_memory(given):
            continue
        wide = given.detach()
        moved = (wide - made.detach().to(wide.dtype)).abs()
        numbers = wide[(wide != 0) & moved.isfinite()]
        if bool((moved > 0.5).any()) and bool((numbers != numbers[:1]).any()):
            return warn(
                f"forward: expected arguments whose numbers {dtype} holds, got "
                f"{name_of(given)!r}, some of which it moves by "
                f"{float(moved[moved.isfinite()].max()):.3g}; where they have to be exact, as "
                f"boxes, times and positions, initialize with keep_fp32={name_of(given)!r}"
            )


def _merged(given: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """What was not written stays unrounded, unless grads flow back through `made`."""
    if made.requires_grad:
        return made
    return torch.where(given.to(made.dtype) == made, given, made.to(given.dtype))


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
        for model in session.models():
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
        name_of = functools.partial(_name_of_argument, dtype, forward, args, kwargs)
        if not self.has_looked and self.session is not None and torch.is_grad_enabled():
            self.has_looked = True
            main = args[0] if args else None
            _tell_rounded([copy for copy in copies if copy[0] is not main], dtype, name_of)
        outputs = self._run(forward, cast_args, cast_kwargs)
        _write_back(copies, self._converted, name_of)
        return outputs

    def _run(self, forward: Callable, args: tuple, kwargs: dict) -> Any:
        """At O1 with the casts of the thread that called initialize."""
        context: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self.shielded:
            is_compiling = torch.compiler.is_compiling()
            context = shield() if is_compiling else _C.ShieldFromAutocast()
        elif self.session is not None and self.session.casts is not None:
            if not torch.compiler.is_compiling():
                context = self.session.casts.join()
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
            for state in session.states:
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
            session.hooks.extend(hook_state_dict(self))

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
            states = narrow_states(session.optimizers(), self.parameters())
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
    if low not in LOW_PRECISION and session.casts is None:
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
        session.add_part(module)


def adopt(
    model: torch.nn.Module,
    input_type: torch.dtype | None,
    output_type: torch.dtype | None,
    shielded: bool,
    session: Session | None = None,
    kept_inputs: tuple[int | str, ...] = (),
) -> None:
    """Makes `model` an AmpModel of that state, whatever it was before."""
    data_parallel = None if session is None else session.add_model(model)
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
