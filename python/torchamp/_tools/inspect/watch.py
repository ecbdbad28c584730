"""Watches the ops of a model: each with the module that called it, forward and backward."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._C._autograd import _get_sequence_nr
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset
from torch.utils.hooks import RemovableHandle

from torchamp._arguments import expect, takes


@dataclasses.dataclass(frozen=True)
class Op:
    """One call of an ATen op."""

    name: str  #: as in "addmm"
    module: str  #: the innermost module's name in the model; "" is the model
    is_backward: bool
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]  #: also what it wrote in place
    is_view: bool  #: of an input's memory: nothing is computed
    numbers: list[float]  #: among its arguments
    function: Any  #: of torch.ops
    arguments: tuple[tuple, dict]  #: what it was called with

    @property
    def computes(self) -> bool:
        """Whether it gives no view, nor memory that nothing has written."""
        return not self.is_view and not self.name.startswith(("empty", "new_empty"))

    @property
    def writes_infinity(self) -> bool:
        """Whether a number among its arguments is inf or nan."""
        return not all(map(math.isfinite, self.numbers))


class Watch(TorchDispatchMode):
    """A context in which `see` gets every op that this thread, or a backward that it starts, runs
    for `model`. Ops after their autograd formulas and casts: those that compute.

    see: called after the op. May run ops of its own, which are not seen.
    outside: the name of what runs while no module of `model` does, as a loss function.
    """

    def __init__(
        self, model: torch.nn.Module, see: Callable[[Op], None], outside: str = ""
    ) -> None:
        super().__init__()
        self._names = {id(module): name for name, module in model.named_modules()}
        self._model = model
        self._see = see
        self._calls = _Calls(outside)
        self._hooks: list[RemovableHandle] = []
        self._is_seeing = False
        #: The op that raised last, and the module that called it.
        self.raised: tuple[str, str] | None = None
        self.call_counts: dict[str, int] = dict.fromkeys(self._names.values(), 0)

    @property
    def module(self) -> str:
        """The innermost module whose forward runs, or whose backward."""
        return self._calls.current()

    def __enter__(self) -> Watch:
        for module in self._model.modules():
            self._hooks += [
                module.register_forward_pre_hook(self._enter_module),
                module.register_forward_hook(lambda *_: self._calls.leave(), always_call=True),
            ]
        super().__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        for hook in self._hooks:
            hook.remove()

    def _enter_module(self, module: torch.nn.Module, args: object) -> None:
        name = self._names[id(module)]
        self.call_counts[name] += 1
        self._calls.enter(name)

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        try:
            outputs = function(*args, **kwargs)
        except Exception:
            self.raised = _name_of(function), self.module
            raise
        if not self._is_seeing:
            self._is_seeing = True
            try:
                self._see(self._op(function, args, kwargs, outputs))
            finally:
                self._is_seeing = False
        return outputs

    def _op(self, function: Any, args: tuple, kwargs: dict, outputs: Any) -> Op:
        return Op(
            _name_of(function),
            self.module,
            torch._C._current_graph_task_id() != -1,
            list(tensors_in((args, kwargs))),
            list(tensors_in(outputs)),
            function.is_view,
            list(_numbers_in((args, kwargs))),
            function,
            (args, kwargs),
        )


def _name_of(function: Any) -> str:
    return function._schema.name.split("::")[-1]


class _Calls:
    """Which module made a node of autograd's graph: nodes are numbered in the order in which a
    thread's forward makes them."""

    def __init__(self, outside: str) -> None:
        self._open: list[str] = [outside]
        self._starts: list[int] = []
        self._modules: list[str] = []

    def enter(self, module: str) -> None:
        self._open.append(module)
        self._mark()

    def leave(self) -> None:
        self._open.pop()
        self._mark()

    def _mark(self) -> None:
        """Nodes from the next one on are those of the innermost open module."""
        number = _get_sequence_nr()
        if self._starts and number < self._starts[-1]:
            return  # of another thread
        self._starts.append(number)
        self._modules.append(self._open[-1])

    def current(self) -> str:
        node = torch._C._current_autograd_node()
        if node is None or len(self._open) > 1:  # a forward, or one that a backward repeats
            return self._open[-1]
        return self._made_by(node._sequence_nr())

    def _made_by(self, number: int) -> str:
        index = bisect.bisect_right(self._starts, number) - 1
        is_leaf = number >= 2**63  # which accumulates grads
        return self._open[0] if index < 0 or is_leaf else self._modules[index]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and mappings."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from tensors_in(each)


def call_model(model: torch.nn.Module, batch: Any) -> Any:
    """model(batch): a mapping are keyword arguments, a tuple or list positional ones."""
    args, kwargs = _arguments(batch)
    return model(*args, **kwargs)


def _arguments(batch: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(batch, Mapping):
        return (), batch
    return (batch if isinstance(batch, (tuple, list)) else (batch,)), {}


def check_batch(function: str, model: torch.nn.Module, batch: Any) -> None:
    """Raises TypeError, which names `function`, unless call_model may call the model."""
    what, is_source = "what the model is called with", isinstance(batch, (DataLoader, Dataset))
    expect(not is_source, function, "batch", what, batch, "pass the input in one batch of it")
    args, kwargs = _arguments(batch)
    remedy = "leave out what its forward does not take, such as the target"
    expect(takes(model, *args, **kwargs), function, "batch", what, batch, remedy)


def floating(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of a floating dtype."""
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether a floating tensor has neither inf nor nan. Waits for the device."""
    values = tensor.coalesce().values() if tensor.is_sparse else tensor
    if values.element_size() == 1:  # float8, of which torch cannot tell
        values = values.float()
    return bool(values.detach().isfinite().all())


def _numbers_in(arguments: Any) -> Iterator[float]:
    if isinstance(arguments, float):
        yield arguments
    elif isinstance(arguments, (tuple, list)):
        yield from itertools.chain.from_iterable(map(_numbers_in, arguments))
    elif isinstance(arguments, Mapping):
        yield from _numbers_in(list(arguments.values()))


@contextlib.contextmanager
def unchanged(model: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """A context after which the model's buffers and torch's random numbers are as before. Gives
    copies of the buffers, by name."""
    buffers = dict(model.named_buffers())
    devices = {tensor.device for tensor in (*model.parameters(), *buffers.values())}
    cards = sorted({device.index or 0 for device in devices if device.type == "cuda"})
    before = {name: buffer.detach().clone() for name, buffer in buffers.items()}
    try:
        with torch.random.fork_rng(cards):
            yield before
    finally:
        with torch.no_grad():
            for name, buffer in buffers.items():
                buffer.copy_(before[name])
