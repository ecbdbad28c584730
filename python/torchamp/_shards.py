"""DTensors: kernels work on this rank's shards of them, which are plain tensors."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeGuard

_PLAIN = (torch.Tensor, torch.nn.Parameter)

#: Shared: making one costs as much as entering it.
_NOTHING = contextlib.nullcontext()

#: Plain leaves with the memory of shards, by DTensor.
_shards: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def is_dtensor(value: Any) -> TypeGuard[DTensor]:
    """Whether it is a DTensor. Imports nothing: where there is one, torch has its module."""
    if type(value) in _PLAIN:  # soonest
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return isinstance(value, getattr(module, "DTensor", ()))


def is_flattened(param: torch.Tensor) -> bool:
    """Whether it is one of FullyShardedDataParallel's: a plain tensor with a part of parameters."""
    return getattr(param, "_fsdp_flattened", False)


def shard_of(param: torch.Tensor) -> torch.Tensor:
    """A plain leaf with the memory of this rank's shard of a DTensor, each time the same object;
    else `param` itself."""
    if not is_dtensor(param):
        return param
    with torch.no_grad():
        local = _local(param).detach()
    shard = _shards.setdefault(param, local)
    if shard.data_ptr() != local.data_ptr() or shard.shape != local.shape:
        shard.data = local  # the program has replaced the shard
    return shard


def grad_of(param: torch.Tensor) -> torch.Tensor | None:
    """This rank's shard of a DTensor's grad, which gets the placements of the parameter first, for
    all to see; else the grad itself."""
    grad: Any = param.grad
    if grad is None or not is_dtensor(param):
        return grad
    with torch.no_grad():
        if grad.placements != param.placements:
            param.grad = grad = grad.redistribute(param.device_mesh, param.placements)
        return _local(grad)


def sharded_like(param: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """A DTensor with the placements of the DTensor `param` whose shard here is `local`; else
    `local`."""
    if not is_dtensor(param):
        return local
    with torch.no_grad():
        return type(param).from_local(
            local,
            param.device_mesh,
            param.placements,
            run_check=False,
            shape=param.shape,
            stride=param.stride(),
        )


def local_state(param: torch.Tensor, name: str, value: Any) -> Any:
    """The shard of a DTensor's state `name`; of another parameter's, `value` itself. Raises
    TypeError for a DTensor's state that is a plain tensor."""
    if value is None or not is_dtensor(param):
        return value
    if not is_dtensor(value):
        raise TypeError(
            f"step: expected {name!r} of a DTensor parameter to be a DTensor, got a plain tensor; "
            "load states by torch.distributed.checkpoint.state_dict.set_optimizer_state_dict"
        )
    with torch.no_grad():
        return _local(value.redistribute(param.device_mesh, param.placements))


def _local(tensor: Any) -> torch.Tensor:
    """The shard, after the collective that makes it."""
    local = tensor.to_local()
    return local.wait() if hasattr(local, "wait") else local


def mesh_groups_of(params: Iterable[torch.Tensor]) -> list[ProcessGroup]:
    """The process groups over which DTensors among `params` are distributed; none of several with
    the same ranks but the first, and none whose ranks are some of another's. Every rank has them in
    the same order."""
    meshes = dict.fromkeys(param.device_mesh for param in params if is_dtensor(param))
    groups: dict[frozenset[int], ProcessGroup] = {}
    for mesh in meshes:
        for group in mesh.get_all_groups():
            groups.setdefault(frozenset(distributed.get_process_group_ranks(group)), group)
    return [group for ranks, group in groups.items() if not any(ranks < other for other in groups)]


def counted_elsewhere(
    params: Iterable[torch.Tensor], groups: Sequence[ProcessGroup]
) -> list[torch.Tensor]:
    """The shards of those of `params` that another rank counts in a sum over all `groups`, of all
    ranks that have the same: the first."""
    ranks_of_groups = [distributed.get_process_group_ranks(group) for group in groups]
    is_counted_here = functools.lru_cache(functools.partial(_is_first, ranks_of_groups))
    return [shard_of(param) for param in params if not is_counted_here(*_distribution_of(param))]


def _distribution_of(param: Any) -> tuple[DeviceMesh | None, tuple]:
    return (param.device_mesh, param.placements) if is_dtensor(param) else (None, ())


def _is_first(ranks_of_groups: list[list[int]], mesh: DeviceMesh | None, placements: tuple) -> bool:
    """Whether this rank is the first that has its shard of tensors so distributed."""
    ranks = {distributed.get_rank()}
    if mesh is not None:
        ranks = set(mesh.mesh.flatten().tolist())
        for axis, placement in enumerate(placements):
            if placement.is_replicate() and mesh.get_local_rank(axis) != 0:
                return False
    return all(ranks.issuperset(group) or group[0] in ranks for group in ranks_of_groups)


class Shards(list[torch.Tensor]):
    """The DTensors among some parameters, whose shards have grads for the time of a context."""

    def __init__(self, params: Iterable[torch.Tensor] = ()) -> None:
        super().__init__(filter(is_dtensor, params))

    def add(self, params: Iterable[torch.Tensor]) -> None:
        """Adds the DTensors among them."""
        self.extend(filter(is_dtensor, params))

    def mirrored(self) -> contextlib.AbstractContextManager[None]:
        """A context in which each shard's grad is that of its parameter. At the end the
        parameter's grad is what has become of the shard's."""
        return self._mirrored() if self else _NOTHING

    @contextlib.contextmanager
    def _mirrored(self) -> Iterator[None]:
        for param in self:
            shard_of(param).grad = grad_of(param)
        try:
            yield
        finally:
            self.publish()
            for param in self:
                shard_of(param).grad = None

    def publish(self) -> None:
        """Within that context: makes the parameters' grads those of their shards."""
        for param in self:
            grad = shard_of(param).grad
            if grad is not grad_of(param):
                param.grad = None if grad is None else sharded_like(param, grad)
