"""Stage 2: cast. The models of initialize and cast_for_inference.

Each stays the same object, of a subclass of its class, whose forward casts what goes in and what
comes out.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence, Set
from typing import Any, NoReturn, SupportsIndex, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from torchamp._load import _C
from torchamp._shards import is_dtensor
from torchamp.amp._autocast import shield
from torchamp.amp._cast import cast_model
from torchamp.amp._describe import describe_model
from torchamp.amp._kept import Kept
from torchamp.amp._masters import LOW_PRECISION
from torchamp.amp._ranks.data_parallel import DataParallel
from torchamp.amp._session import Session
from torchamp.amp._state_dicts import hook_state_dict
from torchamp.amp._swap_class import Swapped, swap_class

Model = TypeVar("Model", bound=torch.nn.Module)


#: Containers of these very types have no method `to`. Dynamo cannot ask each of them.
_PLAIN = (dict, collections.OrderedDict, list, tuple, set, frozenset)


def convert(value: Any, dtype: torch.dtype) -> Any:
    """`value` with its floating tensors in `dtype`.

    Traverses mappings (keys stay), lists, tuples, named tuples, sets and iterators, keeps their
    types, and returns the very object where nothing changes. Other objects that have a method `to`
    are asked for `value.to(dtype)`. Strings, arrays, modules, dataclasses and all else stay as they
    are.
    """
    return _convert(value, dtype)[0]


def _convert(value: Any, dtype: torch.dtype) -> tuple[Any, bool]:
    """And whether it is another object: Dynamo cannot compare containers by identity."""
    if isinstance(value, torch.Tensor):
        changes = value.is_floating_point() and value.dtype != dtype
        return (value.to(dtype), True) if changes else (value, False)
    if isinstance(value, (str, bytes, torch.nn.Module, type)):
        return value, False
    if type(value) not in _PLAIN and callable(getattr(value, "to", None)):
        converted = value.to(dtype)
        return converted, converted is not value
    if isinstance(value, Mapping):
        return _convert_mapping(value, dtype)
    if isinstance(value, (Sequence, Set)):
        return _convert_elements(value, dtype)
    if isinstance(value, Iterator):
        return (convert(element, dtype) for element in value), True
    return value, False


def _convert_mapping(value: Mapping, dtype: torch.dtype) -> tuple[Mapping, bool]:
    converted, changes = {}, False
    for key, element in value.items():
        converted[key], changed = _convert(element, dtype)
        changes |= changed
    return (_with_values(value, converted), True) if changes else (value, False)


def _with_values(value: Mapping, converted: dict) -> Mapping:
    if type(value) is collections.OrderedDict:  # by name, for Dynamo
        return collections.OrderedDict(converted)
    if type(value) is dict or not isinstance(value, MutableMapping):
        return _of_kind(type(value), converted)
    result = copy.copy(value)
    for key, element in converted.items():
        result[key] = element
    return result


def _convert_elements(value: Sequence | Set, dtype: torch.dtype) -> tuple[Any, bool]:
    converted, changes = [], False
    for element in value:
        result, changed = _convert(element, dtype)
        converted.append(result)
        changes |= changed
    if not changes:
        return value, False
    if hasattr(value, "_fields"):
        return type(value)(*converted), True
    return _of_kind(type(value), converted), True


def _of_kind(kind: Callable, content: dict | list) -> Any:
    """A `kind` of `content`; plain content where a `kind` is not made that way."""
    try:
        return kind(content)
    except TypeError:
        return content


@dataclasses.dataclass
class ModelState:
    """The forward of one model, and the session that the model keeps alive."""

    input_type: torch.dtype | None
    output_type: torch.dtype | None
    #: Whether forward runs outside the autocast of other models in this thread.
    shielded: bool
    #: A forward that was bound to the object before initialize.
    inner_forward: Callable | None
    session: Session | None
    #: None if there is no session.
    data_parallel: DataParallel | None
    #: The places and names of arguments that are cast to float32, whatever the input_type.
    kept_inputs: tuple[int | str, ...] = ()

    @property
    def changes_forward(self) -> bool:
        return bool(self.input_type or self.output_type or self.inner_forward)

    def __getstate__(self) -> dict:
        """Copies and pickles cast as the original, but belong to no session."""
        return {**self.__dict__, "session": None, "data_parallel": None}

    def run(self, forward: Callable, args: tuple, kwargs: dict) -> Any:
        if (dtype := self.input_type) is not None:
            kept = dict.fromkeys(self.kept_inputs, torch.float32)
            args = tuple(convert(arg, kept.get(i, dtype)) for i, arg in enumerate(args))
            kwargs = {name: convert(arg, kept.get(name, dtype)) for name, arg in kwargs.items()}
        outputs = self._run(forward, args, kwargs)
        return outputs if self.output_type is None else convert(outputs, self.output_type)

    def _run(self, forward: Callable, args: tuple, kwargs: dict) -> Any:
        with self._context():
            return forward(*args, **kwargs)

    def _context(self) -> contextlib.AbstractContextManager[None]:
        """The context of forward: at O1 the casts of the thread that called initialize."""
        if torch.compiler.is_compiling():
            return shield() if self.shielded else contextlib.nullcontext()
        if self.shielded:
            return _C.ShieldFromAutocast()
        casts = None if self.session is None else self.session.casts
        return contextlib.nullcontext() if casts is None else casts.join()


class AmpModel(Swapped, torch.nn.Module):
    """A model that initialize returned."""

    _torchamp: ModelState

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the original, also for grads that an open scale_loss has set aside."""
        super().zero_grad(*args, **kwargs)
        if self._torchamp.session is not None:
            self._torchamp.session.note_zeroed(self)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the original's, in float32, also of modules that were added since initialize."""
        self._hook_new_modules()
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the original; reaches the masters."""
        self._hook_new_modules()
        return super().load_state_dict(*args, **kwargs)

    def _hook_new_modules(self) -> None:
        session = self._torchamp.session
        if session is not None and session.hooks:
            session.hooks.extend(hook_state_dict(self))

    def extra_repr(self) -> str:
        """As the original, and a line that says what initialize has made of it."""
        state = self._torchamp
        own = describe_model(state.session, state.input_type)
        return "\n".join(filter(None, [super().extra_repr(), own]))

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple:
        function, args, *rest = super().__reduce_ex__(protocol)
        if self._torchamp.changes_forward:
            return _rebuild, (function, args), *rest
        return function, args, *_without_state(rest)

    def __prepare_scriptable__(self) -> NoReturn:
        """torch.jit.script calls it."""
        raise RuntimeError(
            "torch.jit.script: expected a model that is not of amp, got one that initialize "
            "returned, whose forward it cannot read; use torch.compile, torch.export.export or "
            "torch.jit.trace"
        )


def _without_state(rest: list) -> list:
    """`rest` of a reduced model, without what ties it to torchamp."""
    if rest and isinstance(rest[0], dict):
        rest[0] = {name: value for name, value in rest[0].items() if name != "_torchamp"}
    return rest


def _rebuild(function: Callable, args: tuple) -> torch.nn.Module:
    model = function(*args)
    swap_class(model, AmpModel, _methods)
    return model


def _methods(original: type[torch.nn.Module]) -> dict:
    @functools.wraps(original.forward)
    def forward(self: AmpModel, *args: Any, **kwargs: Any) -> Any:
        state = self._torchamp
        wrapper, known = DistributedDataParallel._active_ddp_module, state.data_parallel
        if known is not None and (wrapper is not None or known.is_unsynced):
            known.note_forward(wrapper)
        if state.session is not None and not torch.compiler.is_compiling():
            state.session.publish_masters()
        inner = state.inner_forward or functools.partial(original.forward, self)
        return state.run(inner, args, kwargs)

    return {"forward": forward}


def adopt_model(model: torch.nn.Module, session: Session, kept: Kept) -> None:
    """Makes `model` an AmpModel that casts as the session's settings say, whatever an earlier
    session did."""
    settings, properties = session.settings, session.settings.properties
    shielded = properties.autocast_type is None
    inputs = kept.inputs_of(model)
    _set_state(model, properties.cast_model_type, settings.output_type, shielded, session, inputs)


def adopt_parts(model: torch.nn.Module, kept: Kept, session: Session) -> None:
    """Makes the kept modules in `model` cast what they are called with to float32, and, where the
    model itself is cast, those that have 16-bit parameters cast it to their dtype."""
    low = session.settings.properties.cast_model_type
    if low not in LOW_PRECISION and session.casts is None:
        return
    inside = [module for module in model.modules() if module is not model]
    for module in inside:
        if module in kept.outermost:
            _adopt_part(module, torch.float32, session)
        elif kept and module not in kept and _has_own(module, low):
            _adopt_part(module, low, session)


def _has_own(module: torch.nn.Module, dtype: torch.dtype | None) -> bool:
    return any(param.dtype == dtype for param in module.parameters(recurse=False))


def _adopt_part(module: torch.nn.Module, dtype: torch.dtype | None, session: Session) -> None:
    _set_state(module, dtype, None, shielded=dtype == torch.float32, session=None)
    session.add_part(module)


def _set_state(
    model: torch.nn.Module,
    input_type: torch.dtype | None,
    output_type: torch.dtype | None,
    shielded: bool,
    session: Session | None,
    kept_inputs: tuple[int | str, ...] = (),
) -> None:
    data_parallel = None if session is None else session.add_model(model)
    earlier = model.__dict__.get("_torchamp")
    inner_forward = model.__dict__.pop("forward", earlier and earlier.inner_forward)
    model.__dict__["_torchamp"] = ModelState(
        input_type, output_type, shielded, inner_forward, session, data_parallel, kept_inputs
    )
    if not isinstance(model, AmpModel):
        swap_class(model, AmpModel, _methods)


def cast_for_inference(
    model: Model,
    dtype: torch.dtype,
    keep_batchnorm_fp32: bool = True,
    cast_model_outputs: torch.dtype | None = torch.float32,
) -> Model:
    """Casts `model` once, in place, instead of at every call as autocast does, and returns it:
    floating parameters and buffers become `dtype`, batch norms only with
    keep_batchnorm_fp32=False. Its calls then cast floating inputs to `dtype` and outputs to
    `cast_model_outputs`; None leaves them in `dtype`.

    The model may have any floating dtype, be on any device, and be one that was trained at O0, O1
    or O4; of one that is trained at O2, O3 or O5 take a copy.deepcopy. Load its weights first; call
    eval() as for any inference.

    Raises TypeError if it is not a model or the dtype not floating, RuntimeError for a model in
    training at O2, O3 or O5, and changes nothing then.
    """
    _check(model, dtype)
    with torch.inference_mode(False), torch.no_grad():
        cast_model(model, dtype, keep_batchnorm_fp32)
    output_type = dtype if cast_model_outputs is None else cast_model_outputs
    _set_state(model, dtype, output_type, shielded=True, session=None)
    return model


def check_is_module(function: str, model: Any) -> None:
    """Raises TypeError, which names `function`, unless `model` is a module."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"{function}: expected model to be a torch.nn.Module, got a {type(model).__name__}"
        )


def _check(model: torch.nn.Module, dtype: torch.dtype) -> None:
    check_is_module("cast_for_inference", model)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"cast_for_inference: expected dtype to be floating, got {dtype!r}")
    for name, param in model.named_parameters():
        if is_dtensor(param):
            raise TypeError(
                f"cast_for_inference: expected parameter {name!r} to be a plain tensor, got a "
                "DTensor; cast before fully_shard or parallelize_module"
            )
    for name, module in model.named_modules():
        if isinstance(module, AmpModel) and _is_cast(module, module is model):
            part = f"model.{name}" if name else "model"
            raise RuntimeError(
                f"cast_for_inference: expected {part} ({type(module).__name__}) to be in float32, "
                "got one that initialize has cast for training; cast a copy.deepcopy of it"
            )


def _is_cast(module: AmpModel, is_whole: bool) -> bool:
    """Whether the module is in training in low precision, or is a part whose own forward casts."""
    state = module._torchamp
    if is_whole:
        return state.session is not None and state.input_type not in (None, torch.float32)
    return state.changes_forward
