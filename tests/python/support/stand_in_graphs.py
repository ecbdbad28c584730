"""A stand-in for CUDA's graphs on the CPU. A capture runs the function and undoes what it has done
to tensors; a replay runs it again, on the same tensors and with the learning rates of the capture,
and writes its results and grads where the capture left them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torchamp import amp
from torchamp._load import _C


class Recorded:
    """A function for graphed(), whose captures can be replayed. optimizers: those that it steps,
    of `model`. Counts its calls, and those that were captures."""

    def __init__(self, function: Callable, model: torch.nn.Module, *optimizers) -> None:
        self._function, self._model, self._optimizers = function, model, optimizers
        self.is_captured = False
        self.calls = self.captures = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.is_captured:
            self.captures += 1
            self._call = args, kwargs
            self._rates = [group["lr"] for group in self._groups()]
            self._grads_before = [param.grad for param in self._params()]
        self.result = self._function(*args, **kwargs)
        return self.result

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def _params(self) -> list[torch.Tensor]:
        return [param for group in self._groups() for param in group["params"]]

    def _tensors(self) -> list[torch.Tensor]:
        states = [dict(optimizer.state) for optimizer in self._optimizers]
        masters = [_C.stepped_for(param) for param in self._params()]
        found = [*self._model.parameters(), *self._model.buffers(), *masters, *tree_leaves(states)]
        return [each for each in found if isinstance(each, torch.Tensor)]

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """Where the function's work on tensors is undone, without a trace in their versions."""
        before = [(tensor, tensor.detach().clone()) for tensor in self._tensors()]
        scalers = amp.state_dict()
        try:
            yield
        finally:
            for tensor, contents in before:
                tensor.data.copy_(contents)
            amp.load_state_dict(scalers)

    def replayed(self) -> Callable[[], None]:
        (args, kwargs), rates, result = self._call, self._rates, self.result
        before, grads = self._grads_before, [param.grad for param in self._params()]

        def replay() -> None:
            numbers = [group["lr"] for group in self._groups()]
            for group, rate in zip(self._groups(), rates):
                group["lr"] = rate
            for param, grad in zip(self._params(), before):
                param.grad = grad
            new = self._function(*args, **kwargs)
            for group, number in zip(self._groups(), numbers):
                group["lr"] = number
            with torch.no_grad():
                for own, fresh in zip(tree_leaves(result), tree_leaves(new)):
                    if own is not None:
                        own.copy_(fresh)
                for param, own in zip(self._params(), grads):
                    if own is not None:
                        own.copy_(param.grad)

        return replay


def graphs_of(recorded: Recorded) -> type:
    """In place of torchamp.amp._graphed._CudaGraphs."""

    class StandIn:
        device_type = "cpu"

        def __init__(self, device: torch.device) -> None:
            assert device.type == "cpu"

        def aside(self) -> contextlib.AbstractContextManager:
            return contextlib.nullcontext()

        @contextlib.contextmanager
        def capture(self) -> Iterator[Callable[[], None]]:
            replays: list[Callable[[], None]] = []
            recorded.is_captured = True
            try:
                with recorded.undone():
                    yield lambda: replays[0]()
            finally:
                recorded.is_captured = False
            replays.append(recorded.replayed())

    return StandIn
