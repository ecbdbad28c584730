"""amp.report: the dtypes, casts and bytes of each module."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from torchamp._arguments import module_of
from torchamp._tables import text_table
from torchamp._tools.inspect.bytes import (
    Bytes,
    bytes_of_params,
    float32_bytes_of,
    in_unit,
    unit_for,
)
from torchamp._tools.inspect.watch import Op, Watch, call_model, check_batch, unchanged
from torchamp.amp._autocast import shield
from torchamp.amp._masters import LOW_PRECISION, listed_optimizers


@dataclasses.dataclass
class ModuleRow:
    """One module: its own ops and tensors, without those of the modules in it."""

    name: str  #: in the model; "" is the model
    type: str
    calls: int = 0
    weight_dtypes: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    #: The ops that computed floating tensors, by their dtype, without casts and views.
    compute_dtypes: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    casts_down: int = 0  #: to a floating dtype of fewer bits
    casts_up: int = 0  #: to one of more
    bytes: Bytes = dataclasses.field(default_factory=Bytes)

    @property
    def depth(self) -> int:
        """0 is the model."""
        return len(self.name.split(".")) if self.name else 0


@dataclasses.dataclass
class Report:
    """What amp.report returns; print it."""

    level: str  #: "" if initialize did not return the model
    device: torch.device
    #: torch's own: "highest", or one that lets matrix products of float32 use TF32 on CUDA.
    float32_matmul_precision: str
    rows: list[ModuleRow]  #: as in model.named_modules()
    bytes: Bytes  #: the sums of the rows
    float32_bytes: Bytes  #: the same training in float32

    @property
    def peak_bytes(self) -> int:
        """The memory that is needed at the end of a forward and before the step, all of `bytes`. An
        op's own workspace and the allocator's rounding come on top."""
        return self.bytes.total

    @property
    def saved_bytes(self) -> int:
        """How many fewer than in float32; negative if it is more."""
        return self.float32_bytes.total - self.bytes.total

    def __str__(self) -> str:
        return f"{self._title()}\n\n{text_table(*self._table())}\n\n{self._summary()}"

    __repr__ = __str__

    def _title(self) -> str:
        level = self.level or "not initialized"
        tf32 = "" if self.float32_matmul_precision == "highest" else ", TF32 allowed"
        return f"{level} on {self.device}{tf32}"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows, without columns of sizes that are all 0."""
        kinds = [name for name, size in self.bytes.to_dict().items() if size]
        unit = unit_for(self.bytes.total)
        header = ["module", "type", "calls", "weights", "ops", "casts down", "casts up"]
        header += [f"{kind} {unit}" for kind in kinds]
        return header, [_cells(row, kinds, unit) for row in self.rows]

    def _summary(self) -> str:
        unit = unit_for(self.bytes.total)
        here, plain = self.bytes, self.float32_bytes
        parts = ", ".join(f"{name} {in_unit(size, unit)}" for name, size in here.to_dict().items())
        saved = self.saved_bytes
        share = round(100 * abs(saved) / max(plain.total, 1))
        return (
            f"peak {in_unit(here.total, unit)} {unit} ({parts}), {share} % "
            f"{'less' if saved >= 0 else 'more'} than in float32 ({in_unit(plain.total, unit)})"
        )


def _dtypes(counts: collections.Counter) -> str:
    return ", ".join(f"{count} {_short(dtype)}" for dtype, count in counts.most_common())


def _short(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def _cells(row: ModuleRow, kinds: list[str], unit: str) -> list[str]:
    """The name is indented by depth. kinds: of bytes."""
    name = "  " * row.depth + row.name.split(".")[-1] if row.name else "(model)"
    weights = ", ".join(map(_short, row.weight_dtypes))
    counts = [str(row.calls), weights, _dtypes(row.compute_dtypes)]
    casts = [str(row.casts_down or ""), str(row.casts_up or "")]
    sizes = row.bytes.to_dict()
    return [
        name,
        row.type,
        *counts,
        *casts,
        *(in_unit(sizes[kind], unit) if sizes[kind] else "" for kind in kinds),
    ]


def report(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | list[torch.optim.Optimizer] | None = None,
    batch: Any = None,
) -> Report:
    """Runs one forward of `batch` and reports, module by module, dtypes of weights and ops, casts,
    calls, and bytes of weights, grads, masters, optimizer state and activations (what autograd
    keeps for the backward).

    Buffers and random numbers are afterwards as before, grads and masters are not touched.
    `float32_bytes` is exact for weights, grads, masters and state, and at O1 and O4 for
    activations, which a second forward without casts counts; elsewhere it counts four bytes per
    element of a 16-bit activation. An error of the model's forward is the call's own.

    Args:
        model: one that initialize returned, or a plain one for comparison.
        optimizer: those that step its parameters; None leaves masters and state out. The state of
            an optimizer that has not stepped yet is what its first step will make.
        batch: what the model is called with: a tensor, a tuple of positional arguments or a dict of
            keyword arguments. None: no forward, so no calls, casts and activations.

    Raises:
        TypeError: for arguments of other types.
    """
    model = module_of("report", model)
    optimizers = [] if optimizer is None else listed_optimizers("report", optimizer, "optimizer")
    check_batch("report", model, batch)
    rows = {name: ModuleRow(name, type(module).__name__) for name, module in model.named_modules()}
    sizes, plain = bytes_of_params(model, optimizers), float32_bytes_of(model, optimizers)
    for name, module in model.named_modules():
        for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            rows[name].weight_dtypes[tensor.dtype] += 1
            rows[name].bytes += sizes.pop(tensor, Bytes())
    if batch is not None:
        plain.activations = _run(model, batch, rows)
    session = _session_of(model)
    return Report(
        "" if session is None else session.settings.properties.opt_level,
        _device_of(model),
        torch.get_float32_matmul_precision(),
        list(rows.values()),
        sum((row.bytes for row in rows.values()), Bytes()),
        plain,
    )


def _session_of(model: torch.nn.Module) -> Any:
    return getattr(getattr(model, "_torchamp", None), "session", None)


def _device_of(model: torch.nn.Module) -> torch.device:
    tensors = [*model.parameters(), *model.buffers()]
    return tensors[0].device if tensors else torch.device("cpu")


def _run(model: torch.nn.Module, batch: Any, rows: dict[str, ModuleRow]) -> int:
    """Counts ops, casts and activations; returns the bytes of activations in float32."""
    # Autograd keeps the whole memory of a tensor, which may be a data set that the batch is of.
    batch = tree_map_only(torch.Tensor, torch.clone, batch)
    devices = {_device_of(model)}
    with unchanged(model, devices):
        saved = _forward(model, batch, rows)
    session = _session_of(model)
    if session is None or session.casts is None:
        return sum(size * (2 if dtype in LOW_PRECISION else 1) for dtype, size in saved)
    with unchanged(model, devices), shield():
        return sum(size for _, size in _forward(model, batch, None))


def _forward(
    model: torch.nn.Module, batch: Any, rows: dict[str, ModuleRow] | None
) -> list[tuple[torch.dtype, int]]:
    """Counts in `rows`; returns dtype and bytes of each memory that autograd keeps."""

    def see(op: Op) -> None:
        if rows is not None:
            _count(op, rows[op.module])

    watch = Watch(model, see)
    with _saved_tensors(model, watch, rows) as saved, torch.enable_grad(), watch:
        call_model(model, batch)
    if rows is not None:
        for name, calls in watch.call_counts.items():
            rows[name].calls = calls
    return list(saved.values())


@contextlib.contextmanager
def _saved_tensors(
    model: torch.nn.Module, watch: Watch, rows: dict[str, ModuleRow] | None
) -> Iterator[dict[int, tuple[torch.dtype, int]]]:
    """A context that collects dtype and bytes of what autograd keeps, by address, but for
    parameters and buffers, whose bytes count as weights."""
    kept = {
        tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())
    }
    saved: dict[int, tuple[torch.dtype, int]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in kept and address not in saved:
            saved[address] = tensor.dtype, storage.nbytes()
            if rows is not None:
                rows[watch.module].bytes.activations += storage.nbytes()
        return tensor.detach()  # an output itself would be kept by its own graph

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved


def _count(op: Op, row: ModuleRow) -> None:
    if op.is_view:
        return
    cast = _cast_of(op)
    if cast > 0:
        row.casts_up += 1
    elif cast < 0:
        row.casts_down += 1
    else:
        for output in op.outputs[:1]:
            if output.is_floating_point():
                row.compute_dtypes[output.dtype] += 1


def _cast_of(op: Op) -> int:
    """The bytes per element that a cast adds; 0 if it is none."""
    if op.name not in ("_to_copy", "copy_") or not op.inputs:
        return 0
    source, result = op.inputs[-1], op.outputs[0]
    if not (source.is_floating_point() and result.is_floating_point()):
        return 0
    return result.element_size() - source.element_size()
