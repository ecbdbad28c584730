"""Stage 3: keep masters. Which parameters have one, how others find it, and who accesses it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from torchamp._load import _C
from torchamp._shards import is_dtensor, shard_of

#: The Masters, weakly, of each model parameter that has a master of its own.
_weights_of: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def weights_of(model_param: torch.Tensor) -> _C.Masters | None:
    """The Masters that keep the master of `model_param`; None if it has none of its own."""
    found = _weights_of.get(model_param)
    return None if found is None else found()


def make_masters(
    params: Iterable[torch.Tensor], optimizers: list[torch.optim.Optimizer]
) -> dict[torch.Tensor, torch.Tensor]:
    """float32 masters of those of `params` that the optimizers step, by parameter; to be called
    before the cast that rounds them. A shared one may come more than once."""
    stepped = set(params_of(optimizers))
    return {
        param: _C.Masters.make_master(param) for param in dict.fromkeys(params) if param in stepped
    }


def params_of(optimizers: list[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """Every tensor in the optimizers' groups, in order."""
    return [
        param
        for optimizer in optimizers
        for group in optimizer.param_groups
        for param in group["params"]
    ]


def weights_for(optimizers: list[torch.optim.Optimizer]) -> list[_C.Masters]:
    """A Masters for each optimizer; one for all of them if they share a parameter, which is
    then unscaled once."""
    distinct = [set(params_of([optimizer])) for optimizer in optimizers]
    if len(set().union(*distinct)) < sum(map(len, distinct)):
        return [_C.Masters()] * len(optimizers)
    return [_C.Masters() for _ in optimizers]


def track(
    weights: _C.Masters,
    param: torch.Tensor,
    masters: dict[torch.Tensor, torch.Tensor],
    keeps_masters: bool,
) -> torch.Tensor:
    """Tracks `param` and returns what the optimizer is to step: the master it has already, the one
    in `masters`, a new one if it is of low precision and masters are kept, or itself. Of a DTensor
    the shard is tracked, as its own master."""
    if is_dtensor(param):
        weights.track(shard_of(param))
        return param
    master = masters.get(param)
    if master is None and keeps_masters and param.dtype in (torch.float16, torch.bfloat16):
        master = _C.Masters.make_master(param)
    stepped = weights.track(param, master)
    if stepped is not param:
        _weights_of[param] = weakref.ref(weights)
    return stepped


def forget_masters(weights: _C.Masters) -> None:
    """Ends weights_of for its parameters."""
    for param in weights.model_params():
        _weights_of.pop(param, None)


class AccessTracker:
    """Whether anyone but torchamp has accessed an optimizer's masters."""

    def __init__(self, weights: _C.Masters) -> None:
        self._weights = weights
        self.suppressions = _C.Suppressions()
        self._covered = type("CoveredMaster", (CoveredMaster,), {"_tracker": weakref.ref(self)})

    def cover(self, master: torch.Tensor) -> None:
        """Makes every use of the master by torch's functions count as an access."""
        master.__class__ = self._covered

    def record(self) -> None:
        """Records an access: from now on master grads are materialized, the last backward's too.
        References may have been kept, so this is permanent."""
        if self.suppressions.are_open or not self._weights.lazy:
            return
        self._weights.lazy = False
        for master in self._weights.master_params():
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
