"""How DistributedDataParallel reduces grads.

Annotations are not postponed here: torch inspects a hook's.
"""

import dataclasses
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import GradBucket
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


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
