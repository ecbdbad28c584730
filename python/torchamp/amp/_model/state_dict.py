"""State dicts and copies of a model, which come from masters and reach them."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch._subclasses import meta_utils
from torch.utils.hooks import RemovableHandle

from torchamp._load import _C
from torchamp.amp._casts.masters import LOW_PRECISION, mastered, may_be_cast


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
