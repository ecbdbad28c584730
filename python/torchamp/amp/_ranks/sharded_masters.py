"""Masters and optimizer states of which each rank has a part (ZeRO-1)."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed
from torch.utils.weak import WeakTensorKeyDictionary

from torchamp._load import _C
from torchamp.amp._masters import weights_of
from torchamp.amp._ranks.buckets import Bucket, Slot, buckets_of

#: The ShardedMasters, weakly, of each model parameter that has a part of its master here.
_sharded_of: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def owner_of(model_param: torch.Tensor) -> _C.Masters | ShardedMasters | None:
    """What keeps the master of `model_param`, or this rank's part; None if it has none of its
    own."""
    sharded = _sharded_of.get(model_param)
    return weights_of(model_param) if sharded is None else sharded()


def is_sharded(model_param: torch.Tensor) -> bool:
    return model_param in _sharded_of


class Shard:
    """A parameter of the model, and the piece of it that this rank steps."""

    def __init__(self, bucket: Bucket, slot: Slot) -> None:
        self.bucket = bucket
        self.slot = slot
        self.param: torch.Tensor = slot.param
        self.begin: int
        self.end: int
        self.begin, self.end = bucket.own_range(slot)
        #: One-dimensional, in the model's memory; None if other ranks have it all.
        self.piece: torch.Tensor | None = None
        if self.begin < self.end:
            own = bucket.flat[slot.start + self.begin : slot.start + self.end]
            self.piece = own.data.requires_grad_(self.param.requires_grad)
        self.param.grad = None
        #: What `param.grad` was left as; the program may have replaced or written it since.
        self.left: torch.Tensor | None = None
        #: Whether that is the grad of backwards that are not reduced yet.
        self.is_held: bool = False
        self._placeholder: torch.Tensor | None = None
        self.note_version()

    def part_of(self, value: torch.Tensor) -> torch.Tensor:
        """The piece of `value`, of the parameter's sizes: a new tensor."""
        return self.slot.flattened(value.detach())[self.begin : self.end].clone()

    def note_version(self) -> None:
        self._version = self.param._version

    def refresh(self) -> None:
        """Tells the piece's version counter of writes to the parameter."""
        view = self.slot.view(self.bucket.flat)
        if self.param.data_ptr() != view.data_ptr():
            self._take_memory(view)
        elif self.param._version == self._version:
            return
        self.note_version()
        if self.piece is not None:
            torch.autograd.graph.increment_version(self.piece)

    def _take_memory(self, view: torch.Tensor) -> None:
        if (self.param.dtype, self.param.device) != (view.dtype, view.device):
            raise RuntimeError(
                f"amp: expected a model parameter of sizes {list(self.param.shape)} to stay "
                f"{view.dtype} on {view.device} as initialize left it, got {self.param.dtype} on "
                f"{self.param.device}; change it before initialize"
            )
        view.copy_(self.param.data)
        self.param.data = view

    def settle_grad(self, function: str) -> None:
        """Discards the piece's grad if the program has zeroed that of the parameter. Raises
        RuntimeError for one that is not of a backward in scale_loss."""
        grad = self.param.grad
        if grad is self.left and (grad is None or self.is_held or grad._version == 0):
            return
        if grad is not None and grad is not self.left:
            raise RuntimeError(
                f"{function}: expected grads of backwards in scale_loss, which reduces them, got "
                f"one of another backward, of sizes {list(self.param.shape)}; run it in scale_loss"
            )
        self.drop_grad()

    def drop_grad(self) -> None:
        self.param.grad = self.left = None
        self.is_held = False
        if self.piece is not None:
            self.piece.grad = None

    def zero_grad(self, set_to_none: bool) -> None:
        """Of the parameter; the optimizer zeroes that of the piece."""
        if self.is_held and not set_to_none and self.left is not None:
            self.left.zero_()
        else:
            self.param.grad = self.left = None
            self.is_held = False

    def begin_backward(self) -> None:
        self.param.grad = None

    def cancel_backward(self) -> None:
        self.param.grad = self.left

    def hold_grad(self) -> None:
        """Adds what the backward has made to what is to be reduced later. The grad of the piece
        tells its optimizer that there is something."""
        grad = self.summed_grad()
        if grad is None:
            return self.cancel_backward()
        self.param.grad = self.left = grad
        self.is_held = True
        if self.piece is not None:
            self.piece.grad = torch.zeros_like(self.piece)

    def summed_grad(self) -> torch.Tensor | None:
        """That of the backward, with what was held before."""
        held = self.left if self.is_held else None
        grad = self.param.grad
        if grad is None or held is None:
            return held if grad is None else grad
        return grad.add_(held)

    def leave_placeholder(self) -> None:
        """In the place of a grad that has been reduced: NaNs in the memory of one, by which it is
        seen when the program zeroes it."""
        if self._placeholder is None or self._placeholder._version != 0:
            nan = torch.full((), torch.nan, dtype=self.param.dtype, device=self.param.device)
            self._placeholder = nan.expand(self.param.shape)
        self.param.grad = self.left = self._placeholder
        self.is_held = False


class ShardedMasters:
    """The parts of one optimizer's masters that this rank has, and how ranks exchange them."""

    def __init__(self, buckets: list[Bucket], group: distributed.ProcessGroup) -> None:
        self.group = group
        self.buckets = buckets
        self.shards: list[list[Shard]] = [
            [Shard(bucket, slot) for slot in bucket.slots] for bucket in buckets
        ]
        self._shard_of = WeakTensorKeyDictionary(
            {shard.param: shard for shard in self.all_shards() if shard.param.dtype.itemsize < 4}
        )
        self._weights: _C.Masters | None = None

    @property
    def name(self) -> str:
        """Which part this is."""
        return f"{self.group.rank()} of {self.group.size()}"

    def all_shards(self) -> Iterator[Shard]:
        for shards in self.shards:
            yield from shards

    def attach(self, weights: _C.Masters) -> None:
        """`weights` keeps the masters of the pieces. From now on owner_of() finds this."""
        self._weights = weights
        for param in self._shard_of:
            _sharded_of[param] = weakref.ref(self)

    def refresh(self, function: str) -> None:
        """Takes notice of what the program has written to the model and its grads."""
        for shard in self.all_shards():
            shard.refresh()
            shard.settle_grad(function)

    def zero_grad(self, set_to_none: bool) -> None:
        for shard in self.all_shards():
            shard.zero_grad(set_to_none)

    @torch.no_grad()
    def gather(self) -> None:
        """Gives every rank the parts of the model that the others have stepped."""
        gathered = [bucket for bucket in self.buckets if not bucket.is_frozen]
        for work in [bucket.all_gather() for bucket in gathered]:
            work.wait()
        torch.autograd.graph.increment_version([shard.param for shard in self.all_shards()])
        for shard in self.all_shards():
            shard.note_version()

    def all_reduce_sum(self, tensor: torch.Tensor) -> None:
        """Makes it the sum over all ranks, in place. A rank that owns nothing has it on the CPU."""
        summed = tensor.to(self.buckets[0].flat.device)
        distributed.all_reduce(summed, group=self.group)
        if summed is not tensor:
            tensor.copy_(summed)

    @torch.no_grad()
    def held_value(self, model_param: torch.Tensor) -> torch.Tensor:
        """As of Masters, from all ranks, which must all call it."""
        shard = self._shard_of[model_param]
        whole = torch.zeros(model_param.numel(), device=model_param.device)
        if shard.piece is not None:
            shard.refresh()
            whole[shard.begin : shard.end] = self._own.held_value(shard.piece)
        # As integers, which keep NaNs and the sign of zeros.
        distributed.all_reduce(whole.view(torch.int32), group=self.group)
        return shard.slot.unflattened(whole)

    def set_master_value(self, model_param: torch.Tensor, value: torch.Tensor) -> None:
        """As of Masters."""
        shard = self._shard_of[model_param]
        if shard.piece is not None:
            wide = value.to(model_param.device, torch.float32)
            self._own.set_master_value(shard.piece, shard.part_of(wide))

    def is_rounded_master(self, model_param: torch.Tensor) -> bool:
        """As of Masters, for this rank's part."""
        piece = self._shard_of[model_param].piece
        return piece is None or self._own.is_rounded_master(piece)

    def mark_synced(self, model_param: torch.Tensor) -> None:
        """As of Masters."""
        shard = self._shard_of[model_param]
        shard.note_version()
        if shard.piece is not None:
            self._own.mark_synced(shard.piece)

    @property
    def _own(self) -> _C.Masters:
        assert self._weights is not None
        return self._weights


def shard_masters_of(
    optimizer: torch.optim.Optimizer,
    order: list[torch.Tensor],
    masters: dict[torch.Tensor, torch.Tensor],
    group: distributed.ProcessGroup,
) -> tuple[ShardedMasters, dict[torch.Tensor, torch.Tensor]]:
    """Puts the pieces of this rank in the place of the optimizer's parameters, and hands their
    states over. Returns them, and the masters of the pieces: parts of `masters`.

    order: the parameters in the order of the forward.
    """
    with torch.no_grad():
        sharded = ShardedMasters(buckets_of(order, group), group)
        shards = {shard.param: shard for shard in sharded.all_shards()}
        parts = {
            shard.piece: _part_of_master(shard, masters[param])
            for param, shard in shards.items()
            if shard.piece is not None and param in masters
        }
        for param_group in optimizer.param_groups:
            _shard_group(optimizer, param_group, shards)
            param_group["shard"] = sharded.name
    return sharded, parts


def _part_of_master(shard: Shard, master: torch.Tensor) -> torch.Tensor:
    return shard.part_of(master).requires_grad_(master.requires_grad)


def _shard_group(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    shards: dict[torch.Tensor, Shard],
) -> None:
    params, group["params"] = group["params"], []
    for param in params:
        shard, state = shards[param], optimizer.state.pop(param, None)
        if shard.piece is None:
            continue
        group["params"].append(shard.piece)
        if state is not None:
            optimizer.state[shard.piece] = {
                name: _part_of_state(shard, name, value) for name, value in state.items()
            }


def _part_of_state(shard: Shard, name: str, value: Any) -> Any:
    is_elementwise = isinstance(value, torch.Tensor) and value.shape == shard.param.shape
    return shard.part_of(value) if is_elementwise and name != "step" else value
