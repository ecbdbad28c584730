"""apex's data parallelism, which is torch's, and its flat calls."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import distributed, nn

from torchamp.compat.apex_C import flatten, unflatten

__all__ = ["DistributedDataParallel", "flat_dist_call", "flatten", "unflatten"]


@torch.no_grad()
def flat_dist_call(
    tensors: Iterable[torch.Tensor], call: Callable, extra_args: tuple[Any, ...] | None = None
) -> None:
    """Has `call`, one of torch.distributed's functions, work on the tensors of a type as one;
    all_reduce's sums become averages."""
    by_type: dict[str, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.type(), []).append(tensor)
    for bucket in by_type.values():
        flat = flatten(bucket)
        call(flat, *(extra_args or ()))
        if call is distributed.all_reduce:
            flat /= distributed.get_world_size()
        for tensor, result in zip(bucket, unflatten(flat, bucket)):
            tensor.copy_(result)


#: By argument that torch's has no counterpart of: the value it may have, and the remedy.
_REFUSED = {
    "shared_param": (None, "parameters may be shared without it"),
    "retain_allreduce_buffers": (False, "read grads from the parameters"),
    "allreduce_always_fp32": (False, "grads are divided before they are summed"),
    "allreduce_communicators": (None, "torch makes its own"),
    "gradient_average": (True, "multiply the loss by the number of ranks"),
}


class DistributedDataParallel(nn.parallel.DistributedDataParallel):
    """torch's DistributedDataParallel with apex's arguments.

    Parameters may go without a grad, the same on every rank. Buffers are the first rank's at the
    start and then each rank's own, so that several forwards may come before a backward.

    message_size, delay_allreduce, allreduce_trigger_params, num_allreduce_streams,
    gradient_predivide_factor, gradient_average_split_factor, prof: accepted; torch decides when
    grads are reduced, and divides them by the number of ranks before it sums them.

    Raises ValueError for other arguments than the defaults elsewhere. A backward that torch would
    not reduce raises RuntimeError: the second one of a forward, say.
    """

    require_backward_grad_sync: bool

    def __init__(
        self,
        module: nn.Module,
        message_size: int = 10000000,
        delay_allreduce: bool = False,
        shared_param: Any = None,
        allreduce_trigger_params: list[torch.Tensor] | None = None,
        retain_allreduce_buffers: bool = False,
        allreduce_always_fp32: bool = False,
        num_allreduce_streams: int = 1,
        allreduce_communicators: tuple[list[Any], list[Any]] | None = None,
        gradient_average: bool = True,
        gradient_predivide_factor: float = 1.0,
        gradient_average_split_factor: float | None = None,
        prof: bool = False,
    ) -> None:
        given = locals()
        for name, (expected, remedy) in _REFUSED.items():
            if bool(given[name]) is not bool(expected):
                raise ValueError(
                    f"DistributedDataParallel: expected {name} to be {expected}, got "
                    f"{given[name]!r}; {remedy}"
                )
        super().__init__(module, find_unused_parameters=True)
        self.broadcast_buffers = False  # from here on
        self._watch_backwards()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._watch_backwards()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's."""
        outputs = super().forward(*inputs, **kwargs)
        self._reduces_next |= torch.is_grad_enabled() and self.require_backward_grad_sync
        return outputs

    def _watch_backwards(self) -> None:
        #: Whether torch's reducer waits for a backward, and the last backward that came.
        self._reduces_next, self._backward = False, -1
        for param in self.module.parameters():
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(
                    functools.partial(_check_backward, weakref.ref(self))
                )

    def disable_allreduce(self) -> None:
        """From the next forward on, grads are not reduced."""
        self.require_backward_grad_sync = False

    def enable_allreduce(self) -> None:
        """From the next forward on, grads are reduced again."""
        self.require_backward_grad_sync = True


def _check_backward(own: weakref.ref[DistributedDataParallel], param: torch.Tensor) -> None:
    """With the first grad of a backward: raises RuntimeError if it should be reduced and is not."""
    parallel, backward = own(), torch._C._current_graph_task_id()
    if parallel is None or parallel._backward == backward:
        return
    is_reduced, parallel._reduces_next, parallel._backward = parallel._reduces_next, False, backward
    if parallel.require_backward_grad_sync and not is_reduced:
        raise RuntimeError(
            "DistributedDataParallel: expected one backward for each forward that allreduce is "
            "enabled for, got another, whose grads torch does not reduce; sum the losses of a "
            "forward, and of forwards without a backward between them"
        )
