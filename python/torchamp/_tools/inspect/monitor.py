"""amp.Monitor: the loss scale and the grads of each step, for TensorBoard, CSV files and others."""

from __future__ import annotations

import collections
import csv
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO, Union

import torch

from torchamp._arguments import expect, takes
from torchamp._load import _C
from torchamp.amp._run.session import state_of


class ScalarWriter(Protocol):
    """As torch.utils.tensorboard.SummaryWriter."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any: ...


#: Takes the values of a step by name, and the keyword argument step: as wandb.log.
Log = Callable[..., Any]
Destination = Union[str, "os.PathLike[str]", ScalarWriter, Log]

_NAMES = (
    "amp/loss_scale",
    "amp/grad_norm",
    "amp/zero_grads",
    "amp/subnormal_grads",
    "amp/steps",
    "amp/skipped_steps",
)


@dataclasses.dataclass
class _Pending:
    """The numbers of a step that the device is still to report."""

    step: int
    values: torch.Tensor  #: loss scale, norm, shares; on the host
    arrived: torch.cuda.Event | None

    def has_arrived(self) -> bool:
        return self.arrived is None or self.arrived.query()


class Monitor:
    """Writes, at some steps of an optimizer that initialize returned:

    * `amp/loss_scale`: of the first loss, when the step began
    * `amp/grad_norm`: the L2 norm of all grads, unscaled; inf or nan after an overflow
    * `amp/zero_grads`, `amp/subnormal_grads`: the shares of elements of grads that are 0, and that,
      times the loss scale, are below float16's smallest normal number, so that precision is lost
    * `amp/steps`, `amp/skipped_steps`: since initialize, as the host knows them by then

    The destination is a file, a writer or a function::

        monitor = amp.Monitor(optimizer, "steps.csv")
        monitor = amp.Monitor(optimizer, SummaryWriter())  # torch.utils.tensorboard's
        monitor = amp.Monitor(optimizer, wandb.log)
        ...                                                # train
        monitor.close()

    Nothing waits for the device: values are written when they have arrived, at a later step or in
    close(). Of DTensors, grads are those of this rank's shards.

    Args:
        optimizer: one that initialize returned.
        to: a path of a CSV file, an object with TensorBoard's add_scalar, or a function that is
            called with a dict and the keyword argument step.
        every: how many steps from one that is observed to the next.

    Raises:
        RuntimeError: for an optimizer that initialize did not return.
        TypeError: for another destination.
        ValueError: unless every is a positive integer.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, to: Destination, *, every: int = 1
    ) -> None:
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"Monitor: expected every to be an integer from 1 on, got {every!r}")
        self._state = state_of("Monitor", optimizer)
        self._log = _log_to(to)
        self._to = to
        self._every = every
        self._count = 0
        self._pending: collections.deque[_Pending] = collections.deque()
        self._state.observers.append(self._observe)

    def close(self) -> None:
        """Waits for the device, writes the rest, and observes no longer."""
        if self._observe not in self._state.observers:
            return
        self._state.observers.remove(self._observe)
        for pending in self._pending:
            if pending.arrived is not None:
                pending.arrived.synchronize()
        self._write_arrived()
        if isinstance(self._log, _CsvLog):
            self._log.close()

    def __repr__(self) -> str:
        return f"Monitor(to={self._to!r}, every={self._every}, steps={self._count})"

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _observe(self) -> None:
        """Before a step."""
        step, self._count = self._count, self._count + 1
        device = self._state.session.device
        is_captured = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if step % self._every == 0 and not is_captured:
            self._pending.append(_sent(step, self._values()))
        self._write_arrived()

    def _write_arrived(self) -> None:
        while self._pending and self._pending[0].has_arrived():
            pending = self._pending.popleft()
            known = self._state.telemetry()
            values = [*pending.values.tolist(), known.steps, known.skipped_steps]
            self._log(dict(zip(_NAMES, values)), step=pending.step)

    def _values(self) -> torch.Tensor:
        """Loss scale, norm, share of zeros, share of subnormal grads, on the device."""
        session = self._state.session
        with session.shards.mirrored():
            return _C.measure(session.scalers[0].loss_scale_tensor(), self._state.core)


def _sent(step: int, values: torch.Tensor) -> _Pending:
    """Copies to the host without waiting."""
    if values.device.type != "cuda":
        return _Pending(step, values.clone(), None)
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(values.device))
    return _Pending(step, host, arrived)


class _CsvLog:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file: TextIO = open(path, "w", newline="")  # noqa: SIM115  closed by close()
        self._rows = csv.writer(self._file)
        self._rows.writerow(["step", *(name.removeprefix("amp/") for name in _NAMES)])

    def __call__(self, values: Mapping[str, float], step: int) -> None:
        self._rows.writerow([step, *values.values()])
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _log_to(to: Any) -> Log:
    if isinstance(to, (str, os.PathLike)):
        return _CsvLog(to)
    if callable(getattr(to, "add_scalar", None)):
        return functools.partial(_add_scalars, to)
    what = "a path, a SummaryWriter or a function of values and the keyword argument step"
    remedy = "write lambda values, step: print(step, values)" if callable(to) else ""
    expect(callable(to) and takes(to, {}, step=0), "Monitor", "to", what, to, remedy)
    return to


def _add_scalars(writer: Any, values: Mapping[str, float], step: int) -> None:
    for name, value in values.items():
        writer.add_scalar(name, value, step)
