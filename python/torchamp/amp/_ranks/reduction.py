"""The grads of sharded masters: reduced while the backward runs, to the ranks that step them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchamp._load import _C
from torchamp.amp._ranks.buckets import Bucket
from torchamp.amp._ranks.sharded_masters import Shard, ShardedMasters


class Reducer:
    """Starts the reduction of a bucket when a backward has completed it.

    At most one Reduction is open; grads that are to be reduced later stay in the model.
    """

    def __init__(self, sharded: ShardedMasters) -> None:
        self.sharded = sharded
        self._last: Callable[[], Reduction | None] = lambda: None
        #: The scale of the grads that are held; None if there are none.
        self.held_by: _C.ScaleSnapshot | None = None
        for index, shards in enumerate(sharded.shards):
            for shard in shards:
                if shard.param.requires_grad:
                    hook = functools.partial(
                        _note_grad, weakref.ref(self), index, weakref.ref(shard)
                    )
                    shard.param.register_post_accumulate_grad_hook(hook)

    def prepare(self, scaler: _C.LossScaler) -> None:
        """To be called before a backward of a loss that `scaler` scales: grads that are held under
        another scale are reduced by themselves."""
        if self._open is not None:
            return
        self.refresh("scale_loss")
        if not any(shard.is_held for shard in self.sharded.all_shards()):
            self.held_by = None
        if self.held_by is not None and not self.held_by.is_still(scaler):
            Reduction(self, scaler, delays=False).finish()

    def begin(self, scaler: _C.LossScaler, delays: bool) -> Reduction:
        """That of the backward that follows."""
        if self._open is not None:  # its scale_loss was interrupted
            self._open.cancel()
        reduction = Reduction(self, scaler, delays)
        self._last = weakref.ref(reduction)
        return reduction

    @property
    def _open(self) -> Reduction | None:
        last = self._last()
        return last if last is not None and last.is_open else None

    def refresh(self, function: str) -> None:
        """As of ShardedMasters; within scale_loss grads are not complete."""
        if self._open is None:
            self.sharded.refresh(function)

    def note_grad(self, index: int, shard: Shard) -> None:
        if self._open is not None:
            self._open.note_grad(index, shard)


def _note_grad(
    reducer: Callable[[], Reducer | None],
    index: int,
    shard: Callable[[], Shard | None],
    param: torch.Tensor,
) -> None:
    found, its = reducer(), shard()
    if found is not None and its is not None:
        found.note_grad(index, its)


class Reduction:
    """That of one backward. Dropped before it is finished, it is cancelled."""

    def __init__(self, reducer: Reducer, scaler: _C.LossScaler, delays: bool) -> None:
        self.is_open: bool = False
        self._reducer = reducer
        self._snapshot = scaler.snapshot() if delays else None
        self._delays = delays
        #: Whether the scaled loss had a backward. At a scale of 1, any loss's is as good.
        self._was_used = False
        self._takes_any = scaler.is_identity
        self._parts = [
            _BucketReduction(bucket, shards)
            for bucket, shards in zip(reducer.sharded.buckets, reducer.sharded.shards)
        ]
        self._started = 0
        self.is_open = True
        for shard in self._shards():
            shard.begin_backward()

    def __del__(self) -> None:
        self.cancel()

    def _shards(self) -> Iterator[Shard]:
        return self._reducer.sharded.all_shards()

    def watch(self, scaled_loss: torch.Tensor) -> None:
        """Takes notice of the backward of the scaled loss."""
        if scaled_loss.requires_grad:
            scaled_loss.register_hook(functools.partial(_note_use, weakref.ref(self)))

    def note_use(self) -> None:
        self._was_used = True

    @torch.no_grad()
    def note_grad(self, index: int, shard: Shard) -> None:
        """To be called when the backward has made the grad of a parameter. Reductions start in the
        buckets' order, which is the same on all ranks."""
        if self._delays or not (self._was_used or self._takes_any):
            return
        self._parts[index].add(shard)
        while self._started < len(self._parts) and self._parts[self._started].is_complete:
            self._start()

    def _start(self) -> None:
        self._parts[self._started].start()
        self._started += 1

    def cancel(self) -> None:
        """Leaves the grads as they were before the backward."""
        if self.is_open:
            self.is_open = False
            for shard in self._shards():
                shard.cancel_backward()

    @torch.no_grad()
    def finish(self) -> None:
        """Gives the pieces the mean of all ranks' grads, zeros for a parameter without one; or
        leaves the grads to a later backward."""
        has_grads = any(part.has_grads for part in self._parts)
        if has_grads and not (self._was_used or self._takes_any):
            self._give_away()
        elif self._delays:
            self._hold()
        elif has_grads or self._was_used or self._reducer.held_by is not None:
            self._reduce()
        self.cancel()

    def _give_away(self) -> None:
        """Shows grads of another loss than the scaled one to the optimizer, which refuses them."""
        for shard in self._shards():
            if shard.piece is not None:
                shard.piece.grad = torch.zeros_like(shard.piece)
                torch.autograd.graph.increment_version(shard.piece.grad)

    def _hold(self) -> None:
        for shard in self._shards():
            shard.hold_grad()
        if self._was_used or self._takes_any:
            self._reducer.held_by = self._snapshot
        self.is_open = False

    def _reduce(self) -> None:
        while self._started < len(self._parts):
            self._start()
        for part in self._parts:
            part.finish()
        self._reducer.held_by = None
        self.is_open = False


def _note_use(reduction: Callable[[], Reduction | None], grad: torch.Tensor) -> None:
    found = reduction()
    if found is not None:
        found.note_use()


class _BucketReduction:
    """The part of a Reduction that is of one bucket."""

    def __init__(self, bucket: Bucket, shards: list[Shard]) -> None:
        self._bucket = bucket
        self._shards = [shard for shard in shards if shard.param.requires_grad]
        self._added: set[Shard] = set()
        #: The mean's share of this rank, until it is sent; then this rank's part of the sum.
        self._flat: torch.Tensor | None = None
        self._work: Any = None

    @property
    def is_complete(self) -> bool:
        return len(self._added) == len(self._shards)

    @property
    def has_grads(self) -> bool:
        return bool(self._added) or any(shard.param.grad is not None for shard in self._shards)

    def add(self, shard: Shard) -> None:
        """Takes the grad of a parameter. Raises RuntimeError for a second one, TypeError for a
        sparse one."""
        grad = shard.summed_grad()
        if grad is None:
            return
        _check(grad, is_second=shard in self._added)
        if self._flat is None:
            self._flat = torch.zeros_like(self._bucket.flat)
        torch.mul(grad, 1 / self._bucket.group.size(), out=shard.slot.view(self._flat))
        shard.param.grad = None
        self._added.add(shard)

    def start(self) -> None:
        """Adds what no hook has told of, and starts."""
        if not self._shards:
            return
        for shard in self._shards:
            if shard not in self._added:
                self.add(shard)
        flat = torch.zeros_like(self._bucket.flat) if self._flat is None else self._flat
        self._flat, self._work = self._bucket.reduce_scatter(flat)

    def finish(self) -> None:
        """Waits, and gives the pieces their grads."""
        if self._work is not None:
            self._work.wait()
        for shard in self._shards:
            if shard.piece is not None and self._flat is not None:
                begin = shard.slot.start + shard.begin - self._bucket.begin
                shard.piece.grad = self._flat[begin : begin + shard.piece.numel()].data
            shard.leave_placeholder()


def _check(grad: torch.Tensor, *, is_second: bool) -> None:
    if is_second:
        raise RuntimeError(
            "scale_loss: expected one backward in each scale_loss with shard_masters, got a second "
            f"that reaches a parameter of sizes {list(grad.shape)}; add the losses, or give each "
            "its own scale_loss"
        )
    if grad.is_sparse:
        raise TypeError(
            "scale_loss: expected dense grads with shard_masters, got a sparse one of sizes "
            f"{list(grad.shape)}; make the embedding with sparse=False"
        )
