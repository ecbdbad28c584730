"""Stage 2: cast. A model's parameters and buffers, in place; what keep_fp32 leaves in float32; and
where errors about dtypes come from."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Union

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from torchamp._arguments import did_you_mean, takes, type_of
from torchamp._load import _C
from torchamp._shards import is_dtensor
from torchamp.amp._casts.masters import is_left_alone

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
