"""Stage 3: keep masters. Which parameters have one, how others find it, who accesses it, and state
dicts of the model that come from masters and reach them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from torchamp._arguments import expect
from torchamp._load import _C
from torchamp._shards import is_dtensor, shard_of
from torchamp.optimizers import FusedOptimizer

LOW_PRECISION = (torch.float16, torch.bfloat16)


def mastered(model_param: torch.Tensor) -> _C.Param | None:
    """The Param of a model's tensor that has a master of its own; None if it has none."""
    found = _C.param_of(model_param)
    return found if found is not None and found.has_master else None


def check_optimizer(function: str, optimizer: Any) -> None:
    """Raises TypeError unless it has parameters in groups, as a torch.optim.Optimizer has."""
    is_right = hasattr(optimizer, "param_groups")
    expect(is_right, function, "optimizer", "a torch.optim.Optimizer", optimizer)


def params_of(optimizers: list[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """Every tensor in the optimizers' groups, in order."""
    return [
        param
        for optimizer in optimizers
        for group in optimizer.param_groups
        for param in group["params"]
    ]


def adopt(
    core: _C.OptimizerState,
    function: str,
    param: torch.Tensor,
    masters: dict[torch.Tensor, torch.Tensor],
    keeps_masters: bool,
) -> torch.Tensor:
    """Makes `core` step `param` and returns what the optimizer is to hold for it: the master it has
    already, the one in `masters`, a new one if it is of low precision and masters are kept, or
    itself. Of a DTensor the shard is stepped, as its own master. Raises ValueError, which names
    `function`, where another optimizer steps the master."""
    if is_dtensor(param):
        core.add(function, shard_of(param))
        return param
    stepped = core.add(function, param, masters.get(param), keeps_masters)
    if stepped is not param and getattr(param, "grad_dtype", None) == param.dtype:
        # The program may assign float32 grads, as masters have them. Before 2.11, torch takes
        # grads of the parameter's own dtype alone.
        param.grad_dtype = None
    return stepped


class AccessTracker:
    """Whether anyone but torchamp has accessed an optimizer's masters."""

    def __init__(self, core: _C.OptimizerState) -> None:
        self._core = core
        self.suppressions = _C.Suppressions()
        self._covered = type("CoveredMaster", (CoveredMaster,), {"_tracker": weakref.ref(self)})

    def cover(self, master: torch.Tensor) -> None:
        """Makes every use of the master by torch's functions count as an access."""
        master.__class__ = self._covered

    def record(self) -> None:
        """Records an access: from now on masters have grads, also those of the last backward.
        References may have been kept, so this is permanent."""
        if self._core.lazy:
            self.show()

    def show(self) -> None:
        """Records an access, whose masters' grads must be what a step would use now."""
        if self.suppressions.are_open:
            return
        self._core.lazy = False
        for master in self._core.master_params():
            if type(master) is self._covered:
                master.__class__ = torch.Tensor

    def suppress(self) -> _C.Suppressed:
        """A context for torchamp's own accesses, which do not count."""
        return _C.Suppressed([self.suppressions])


class CoveredMaster(torch.Tensor):
    """A master that records an access when one of torch's functions is about to use it, alone or
    in a list, which C reads bypassing a MasterList's methods."""

    #: Weakly, because the masters' owner, which the tracker has, owns this class by its masters.
    _tracker: weakref.ref[AccessTracker]

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Iterable[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        for kind in types:
            tracker = kind._tracker() if issubclass(kind, CoveredMaster) else None
            if tracker is not None:
                tracker.record()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class MasterList(list):
    """`group["params"]`, which records an access when its elements are read: for libraries that
    use no function of torch's."""

    def __init__(self, params: list[torch.Tensor], tracker: AccessTracker) -> None:
        super().__init__(params)
        self._tracker = tracker

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._tracker.record()
        return super().__iter__()

    def __reversed__(self) -> Iterator[torch.Tensor]:
        self._tracker.record()
        return super().__reversed__()

    def __getitem__(self, index: Any) -> Any:
        self._tracker.record()
        return super().__getitem__(index)

    def __add__(self, other: list) -> list:
        return list(self) + other

    def __radd__(self, other: list) -> list:
        return other + list(self)

    def copy(self) -> list:
        return list(self)

    def __reduce_ex__(self, protocol: Any) -> tuple:
        """Copies and pickles are plain lists."""
        return list, (list(self),)


def hook_state_dict(model: torch.nn.Module) -> Iterator[RemovableHandle]:
    """Lets model.state_dict() give float32, and model.load_state_dict() reach the masters, until
    the handles are removed.

    The hooks, on every module for its own tensors, are functions that find masters by the
    parameter.
    """
    for module in model.modules():
        if _give_float32 in module._state_dict_hooks.values():
            continue
        yield module.register_state_dict_post_hook(_give_float32)
        yield module.register_load_state_dict_pre_hook(_load_masters)
        yield module.register_load_state_dict_post_hook(_mark_synced)


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
    return getattr(hook, "hook", hook) in (_give_float32, _load_masters, _mark_synced)


def _own_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for named in (module._parameters, module._buffers):
        for name, tensor in named.items():
            if tensor is not None:
                yield name, tensor


def _give_float32(
    module: torch.nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: dict
) -> None:
    for name, tensor in _own_tensors(module):
        given = state_dict.get(prefix + name)
        if not isinstance(given, torch.Tensor) or given.dtype not in LOW_PRECISION:
            continue
        if given is not tensor:  # as with keep_vars
            state_dict[prefix + name] = float32_of(tensor, given)


def float32_of(tensor: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """The master where the model still holds it, rounded. Something else may have been swapped in,
    bypassing the version counter, by code that averages or clamps weights."""
    param = mastered(tensor)
    if param is None:
        return given.float()
    param.publish_master()
    return param.value()


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


def fitting(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    state: dict[str, Any],
    stepped: torch.Tensor,
) -> dict[str, Any]:
    """`state`, which the optimizer made before initialize, in the dtype of what it steps now, as
    its load_state_dict() gives it; torch's Adagrad, unless it is fused, keeps wider sums."""
    if isinstance(optimizer, FusedOptimizer):
        return state
    keeps_wide = isinstance(optimizer, torch.optim.Adagrad) and not group.get("fused")

    def fit(name: str, value: Any) -> Any:
        if name == "step" or not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        is_wide = value.element_size() > stepped.element_size()
        return value if keeps_wide and is_wide else value.to(stepped.dtype)

    return {name: fit(name, value) for name, value in state.items()}
