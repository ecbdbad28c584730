"""Parameters in flat buffers, of which each rank of a group owns an equal part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import distributed

#: A bucket is closed when it has so many bytes: DistributedDataParallel's default.
BUCKET_BYTES = 25 * 2**20

#: Parameters, and the ranks' parts, begin at multiples of so many bytes.
_ALIGNMENT = 16


def _collective(name: str, earlier_name: str) -> Any:
    """torch 2.13 renamed some."""
    return getattr(distributed, name, None) or getattr(distributed, earlier_name)


class Slot:
    """The place of a parameter in its bucket."""

    def __init__(self, param: torch.Tensor, start: int) -> None:
        self.param = param
        self.start = start
        #: Dense: those of the parameter, if it is.
        self.strides: tuple[int, ...] = torch.empty_like(param, device="meta").stride()

    @property
    def stop(self) -> int:
        return self.start + self.param.numel()

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """Of `flat`, of the bucket's size, the parameter's elements in its sizes."""
        offset = flat.storage_offset() + self.start
        return flat.as_strided(self.param.shape, self.strides, offset)

    def flattened(self, value: torch.Tensor) -> torch.Tensor:
        """`value`, of the parameter's sizes, in the order of the bucket: a new tensor."""
        flat = value.new_empty(self.param.numel())
        flat.as_strided(self.param.shape, self.strides).copy_(value)
        return flat

    def unflattened(self, flat: torch.Tensor) -> torch.Tensor:
        """The inverse: a view of `flat`, of as many elements as the parameter has."""
        return flat.as_strided(self.param.shape, self.strides, flat.storage_offset())


class Bucket:
    """Parameters of one dtype in a flat buffer; their `data` are views of it."""

    def __init__(self, params: Sequence[torch.Tensor], group: distributed.ProcessGroup) -> None:
        self.group = group
        self.slots: list[Slot] = list(_slots_of(params))
        self.dtype: torch.dtype = params[0].dtype
        unit = _alignment_of(self.dtype) * group.size()
        size = _round_up(self.slots[-1].stop, unit)
        self.flat: torch.Tensor = torch.zeros(size, dtype=self.dtype, device=params[0].device)
        #: How many elements each rank owns.
        self.share: int = size // group.size()
        self.adopt()

    @property
    def begin(self) -> int:
        """Of this rank's part."""
        return self.group.rank() * self.share

    @property
    def is_frozen(self) -> bool:
        return not any(slot.param.requires_grad for slot in self.slots)

    def adopt(self) -> None:
        """Copies the parameters in, and makes them views."""
        for slot in self.slots:
            view = slot.view(self.flat)
            view.copy_(slot.param.data)
            slot.param.data = view

    def own_range(self, slot: Slot) -> tuple[int, int]:
        """Which of the slot's elements this rank owns: from the first to before the second."""
        first = max(slot.start, self.begin)
        return first - slot.start, max(first, min(slot.stop, self.begin + self.share)) - slot.start

    def reduce_scatter(self, flat: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """This rank's part of the sum of all ranks' `flat`, and what to wait for first."""
        own = flat.new_empty(self.share)
        reduce_scatter = _collective("reduce_scatter_single", "reduce_scatter_tensor")
        return own, reduce_scatter(own, flat, group=self.group, async_op=True)

    def all_gather(self) -> Any:
        """Gives every rank the others' parts; returns what to wait for."""
        own = self.flat[self.begin : self.begin + self.share]
        all_gather = _collective("all_gather_single", "all_gather_into_tensor")
        return all_gather(self.flat, own, group=self.group, async_op=True)


def buckets_of(params: Iterable[torch.Tensor], group: distributed.ProcessGroup) -> list[Bucket]:
    """Buckets of one dtype, those of frozen parameters apart, in the order in which a backward is
    expected to complete them: from the last parameter to the first."""
    filling: dict[tuple, list[torch.Tensor]] = {}
    closed: list[list[torch.Tensor]] = []
    for param in reversed(list(params)):
        key = (param.dtype, param.requires_grad)
        members = filling.pop(key, [])
        members.append(param)
        if sum(each.nbytes for each in members) >= BUCKET_BYTES:
            closed.append(members)
        else:
            filling[key] = members  # last, because its last member is
    return [Bucket(members, group) for members in (*closed, *filling.values())]


def _slots_of(params: Sequence[torch.Tensor]) -> Iterable[Slot]:
    start = 0
    for param in params:
        slot = Slot(param, start)
        yield slot
        start = _round_up(slot.stop, _alignment_of(param.dtype))


def _alignment_of(dtype: torch.dtype) -> int:
    """In elements."""
    return _ALIGNMENT // dtype.itemsize


def _round_up(size: int, unit: int) -> int:
    return (size + unit - 1) // unit * unit
