"""How DistributedDataParallel reduces grads.

Annotations are not postponed here: torch inspects a hook's.
"""

import dataclasses
import functools
import weakref
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import GradBucket
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn.parallel import DistributedDataParallel


@dataclasses.dataclass
class Reduction:
    """apex's options of a reduction."""

    process_group: Any
    in_float32: bool
    averages: bool
    predivide_factor: float

    @property
    def is_torchs_own(self) -> bool:
        """Whether torch does the same by default."""
        return self.averages and not self.in_float32 and self.predivide_factor == 1.0

    def start(self, grads: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Reduces `grads` in place."""
        wide = grads.float() if self.in_float32 else grads
        wide.div_(self.predivide_factor)
        work = distributed.all_reduce(wide, group=self.process_group, async_op=True)
        size = distributed.get_world_size(self.process_group)
        factor = self.predivide_factor / size if self.averages else 1.0
        return work.get_future().then(lambda future: grads.copy_(future.value()[0].mul_(factor)))

    @torch.no_grad()
    def reduce(self, grads: list[torch.Tensor]) -> None:
        """Reduces the grads, of any dtypes, the same on every rank, and waits."""
        for dtype in dict.fromkeys(grad.dtype for grad in grads):
            members = [grad for grad in grads if grad.dtype == dtype]
            flat = _flatten_dense_tensors(members)
            self.start(flat).wait()
            for grad, reduced in zip(members, _unflatten_dense_tensors(flat, members)):
                grad.copy_(reduced)


def reduce_bucket(reduction: Reduction, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook of torch's DistributedDataParallel."""
    return reduction.start(bucket.buffer())


class LateBackwards:
    """Averages grads that come when torch's reducer is not waiting for any: several backwards of
    one forward, or of a forward that ran while reducing was switched off."""

    def __init__(self, parallel: DistributedDataParallel, reduction: Reduction) -> None:
        #: Whether torch's reducer takes the next backward's grads.
        self.torch_waits = False
        self._parallel, self._reduction = weakref.ref(parallel), reduction
        self._in_backward = False
        self._params: list[torch.Tensor] = []
        for param in parallel.module.parameters():
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(
                    functools.partial(_note, weakref.ref(self))
                )

    def note(self, param: torch.Tensor) -> None:
        """Takes note of a grad that is there now."""
        if not self._in_backward:
            self._in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        if not self.torch_waits:
            self._params.append(param)

    def _finish(self) -> None:
        parallel, params = self._parallel(), self._params
        self.torch_waits, self._in_backward, self._params = False, False, []
        if parallel is not None and parallel.require_backward_grad_sync:
            self._reduction.reduce([param.grad for param in params])


def _note(late: weakref.ref[LateBackwards], param: torch.Tensor) -> None:
    if late() is not None:
        late().note(param)
