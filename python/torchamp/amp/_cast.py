"""Stage 2: cast. A model's parameters and buffers, in place; what keep_fp32 leaves in float32; and
where errors about dtypes come from."""

from __future__ import annotations

import inspect
import itertools
import re
import traceback
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
)
from typing import Any, Union

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from torchamp._arguments import did_you_mean, takes, type_of
from torchamp._load import _C
from torchamp._shards import is_dtensor
from torchamp.amp._autocast import autocast_around
from torchamp.amp._masters import LOW_PRECISION, is_left_alone, mastered

#: The name of a module or buffer in the model, or of an argument of its forward; a module's class,
#: or a predicate of both name and module.
Rule = Union[str, type[torch.nn.Module], Callable[[str, torch.nn.Module], bool]]

_BY_PLACE = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
_BY_NAME = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


def rules_of(name: str, value: Any) -> tuple[Rule, ...]:
    """The rules in initialize's argument `name`, which has one or several. Raises TypeError."""
    ones = str, torch.Tensor, torch.nn.Module
    is_one = isinstance(value, ones) or not isinstance(value, Iterable)
    rules = (value,) if is_one else tuple(value)
    for rule in rules:
        if isinstance(rule, (type, torch.nn.Module)):
            is_right = isinstance(rule, type) and issubclass(rule, torch.nn.Module)
        else:
            is_right = isinstance(rule, str) or (callable(rule) and takes(rule, "", None))
        if not is_right:
            got = f"{type_of(rule)}; give names" if isinstance(rule, ones) else repr(rule)
            raise TypeError(
                f"initialize: expected {name} to be names, classes of modules or functions of "
                f"name and module, got {got}"
            )
    return rules


class Float32Parts:
    """What a tuple of rules keeps in float32: modules of some models, with all that is in them,
    buffers, and arguments of forward that have the name of neither.

    marks: further rules, which need not match.

    Raises ValueError for a name or a class that no model has, and for modules of DTensors.
    """

    def __init__(
        self,
        models: list[torch.nn.Module],
        rules: tuple[Rule, ...] = (),
        marks: Iterable[Rule] = (),
    ) -> None:
        #: The outermost modules, whose calls cast.
        self.outermost: list[torch.nn.Module] = []
        self._all: set[torch.nn.Module | torch.Tensor] = set()
        unused = {rule for rule in rules if isinstance(rule, (str, type))}
        for model in models:
            for name, module in model.named_modules():
                matching = [rule for rule in (*rules, *marks) if _matches(rule, name, module)]
                unused.difference_update(matching)
                if matching and module not in self._all:
                    self.outermost.append(module)
                    self._all.update(module.modules())
            for name, buffer in model.named_buffers(remove_duplicate=False):
                if name in rules:
                    unused.discard(name)
                    self._all.add(buffer)
        self._arguments = {name for name in unused if any(_keys(each, name) for each in models)}
        unused -= self._arguments
        if unused:
            wrong = min((rule for rule in unused if isinstance(rule, str)), default="")
            raise ValueError(
                "initialize: expected keep_fp32 to name modules or buffers in the models, or "
                f"arguments of their forward, got {', '.join(sorted(map(repr, unused)))}"
                f"{_hint_on(wrong, models)}"
            )
        for module in self.outermost:
            if any(map(is_dtensor, module.parameters())):
                raise ValueError(
                    "initialize: expected keep_fp32 to be modules of plain tensors, got a "
                    f"{type(module).__name__} of DTensors; give it a MixedPrecisionPolicy of its "
                    "own in fully_shard"
                )

    def __contains__(self, module_or_buffer: torch.nn.Module | torch.Tensor) -> bool:
        return module_or_buffer in self._all

    def __bool__(self) -> bool:
        return bool(self._all or self._arguments)

    def inputs_of(self, model: torch.nn.Module) -> tuple[int | str, ...]:
        """The places and names by which calls of the model may give it kept arguments."""
        return tuple(key for name in self._arguments for key in _keys(model, name))


def _hint_on(wrong: str, models: list[torch.nn.Module]) -> str:
    """What may be meant by a name that no module, buffer or argument has, which may be that of a
    parameter, several names, the name of a class, or begin with the name of a wrapper."""
    modules = {name: module for model in models for name, module in model.named_modules()}
    buffers = (name for model in models for name, _ in model.named_buffers())
    names = list(filter(None, [*modules, *buffers]))
    several = re.split(r"[,\s]+", wrong)
    if len(several) > 1 and set(several) <= set(names):
        return f"; write {several}"
    for module in modules.values():
        if type(module).__name__ == wrong:
            return f"; did you mean the class {wrong}?"
    params = [name for model in models for name, _ in model.named_parameters()]
    path = wrong.split(".")
    for tail in (".".join(path[i:]) for i in range(len(path))):
        if tail in params:
            owner = tail.rpartition(".")[0]
            remedy = f"write {owner!r}" if owner else "move it into one of its own"
            return f"; a parameter stays in float32 with its module: {remedy}"
        if tail in names:
            return f"; did you mean {tail!r}?"
    return did_you_mean(wrong, names)


def _keys(model: torch.nn.Module, argument: Any) -> list[int | str]:
    parameters = inspect.signature(model.forward).parameters
    kind = parameters[argument].kind if argument in parameters else None
    keys: list[int | str] = [list(parameters).index(argument)] if kind in _BY_PLACE else []
    return [*keys, argument] if kind in _BY_NAME else keys


def _matches(rule: Rule, name: str, module: torch.nn.Module) -> bool:
    if isinstance(rule, str):
        return bool(name) and rule == name
    if isinstance(rule, type):
        return isinstance(module, rule)
    return bool(rule(name, module))


def stays_float32(name: str, module: torch.nn.Module) -> bool:
    """Whether it has a frozen float32 parameter that no cast reaches; a rule for keep_fp32."""
    own = module.parameters(recurse=False)
    return any(param.dtype == torch.float32 and is_left_alone(param) for param in own)


#: Keeps nothing.
NONE = Float32Parts([])


def params_to_cast(
    model: torch.nn.Module, dtype: torch.dtype, keep_batchnorm_fp32: bool, kept: Float32Parts = NONE
) -> Iterator[torch.Tensor]:
    """The floating parameters that cast_model would give another dtype; a shared one may come more
    than once."""
    for _, module in _cast_modules(model, keep_batchnorm_fp32, kept):
        for param in module.parameters(recurse=False):
            if _changes(param, dtype):
                yield param


def buffers_to_cast(
    model: torch.nn.Module, dtype: torch.dtype, keep_batchnorm_fp32: bool, kept: Float32Parts
) -> Iterator[str]:
    """The names of the floating buffers that cast_model would give another dtype."""
    for path, module in _cast_modules(model, keep_batchnorm_fp32, kept):
        for name, buffer in module.named_buffers(path, recurse=False):
            if buffer not in kept and _changes(buffer, dtype):
                yield name


def cast_model(
    model: torch.nn.Module, dtype: torch.dtype, keep_batchnorm_fp32: bool, kept: Float32Parts = NONE
) -> None:
    """Gives floating parameters, their grads and floating buffers `dtype`, in place: tensors keep
    their identity. `keep_batchnorm_fp32` leaves batch norms alone. Recurrent modules get their
    weights flattened again."""
    for _, module in _cast_modules(model, keep_batchnorm_fp32, kept):
        cast_own_tensors(module, dtype, kept)
        if isinstance(module, torch.nn.RNNBase):
            _flatten(module)


def _flatten(module: torch.nn.RNNBase) -> None:
    """`module.flatten_parameters()`, which passes bfloat16 over: cuDNN would copy the weights in
    every forward."""
    module.flatten_parameters()
    weights = [weight for weight in module._flat_weights if isinstance(weight, torch.Tensor)]
    are_passed_over = all(
        weight.dtype == torch.bfloat16 and torch.cudnn_is_acceptable(weight) for weight in weights
    )
    pointers = {weight.data_ptr() for weight in weights}
    if not are_passed_over or len(pointers) < len(module._flat_weights):
        return
    with torch.no_grad():
        torch._cudnn_rnn_flatten_weight(
            weights,
            len(module._all_weights[0]),
            module.input_size,
            torch.backends.cudnn.rnn.get_cudnn_mode(module.mode),
            module.hidden_size,
            module.proj_size,
            module.num_layers,
            module.batch_first,
            module.bidirectional,
        )


def _cast_modules(
    model: torch.nn.Module, keep_batchnorm_fp32: bool, kept: Float32Parts
) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, module in model.named_modules():
        is_kept_norm = keep_batchnorm_fp32 and isinstance(module, _BatchNorm)
        if module not in kept and not is_kept_norm:
            yield name, module


def _changes(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a cast to `dtype` changes it. DTensors stay in float32: fully_shard casts what it
    gathers."""
    differs = tensor.is_floating_point() and tensor.dtype != dtype
    return differs and not is_dtensor(tensor) and not is_left_alone(tensor)


def cast_own_tensors(
    module: torch.nn.Module, dtype: torch.dtype, kept: Float32Parts = NONE
) -> None:
    """Gives the module's own floating parameters, their grads and floating buffers `dtype`."""
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        if tensor in kept or not _changes(tensor, dtype):
            continue
        grad, tensor.grad = tensor.grad, None
        _C.set_data(tensor, tensor.data.to(dtype))
        if grad is not None:
            tensor.grad = grad.to(dtype)


def explain(
    error: Exception,
    model: torch.nn.Module,
    device: torch.device,
    dtype: torch.dtype | None,
    autocast_type: torch.dtype | None = None,
) -> None:
    """Adds a note with the likely cause and a remedy to an error about dtypes that the forward of
    `model`, on `device`, has raised, if it is cast to `dtype`, or its ops to `autocast_type`, of 16
    bits. Python has notes since 3.11."""
    kind = _C.dtype_error(str(error))
    if not kind:
        return
    running = _running(model, error)
    if autocast_type is not None:
        _add_note(error, _AUTOCAST[kind].format(autocast_type) + _or_kept(running, model))
    elif dtype in LOW_PRECISION:
        notes = {"overflow": _overflow_note, "no kernel": _kernel_note, "mixed": _mismatch_note}
        around = autocast_around(dtype, device.type)
        _add_note(error, around or notes[kind](running, model))


_AUTOCAST = {
    "overflow": "the op computes in {0}, which does not hold a number of this size; write "
    "torch.finfo(x.dtype).min, of the tensor x, in the place of a number like -1e9",
    "no kernel": "torch has no kernel in {0} for this op on this device; write op(x.float())",
    "mixed": "the op has got tensors of two dtypes, for which autocast to {0} has no rule; cast "
    "one of them, as x.float()",
}


def explain_change(
    error: Exception, models: Iterable[torch.nn.Module], dtype: torch.dtype | None
) -> None:
    """Adds a note that names a parameter with a master that `models`, cast to `dtype`, have in
    another dtype by now, and a remedy."""
    for name, param in (named for model in models for named in model.named_parameters()):
        if param.dtype != dtype and mastered(param) is not None:
            note = f"parameter {name!r} is in {param.dtype}"
            if module := name.rpartition(".")[0]:
                note += f"; if a forward has cast it, initialize with keep_fp32={module!r}"
            return _add_note(error, note)


def explain_backward(error: object) -> None:
    """Adds a note with the cause and a remedy to an error about dtypes of a backward."""
    if isinstance(error, RuntimeError) and (note := _BACKWARD.get(_C.dtype_error(str(error)))):
        _add_note(error, note)


_BACKWARD = {
    "hook": "a hook of a tensor has to return its grad in the dtype that it came in, which is that "
    "of the tensor, and a mask or factor in float32 widens it; write mask.to(grad.dtype)",
    "mixed": "an op of the forward has got tensors of two dtypes; cast one of them, as "
    "target.to(output.dtype)",
}


def _add_note(error: Exception, note: str) -> None:
    if hasattr(error, "add_note"):
        error.add_note(f"torchamp: {note}")


def _overflow_note(running: list[torch.nn.Module], model: torch.nn.Module) -> str:
    dtype = _dtype_of(running)
    return (
        f"{described(running[-1], model)} computes in {dtype}, whose largest number is "
        f"{torch.finfo(dtype).max:g}; write torch.finfo(x.dtype).min, of an input x, in the place "
        f"of a number like -1e9{_or_kept(running, model)}"
    )


def _kernel_note(running: list[torch.nn.Module], model: torch.nn.Module) -> str:
    return (
        f"{described(running[-1], model)} computes in {_dtype_of(running)}, in which torch has no "
        "such kernel for the device; write op(x.float()).to(x.dtype) in its forward"
        f"{_or_kept(running, model)}"
    )


def _mismatch_note(running: list[torch.nn.Module], model: torch.nn.Module) -> str:
    dtype, module = _dtype_of(running), running[-1]
    where = described(module, model)
    if module not in set(model.modules()):
        return (
            f"{described(running[-2], model)} calls a {type(module).__name__} that initialize "
            f"has not cast to {dtype}, because it is no submodule; assign it to an attribute or "
            "put it in a torch.nn.ModuleList, before initialize"
        )
    for name, param in _added(module, dtype):
        return (
            f"parameter {name!r} of {where} is in {param.dtype}, in a model that initialize has "
            f"cast to {dtype}; add or replace modules before initialize"
        )
    return (
        f"{where} has got a tensor that is not in {dtype}; make tensors in forward in the dtype "
        "of an input x, as torch.zeros(3, dtype=x.dtype, device=x.device)"
        f"{_or_kept(running, model)}"
    )


def _or_kept(running: list[torch.nn.Module], model: torch.nn.Module) -> str:
    """The remedy where the code of the innermost module cannot be changed; none for the model
    itself, and for what is in float32 already."""
    states = (vars(module).get("_torchamp") for module in running)
    is_kept = any(state and state.input_type == torch.float32 for state in states)
    name = _name_of(running[-1], model)
    return f", or initialize with keep_fp32={name!r}" if name and not is_kept else ""


def _added(module: torch.nn.Module, dtype: torch.dtype) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters of `module` that initialize would have cast."""
    own = module.named_parameters(recurse=False)
    is_norm = isinstance(module, _BatchNorm)
    return [] if is_norm else [(name, param) for name, param in own if param.dtype != dtype]


def _running(model: torch.nn.Module, error: Exception) -> list[torch.nn.Module]:
    """`model` and the modules in it in whose calls `error` was raised, the innermost last."""
    calls = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = (call for call in (model, *calls) if isinstance(call, torch.nn.Module))
    return [module for module, _ in itertools.groupby(modules)]


def _dtype_of(running: list[torch.nn.Module]) -> torch.dtype:
    """The dtype that the innermost of them that casts its inputs computes in."""
    states = (vars(module).get("_torchamp") for module in reversed(running))
    return next(state.input_type for state in states if state and state.input_type)


def described(module: torch.nn.Module, model: torch.nn.Module) -> str:
    """Its name in the model, and its class."""
    name = _name_of(module, model)
    return f"{name!r} ({type(module).__name__})" if name else f"the model ({type(model).__name__})"


def _name_of(module: torch.nn.Module, model: torch.nn.Module) -> str:
    return next((name for name, each in model.named_modules() if each is module), "")
