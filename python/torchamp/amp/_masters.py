"""Stage 3: keep masters. Which parameters have one, how others find it, and state dicts of the
model that come from masters and reach them."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any

import torch
from torch._subclasses import FakeTensor, meta_utils
from torch.utils.hooks import RemovableHandle

from torchamp._arguments import expect, listed
from torchamp._load import _C
from torchamp._logging import warn
from torchamp._shards import shard_of
from torchamp.optimizers import FusedOptimizer

LOW_PRECISION = (torch.float16, torch.bfloat16)


def is_left_alone(tensor: torch.Tensor) -> bool:
    """Whether it is a frozen tensor of a class that keeps its elements elsewhere, as those of
    quantized bases do. It stays as it is at every level."""
    dispatch = type(tensor).__torch_dispatch__
    has_own = dispatch is not torch.Tensor.__torch_dispatch__ and not isinstance(tensor, FakeTensor)
    may_be = has_own and not tensor.requires_grad and tensor.layout is torch.strided
    return may_be and not _C.has_memory(shard_of(tensor))


def may_be_cast(tensor: torch.Tensor) -> bool:
    """Whether initialize may have given it its 16 bits."""
    return tensor.dtype in LOW_PRECISION and not is_left_alone(tensor)


def mastered(model_param: torch.Tensor) -> _C.Param | None:
    """The Param of a model's tensor that has a master of its own; None if it has none."""
    found = _C.param_of(model_param)
    return found if found is not None and found.has_master else None


def check_optimizer(function: str, optimizer: Any, name: str = "optimizer") -> None:
    """Raises TypeError, which names the function and the argument, unless it has parameters in
    groups, as a torch.optim.Optimizer has."""
    has_params = isinstance(optimizer, (torch.nn.Module, torch.Tensor))
    if has_params:
        remedy = "pass the optimizer that trains it"
    else:
        is_some = isinstance(optimizer, Iterable) and not isinstance(optimizer, str)
        remedy = "pass the optimizer itself" if is_some else ""
    is_right = hasattr(optimizer, "param_groups")
    expect(is_right, function, name, "a torch.optim.Optimizer", optimizer, remedy)


def params_of(optimizers: list[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """Every tensor in the optimizers' groups, in order."""
    return [
        param
        for optimizer in optimizers
        for group in optimizer.param_groups
        for param in group["params"]
    ]


def listed_optimizers(function: str, values: Any, name: str = "optimizers") -> list:
    """Optimizers, or one, as a list. Raises TypeError, which names the function and the argument,
    for anything else."""
    chosen = listed(function, name, values)
    for i, optimizer in enumerate(chosen):
        check_optimizer(function, optimizer, f"{name}[{i}]")
    return chosen


def fit_states(optimizer: torch.optim.Optimizer, params: Iterable[torch.Tensor]) -> None:
    """Gives the states of those of `params` that were cast, and have no master, the dtype that the
    optimizer's load_state_dict() gives them, except for wide sums."""
    keeps_wide = keeps_wide_sums(optimizer)
    for param in params:
        fitted = {
            name: value.to(param.dtype)
            for name, value in _fitting_states(optimizer, param)
            if value.dtype != param.dtype
            and (not keeps_wide or value.element_size() < param.element_size())
        }
        if fitted:
            optimizer.state[param] = {**optimizer.state[param], **fitted}


def keeps_wide_sums(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is torch's Adagrad, which, unless fused, has float32 sums of 16-bit parameters."""
    is_adagrad = isinstance(optimizer, torch.optim.Adagrad)
    return is_adagrad and not any(group.get("fused") for group in optimizer.param_groups)


def is_scalar_state(value: torch.Tensor, param: torch.Tensor) -> bool:
    """Whether it is one number for the whole parameter, as NAdam's product of momenta is, which
    torch computes in float32."""
    return value.dim() == 0 < param.dim()


def narrow_states(
    optimizers: Iterable[torch.optim.Optimizer], params: Iterable[torch.Tensor]
) -> list[torch.Tensor]:
    """The 16-bit states of those of `params` that have no master."""
    every = list(params)
    return [
        value
        for optimizer in optimizers
        for param in every
        for _, value in _fitting_states(optimizer, param)
        if value.dtype in LOW_PRECISION
    ]


def made_narrow(states: dict[Any, Any]) -> Iterator[str]:
    """The names of the 16-bit states of parameters with masters. After a step, they are those that
    the step has made so, of float32 parameters."""
    for param, state in states.items():
        if isinstance(state, dict) and isinstance(param, torch.Tensor) and mastered(param):
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.dtype in LOW_PRECISION:
                    yield name


def _fitting_states(
    optimizer: torch.optim.Optimizer, param: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    """The states, by name, that are to have their parameter's dtype."""
    state: Any = optimizer.state.get(param)
    is_plain = isinstance(state, dict) and mastered(param) is None
    if not is_plain or isinstance(optimizer, FusedOptimizer):
        return
    for name, value in state.items():
        is_tensor = isinstance(value, torch.Tensor) and name != "step"
        if not is_tensor or is_scalar_state(value, param):
            continue
        if value.dtype in (*LOW_PRECISION, torch.float32):
            yield name, value


def tell_copies(states: Any) -> None:
    """Warns of an optimizer whose parameters have 16 bits, and their states 32: a copy, without its
    model, of one that initialize returned."""
    for param, state in states.items() if isinstance(states, dict) else ():
        is_narrow = isinstance(param, torch.Tensor) and param.dtype in LOW_PRECISION
        values = state.values() if is_narrow and isinstance(state, dict) else ()
        if any(isinstance(v, torch.Tensor) and v.shape == param.shape for v in values) and all(
            v.dtype == torch.float32 for v in values if isinstance(v, torch.Tensor)
        ):
            warn(
                "step: expected an optimizer that initialize returned, got one that steps "
                "parameters of 16 bits by states of 32, as a copy without its model does; copy "
                "both: copy.deepcopy((model, optimizer)) gives them in float32"
            )
            return


class _Given:
    """What the state dict that was made last got of each tensor, which the tensor's other names
    there get too."""

    state_dict: weakref.ref[Any] | None = None
    values: MutableMapping[int, torch.Tensor]

    @staticmethod
    def to(state_dict: dict[str, Any]) -> MutableMapping[int, torch.Tensor]:
        if not isinstance(state_dict, OrderedDict):  # torch's own is one
            return {}
        if _Given.state_dict is None or _Given.state_dict() is not state_dict:
            _Given.state_dict = weakref.ref(state_dict)
            _Given.values = weakref.WeakValueDictionary()
        return _Given.values


def hook_state_dict(model: torch.nn.Module) -> Iterator[RemovableHandle]:
    """Lets model.state_dict() and deep copies of its modules give float32, and
    model.load_state_dict() reach the masters, until the handles are removed.

    The hooks, on every module for its own tensors, find masters by the parameter. Scripted modules,
    which take none, have no tensors that initialize cast.
    """
    for module in model.modules():
        is_scripted = isinstance(module, torch.jit.ScriptModule)
        if is_scripted or any(map(_is_ours, module._state_dict_hooks.values())):
            continue
        yield module.register_state_dict_post_hook(_Float32Values(module))
        yield module.register_load_state_dict_pre_hook(_load_masters)
        yield module.register_load_state_dict_post_hook(_mark_synced)


def let_models_be_exported() -> None:
    """torch.export makes fake twins of parameters, which take no grad of another dtype than their
    own. From now on it makes those of parameters that have such grads without them, if this torch
    has the class that does it."""
    describer: Any = getattr(meta_utils, "MetaTensorDescriber", None)
    describe = getattr(describer, "describe_tensor", None)
    if describe is None or hasattr(describe, "is_torchamps"):
        return

    @functools.wraps(describe)
    def without_wide_grad(self: Any, t: torch.Tensor, **options: Any) -> Any:
        is_narrow = t.dtype in LOW_PRECISION and t.is_leaf
        if not is_narrow or t.grad is None or t.grad.dtype == t.dtype:
            return describe(self, t, **options)
        grad, t.grad = t.grad, None
        try:
            return describe(self, t, **options)
        finally:
            _C.set_grad(t, grad)

    without_wide_grad.is_torchamps = True  # type: ignore[attr-defined]
    describer.describe_tensor = without_wide_grad


def unhook_state_dict(model: torch.nn.Module) -> None:
    """Undoes hook_state_dict in a copy, whose hooks have no handles."""
    for module in model.modules():
        for hooks in (
            module._state_dict_hooks,
            module._load_state_dict_pre_hooks,
            module._load_state_dict_post_hooks,
        ):
            for key in [key for key, hook in hooks.items() if _is_ours(hook)]:
                del hooks[key]


def _is_ours(hook: Any) -> bool:
    """torch wraps some hooks."""
    is_function = getattr(hook, "hook", hook) in (_load_masters, _mark_synced)
    return is_function or isinstance(hook, _Float32Values)


def _own_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for named in (module._parameters, module._buffers):
        for name, tensor in named.items():
            if tensor is not None:
                yield name, tensor


class _Float32Values:
    """The hook by which a module gives float32 values, to state dicts and to its deep copies. A
    copy has one without a module, which does nothing."""

    def __init__(self, module: torch.nn.Module | None = None) -> None:
        self.module = weakref.ref(module) if module is not None else None

    def __call__(
        self, module: torch.nn.Module, state_dict: dict[str, Any], prefix: str, metadata: dict
    ) -> None:
        values = _Given.to(state_dict)
        for name, tensor in _own_tensors(module) if self.module else ():
            given = state_dict.get(prefix + name)
            if not isinstance(given, torch.Tensor) or not may_be_cast(given):
                continue
            if given is tensor:  # as with keep_vars
                continue
            wide = values.get(id(tensor))
            if wide is None:
                wide = values[id(tensor)] = float32_of(tensor, given, may_alias=True)
            state_dict[prefix + name] = wide

    def __deepcopy__(self, memo: dict[int, Any]) -> _Float32Values:
        """Called after the module's tensors were copied, which come before its hooks."""
        module = self.module() if self.module is not None else None
        for _, tensor in _own_tensors(module) if module is not None else ():
            if id(tensor) in memo and may_be_cast(tensor):
                memo[id(tensor)].data = float32_of(tensor, tensor.detach())
        return _Float32Values()

    def __reduce__(self) -> tuple:
        return _Float32Values, ()


def float32_of(
    tensor: torch.Tensor, given: torch.Tensor, *, may_alias: bool = False
) -> torch.Tensor:
    """The master where the model still holds it, rounded. Something else may have been swapped in,
    bypassing the version counter, by code that averages or clamps weights. may_alias: the master
    itself, where the model holds all of it, so that what is written to it counts."""
    param = mastered(tensor)
    if param is None:
        return given.float()
    param.publish_master()
    return param.entry() if may_alias else param.value()


def _load_masters(
    module: torch.nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    local_metadata: dict,
    strict: bool,
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
) -> None:
    hooks = (hook for hook in module._state_dict_hooks.values() if isinstance(hook, _Float32Values))
    if not any(hook.module for hook in hooks):  # a copy
        return
    if local_metadata.get("assign_to_params_buffers", False):
        raise RuntimeError(
            "load_state_dict: expected assign=False for a model that initialize has cast, got "
            "True, which would replace the optimizer's parameters; "
            "load without assign, or before initialize"
        )
    for name, param in _own_tensors(module):
        found, loaded = mastered(param), state_dict.get(prefix + name)
        if found is None or not isinstance(loaded, torch.Tensor) or loaded.shape != param.shape:
            continue
        found.set_master(loaded)


def _mark_synced(module: torch.nn.Module, incompatible_keys: Any) -> None:
    for _, param in _own_tensors(module):
        found = mastered(param)
        if found is not None and found.is_rounded_master():
            found.mark_synced()
