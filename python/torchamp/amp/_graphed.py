"""A training iteration as one CUDA graph."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from torchamp._arguments import expect
from torchamp._load import _C
from torchamp._logging import is_of_the_program, log, warn
from torchamp.amp._casts.explain import add_note
from torchamp.amp._casts.masters import params_of
from torchamp.amp._optimizer.optimizer import FUSED_IN_TORCH, steps_fused
from torchamp.amp._run.session import OptimizerSession, in_training, is_disabled, state_of

Function = TypeVar("Function", bound=Callable)

#: The calls with inputs of one form that come before a capture: libraries initialize themselves,
#: and optimizers make their states.
WARM_UP_CALLS = 3

#: So many captures in a row that were replayed once are enough.
_USELESS_CAPTURES = 3


def graphed(function: Function, *, max_graphs: int = 8) -> Function:
    """A training iteration that runs as one CUDA graph, which takes the host's part away::

        @amp.graphed
        def iteration(data, target):
            optimizer.zero_grad()
            loss = loss_fn(model(data), target)
            amp.scale_loss(loss, optimizer).backward()
            optimizer.step()
            return loss

        for data, target in loader:
            loss = iteration(data, target)
            scheduler.step()

    The first three calls run as they are; then one is captured, and later ones replay it. Tensors
    among the arguments are copied into the graph's, and returned tensors are the graph's, which the
    next call overwrites: `loss.clone()` keeps one. Anything else that the function reads is a
    constant of the graph, and its Python code does not run in replays. Learning rates are read
    before each call, so schedulers work outside of the function. After a change of other options of
    the optimizers, of their parameters or states, the next call runs as it is, and the one after it
    is captured.

    Loss scales, skipped steps, their messages and telemetry are as without a graph. On a CPU, and
    after initialize with enabled=False, it calls the function.

    Args:
        function: an iteration, from `zero_grad()` to `step()`. Its optimizers are those of one or
            several initialize, and never wait for the device: torchamp's fused ones, or torch's
            with fused=True, and capturable=True where they have that.
        max_graphs: how many graphs there may be. Arguments of other shapes, dtypes or values, but
            for those of tensors, take another one; beyond that number calls run as they are.

    Returns:
        A function with the arguments and results of `function`.

    Raises:
        TypeError: for what is no function, and, from the fourth call, for an optimizer that waits
            for the device.
        ValueError: for a max_graphs below 1.
        RuntimeError: from the fourth call: for a step by grads of an earlier call, for options that
            the function changes, and torch's own for what cannot be captured, with a note that
            names the line. Weights are as before that call, and later ones run as they are.
    """
    expect(callable(function), "graphed", "function", "a function", function)
    is_number = isinstance(max_graphs, int) and not isinstance(max_graphs, bool)
    expect(is_number, "graphed", "max_graphs", "an integer", max_graphs)
    if max_graphs < 1:
        raise ValueError(f"graphed: expected max_graphs to be at least 1, got {max_graphs}")
    run = _Graphed(function, max_graphs)
    return functools.wraps(function)(lambda *args, **kwargs: run(args, kwargs))  # type: ignore


class _CudaGraphs:
    """The graphs of one function, which share their memory."""

    device_type = "cuda"

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Where to run before a capture, as torch asks: not on the default stream."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)

    @contextlib.contextmanager
    def capture(self) -> Iterator[Callable[[], None]]:
        """Gives what replays the context."""
        graph = torch.cuda.CUDAGraph()
        # Threads that load data may call what a capture in this one must not.
        mode = {"pool": self._pool, "capture_error_mode": "thread_local"}
        with torch.cuda.graph(graph, stream=self._stream, **mode):  # type: ignore[arg-type]
            yield graph.replay


class _Form:
    """Calls whose arguments differ in the contents of tensors alone, and their graph."""

    def __init__(self, spec: TreeSpec, leaves: list[Any]) -> None:
        self._spec, self._leaves = spec, leaves
        self.calls = 0
        #: Those that they step.
        self.optimizers: dict[torch.optim.Optimizer, OptimizerSession | None] = {}
        #: The class of an optimizer whose learning rate the function has changed.
        self.changed: str | None = None
        #: Whether all calls run as they are.
        self.is_plain = False
        self.graph: _Graph | None = None
        self.useless_captures = 0

    def is_of(self, spec: TreeSpec, leaves: list[Any]) -> bool:
        return self._spec == spec and all(map(_are_same, self._leaves, leaves))


class _Options:
    """The options of an optimizer's groups, and its states, as they were for a capture."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._groups, self._states = optimizer.param_groups, optimizer.state
        self._count = len(optimizer.state)
        self._values = self._now()
        #: On the device, for groups whose learning rate is not.
        self.rates: list[tuple[dict[str, Any], torch.Tensor]] = []
        self._numbers: list[float] = []

    def _now(self) -> list[Any]:
        names = [name for name in self._optimizer.defaults if name != "lr"]
        groups = self._optimizer.param_groups
        values = [group.get(name) for group in groups for name in names]
        values += [lr for group in groups if _is_on_device(lr := group["lr"])]
        return [id(each) if isinstance(each, torch.Tensor) else each for each in values]

    def are_still(self) -> bool:
        """Whether the optimizer has the same groups, states, and options but for learning rates."""
        optimizer = self._optimizer
        is_same = optimizer.param_groups is self._groups and optimizer.state is self._states
        return is_same and len(self._states) == self._count and self._now() == self._values

    @contextlib.contextmanager
    def with_rates(self) -> Iterator[None]:
        """Where the learning rates that are numbers are tensors, which replays read."""
        dtype = torch.float64 if steps_fused(self._optimizer) else torch.float32
        device = params_of([self._optimizer])[0].device
        before = [group["lr"] for group in self._groups]
        for group, lr in zip(self._groups, before):
            if not _is_on_device(lr):
                rate = torch.tensor(float(lr), dtype=dtype, device=device)
                self.rates.append((group, rate))
                self._numbers.append(float(lr))
                group["lr"] = rate
        try:
            yield
        finally:
            for group, lr in zip(self._groups, before):
                group["lr"] = lr

    def write_rates(self) -> None:
        """Before a replay."""
        for i, (group, rate) in enumerate(self.rates):
            if (lr := float(group["lr"])) != self._numbers[i]:
                rate.fill_(lr)
                self._numbers[i] = lr


def _is_on_device(lr: Any) -> bool:
    return isinstance(lr, torch.Tensor) and lr.device.type == _Graphed.graphs_of.device_type


class _Graph:
    """A captured call."""

    def __init__(self, inputs: list[torch.Tensor], options: list[_Options]) -> None:
        self.inputs, self.options = inputs, options
        self.iteration: _C.CapturedIteration
        self.replay: Callable[[], None]
        self.result: Any = None
        self.replays = 0

    def is_current(self) -> bool:
        return self.iteration.is_current() and all(each.are_still() for each in self.options)


class _Graphed:
    #: Tests have others.
    graphs_of: type[_CudaGraphs] = _CudaGraphs

    def __init__(self, function: Callable, max_graphs: int) -> None:
        self._function, self._max_graphs = function, max_graphs
        self._forms: list[_Form] = []
        self._graphs: _CudaGraphs | None = None
        #: Whether all calls run as they are.
        self._is_plain = False
        self._told: set[str] = set()

    def __call__(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        call = functools.partial(self._function, *args, **kwargs)
        if self._is_plain:
            return call()
        leaves, spec = tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        form = self._form_of(spec, [_form_of_leaf(leaf) for leaf in leaves])
        if form is None:
            return call()
        if form.graph is not None and not form.graph.is_current():
            self._drop(form, form.graph)
        form.calls += 1
        if form.calls <= WARM_UP_CALLS:
            return self._warm_up(form, call, tensors)
        if form.is_plain or (form.graph is None and not self._is_ready(form, tensors)):
            return call()
        states = [state_of("graphed", optimizer) for optimizer in form.optimizers]
        for state in states:
            state.check_skips()
            state.session.casts.forget_copies()
        if form.graph is None:
            form.graph = self._capture(form, spec, leaves, states)
        self._replay(form.graph, tensors)
        return form.graph.result

    def _form_of(self, spec: TreeSpec, leaves: list[Any]) -> _Form | None:
        for form in self._forms:
            if form.is_of(spec, leaves):
                return form
        if len(self._forms) == self._max_graphs:
            self._tell(
                f"graphed: expected arguments of at most {self._max_graphs} forms (shapes, dtypes, "
                "and values of what is no tensor), got another; such calls run without a graph. "
                "Give graphed a larger max_graphs, or pad the inputs"
            )
            return None
        self._forms.append(_Form(spec, leaves))
        return self._forms[-1]

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            warn(text)

    def _warm_up(self, form: _Form, call: Callable[[], Any], tensors: list[torch.Tensor]) -> Any:
        devices = _devices_of(form, tensors)
        device = next((each for each in devices if each.type == self.graphs_of.device_type), None)
        if self._graphs is None and device is not None:
            self._graphs = self.graphs_of(device)
        before = {optimizer: _rates_of(optimizer) for optimizer in form.optimizers}
        with self._graphs.aside() if self._graphs else contextlib.nullcontext():
            with _stepping(lambda each: form.optimizers.update({each: in_training(each)})):
                result = call()
        devices = _devices_of(form, tensors)
        self._is_plain = is_disabled([*form.optimizers]) or all(
            each.type != self.graphs_of.device_type for each in devices
        )
        for optimizer, rates in before.items():
            if _rates_of(optimizer) != rates:
                form.changed = type(optimizer).__name__
        return result

    def _is_ready(self, form: _Form, tensors: list[torch.Tensor]) -> bool:
        """Whether a call can be captured. Raises what graphed does."""
        devices = _devices_of(form, tensors)
        if len(devices) > 1:
            self._tell(
                "graphed: expected the arguments' tensors on the parameters' device, got some on "
                f"{' and '.join(sorted(map(str, devices)))}; such calls run without a graph. Move "
                "the inputs before the call"
            )
            return False
        if any(state is not None and state.session.shards for state in form.optimizers.values()):
            self._tell(
                "graphed: expected whole parameters, got DTensors; calls run without a graph"
            )
            return False
        if not form.optimizers:
            raise RuntimeError(
                "graphed: expected a function that begins with zero_grad() and ends with step(), "
                "got one that steps no optimizer"
            )
        for optimizer in form.optimizers:
            _check_never_waits(optimizer, state_of("graphed", optimizer))
        if any(each.requires_grad for each in tensors):
            raise RuntimeError(
                "graphed: expected arguments that require no grad, got one that does, which "
                "replays would not reach; compute it in the function, or pass it as x.detach()"
            )
        if form.changed is not None:
            raise RuntimeError(
                "graphed: expected a function that leaves learning rates alone, got one that "
                f"changes that of {form.changed}, which replays would not; step schedulers after "
                "the call"
            )
        return True

    def _drop(self, form: _Form, graph: _Graph) -> None:
        """The next call runs as it is, for it may make states, and the one after it is captured;
        unless captures are of no use, because something changes before each call."""
        what = "options, parameters or states of an optimizer, or grads outside of it"
        form.graph, form.calls = None, WARM_UP_CALLS - 1
        form.useless_captures = form.useless_captures + 1 if graph.replays == 1 else 0
        form.is_plain = form.useless_captures == _USELESS_CAPTURES
        if form.is_plain:
            self._tell(
                f"graphed: expected {what} to stay, got changes before {_USELESS_CAPTURES} calls "
                "in a row; calls run without a graph. Of the options, learning rates alone may "
                "change: OneCycleLR needs cycle_momentum=False"
            )
        elif what not in self._told:
            self._told.add(what)
            log(logging.INFO, f"graphed: captured again after a change of {what}")

    def _capture(
        self, form: _Form, spec: TreeSpec, leaves: list[Any], states: list[OptimizerSession]
    ) -> _Graph:
        """A call that fails is undone, and later ones of its form run as they are."""
        given = [leaf.detach().clone() if _is_tensor(leaf) else leaf for leaf in leaves]
        args, kwargs = tree_unflatten(given, spec)
        graph = _Graph([leaf for leaf in given if _is_tensor(leaf)], [])
        graph.iteration = _C.CapturedIteration([(each.core, each.report) for each in states])
        graphs: Any = self._graphs
        form.is_plain, form.graph = True, None
        failure: list[BaseException] = []
        try:
            with contextlib.ExitStack() as stack:
                graph.options = [_Options(optimizer) for optimizer in form.optimizers]
                for each in graph.options:
                    stack.enter_context(each.with_rates())
                stack.enter_context(_stepping(functools.partial(_note_step, graph.iteration)))
                graph.replay = stack.enter_context(graphs.capture())
                try:
                    result = self._function(*args, **kwargs)
                    graph.iteration.end()
                except BaseException as error:
                    failure.append(error)
                    raise
        except BaseException as error:
            graph.iteration.cancel()
            first = failure[0] if failure else error  # the end of the capture raises, too
            if isinstance(first, Exception):
                _note_line(first)
            raise first from None
        form.is_plain = False
        graph.result = tree_map(lambda each: each.detach() if _is_tensor(each) else each, result)
        return graph

    def _replay(self, graph: _Graph, tensors: list[torch.Tensor]) -> None:
        graph.iteration.before_replay()
        for own, given in zip(graph.inputs, tensors):
            own.copy_(given.detach(), non_blocking=True)
        for options in graph.options:
            options.write_rates()
        graph.replay()
        graph.replays += 1
        graph.iteration.after_replay()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _are_same(leaf: Any, other: Any) -> bool:
    is_value = isinstance(leaf, (tuple, int, float, complex, str, bytes))
    return leaf is other or (is_value and type(leaf) is type(other) and leaf == other)


def _form_of_leaf(leaf: Any) -> Any:
    if not _is_tensor(leaf):
        return leaf
    return (leaf.shape, leaf.dtype, leaf.device, leaf.requires_grad)


def _devices_of(form: _Form, tensors: list[torch.Tensor]) -> set[torch.device]:
    return {each.device for each in (*tensors, *params_of(list(form.optimizers)))}


def _note_step(iteration: _C.CapturedIteration, optimizer: torch.optim.Optimizer) -> None:
    iteration.note_step(state_of("graphed", optimizer).core)


def _rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    rates = (group["lr"] for group in optimizer.param_groups)
    return [rate for rate in rates if not _is_tensor(rate)]


@contextlib.contextmanager
def _stepping(note: Callable[[torch.optim.Optimizer], None]) -> Iterator[None]:
    """Where `note` is called before each optimizer's step in this thread."""
    thread = threading.get_ident()

    def in_thread(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if threading.get_ident() == thread:
            note(optimizer)

    hook = register_optimizer_step_pre_hook(in_thread)
    try:
        yield
    finally:
        hook.remove()


def _check_never_waits(optimizer: torch.optim.Optimizer, state: OptimizerSession) -> None:
    """Raises TypeError if a step of it waits for the device, or cannot be captured."""
    if steps_fused(optimizer):
        return
    groups, name = optimizer.param_groups, type(optimizer).__name__
    needs_fused = state.session.scalers.are_dynamic
    is_fused = isinstance(optimizer, FUSED_IN_TORCH) and all(each.get("fused") for each in groups)
    is_capturable = all(each.get("capturable", is_fused) for each in groups)
    if not is_capturable or (needs_fused and not is_fused):
        wrong = [f"{key}={groups[0][key]}" for key in ("fused", "capturable") if key in groups[0]]
        raise TypeError(
            "graphed: expected optimizers whose steps never wait for the device, got "
            f"{name}{' with ' if wrong else ''}{', '.join(wrong)}; take one of "
            "torchamp.optimizers, or torch's with fused=True, and capturable=True where it has that"
        )


def _note_line(error: Exception) -> None:
    """Notes on an error in a capture which line of the program it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame for frame in frames if is_of_the_program(frame.filename)]
    if lines:
        place = f"{lines[-1].filename}, line {lines[-1].lineno}"
        add_note(
            error, f"graphed: {place}, could not be captured into a CUDA graph: {lines[-1].line}"
        )
