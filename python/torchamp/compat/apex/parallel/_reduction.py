"""How DistributedDataParallel reduces a bucket of grads where that is not torch's own way.

Annotations are not put off here: torch looks at a hook's.
"""

import dataclasses
from typing import Any

import torch
from torch import distributed


@dataclasses.dataclass
class Reduction:
    """apex's options of a reduction."""

    process_group: Any
    in_float32: bool
    averages: bool
    predivide_factor: float

    @property
    def is_torchs_own(self) -> bool:
        """Whether torch does the same without being told."""
        return self.averages and not self.in_float32 and self.predivide_factor == 1.0


def reduce_bucket(
    reduction: Reduction, bucket: distributed.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Reduces a bucket; a communication hook of torch's DistributedDataParallel."""
    grads = bucket.buffer()
    wide = grads.float() if reduction.in_float32 else grads
    wide.div_(reduction.predivide_factor)
    group = reduction.process_group
    work = distributed.all_reduce(wide, group=group, async_op=True)
    # apex: a sum of predivided grads stays one
    rest = reduction.predivide_factor / distributed.get_world_size(group)
    factor = rest if reduction.averages else 1.0

    def finish(future: torch.futures.Future) -> torch.Tensor:
        return grads.copy_(future.value()[0].mul_(factor))

    return work.get_future().then(finish)
