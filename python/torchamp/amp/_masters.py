"""Stage 3: keep masters. Which parameters have one, how others find it, and who accesses it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from torchamp._arguments import expect
from torchamp._load import _C
from torchamp._shards import is_dtensor, shard_of

LOW_PRECISION = (torch.float16, torch.bfloat16)


def mastered(model_param: torch.Tensor) -> _C.Param | None:
    """The Param of a model's tensor that has a master of its own; None if it has none."""
    found = _C.param_of(model_param)
    return found if found is not None and found.has_master else None


def make_masters(
    params: Iterable[torch.Tensor], optimizers: list[torch.optim.Optimizer]
) -> dict[torch.Tensor, torch.Tensor]:
    """float32 masters of those of `params` that the optimizers step, by parameter; to be called
    before the cast that rounds them. A shared one may come more than once."""
    stepped = set(params_of(optimizers))
    return {param: _C.make_master(param) for param in dict.fromkeys(params) if param in stepped}


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
    master = masters.get(param)
    is_new = master is None and mastered(param) is None
    if is_new and keeps_masters and param.dtype in LOW_PRECISION:
        master = _C.make_master(param)
    stepped = core.add(function, param, master)
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
