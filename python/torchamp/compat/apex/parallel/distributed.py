"""apex's data parallelism over torch's, and its helpers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import distributed, nn

from torchamp._logging import warn
from torchamp.compat.apex.parallel._reduction import LateBackwards, Reduction, reduce_bucket
from torchamp.compat.apex_C import flatten, unflatten

__all__ = ["DistributedDataParallel", "Reducer", "flat_dist_call", "flatten", "unflatten"]

_MIB = 2**20


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


class Reducer:
    """Averages grads over the ranks, whenever reduce() is called.

    module_or_grads_list: a module, which receives the first rank's parameters and buffers, or the
    tensors to be averaged.
    """

    def __init__(self, module_or_grads_list: nn.Module | Iterable[torch.Tensor]) -> None:
        self.module: nn.Module | None = None
        self.grads: list[torch.Tensor] = []
        if isinstance(module_or_grads_list, nn.Module):
            self.module = module = module_or_grads_list
            own = itertools.chain(module.parameters(), module.buffers())
            flat_dist_call([each.detach() for each in own], distributed.broadcast, (0,))
        else:
            self.grads = list(module_or_grads_list)

    def reduce(self) -> None:
        """Averages the grads that there are, the same ones on every rank."""
        grads = self.grads
        if self.module is not None:
            grads = [param.grad for param in self.module.parameters() if param.grad is not None]
        flat_dist_call(grads, distributed.all_reduce)


class DistributedDataParallel(nn.parallel.DistributedDataParallel):
    """torch's DistributedDataParallel with apex's arguments.

    Parameters may go without a grad, and a forward may have several backwards, the same on every
    rank. Buffers are the first rank's at the start and then each rank's
    own, so that several forwards may come before a backward.

    message_size: elements that are reduced together; delay_allreduce: all at once, at the end.
    allreduce_always_fp32: low-precision grads are reduced in float32. gradient_average: average
    instead of sum. gradient_predivide_factor: grads are divided by it before the sum, and by the
    rest of the world size after. allreduce_trigger_params, num_allreduce_streams,
    gradient_average_split_factor, prof: accepted; torch decides what they did.

    Raises ValueError for shared_param, retain_allreduce_buffers and allreduce_communicators.
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
        refused = dict(
            shared_param=shared_param,
            retain_allreduce_buffers=retain_allreduce_buffers,
            allreduce_communicators=allreduce_communicators,
        )
        for name, value in refused.items():
            if value:
                raise ValueError(
                    f"DistributedDataParallel: expected {name} to be left out, got {value!r}"
                )
        super().__init__(
            module,
            find_unused_parameters=True,
            bucket_cap_mb=_bucket_mib(module, None if delay_allreduce else message_size),
        )
        self.broadcast_buffers = False  # from here on
        self._options = allreduce_always_fp32, gradient_average, gradient_predivide_factor
        self._connect()

    def _connect(self) -> None:
        self.reduction: Reduction = Reduction(self.process_group, *self._options)
        if not self.reduction.is_torchs_own:
            self.register_comm_hook(self.reduction, reduce_bucket)
        self._late_backwards = LateBackwards(self, self.reduction)

    def __getstate__(self) -> dict[str, Any]:
        """As torch's: copies and pickles reduce over the default group."""
        state = super().__getstate__()
        for name in ("reduction", "_late_backwards", "_comm_hooks"):
            state.pop(name)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_comm_hooks": []})
        self._connect()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's."""
        outputs = super().forward(*inputs, **kwargs)
        if torch.is_grad_enabled():
            self._late_backwards.torch_waits = self.require_backward_grad_sync
        return outputs

    def disable_allreduce(self) -> None:
        """From the next forward on, grads are not reduced. Warns if a forward waits for its
        backward, whose grads are reduced all the same."""
        if self._late_backwards.torch_waits:
            warn(
                "disable_allreduce: expected no forward that waits for its backward, got one, "
                "whose grads are reduced; call it before the forward"
            )
        self.require_backward_grad_sync = False

    def enable_allreduce(self) -> None:
        """From the next backward on, grads are reduced again."""
        self.require_backward_grad_sync = True


def _bucket_mib(module: nn.Module, elements: int | None) -> float:
    """Buckets of so many elements; None: of the whole module."""
    params = [param for param in module.parameters() if param.requires_grad]
    width = max((param.element_size() for param in params), default=4)
    total = sum(param.numel() for param in params)
    return max(1, total if elements is None else elements) * width / _MIB
