"""Reducing the grads of every backward: torch's reducer handles one backward per forward."""

from __future__ import annotations

import functools
import weakref

import torch
from torch.nn.parallel import DistributedDataParallel

from torchamp.compat.apex.parallel._reduction import Reduction


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
