"""amp.report: the dtypes and casts of each module."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import torch

from torchamp._arguments import expect, module_of
from torchamp._tables import text_table
from torchamp._tools.inspect.watch import Op, Watch, call_model, check_batch, unchanged
from torchamp.amp._run.session import session_in_training

_HEADER = ["module", "type", "calls", "weights", "ops", "casts down", "casts up"]


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

    @property
    def depth(self) -> int:
        """0 is the model."""
        return len(self.name.split(".")) if self.name else 0


@dataclasses.dataclass
class Report:
    """The result of amp.report; print it."""

    level: str  #: "" if initialize did not return the model
    device: torch.device
    #: torch's own: "highest", or one that lets matrix products of float32 use TF32 on CUDA.
    float32_matmul_precision: str
    rows: list[ModuleRow]  #: as in model.named_modules()

    def __str__(self) -> str:
        level = self.level or "not initialized"
        tf32 = "" if self.float32_matmul_precision == "highest" else ", TF32 allowed"
        table = text_table(_HEADER, [_cells(row) for row in self.rows])
        return f"{level} on {self.device}{tf32}\n\n{table}"

    __repr__ = __str__


def _dtypes(counts: collections.Counter) -> str:
    return ", ".join(f"{count} {_short(dtype)}" for dtype, count in counts.most_common())


def _short(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def _cells(row: ModuleRow) -> list[str]:
    """The name is indented by depth."""
    name = "  " * row.depth + row.name.split(".")[-1] if row.name else "(model)"
    weights = ", ".join(map(_short, row.weight_dtypes))
    casts = [str(row.casts_down or ""), str(row.casts_up or "")]
    return [name, row.type, str(row.calls), weights, _dtypes(row.compute_dtypes), *casts]


def report(model: torch.nn.Module, batch: Any = None) -> Report:
    """Runs one forward of `batch` and reports, module by module, dtypes of weights and ops, casts
    and calls. Buffers and random numbers are afterwards as before. An error of the model's forward
    is the call's own.

    Args:
        model: one that initialize returned, or a plain one for comparison.
        batch: what the model is called with: a tensor, a tuple of positional arguments or a dict of
            keyword arguments. None: no forward, so no calls, ops and casts.

    Raises:
        TypeError: for arguments of other types.
    """
    model = module_of("report", model)
    is_right = not isinstance(batch, torch.optim.Optimizer)
    what, remedy = "what the model is called with", "leave out the optimizer"
    expect(is_right, "report", "batch", what, batch, remedy)
    check_batch("report", model, batch)
    rows = {}
    for name, module in model.named_modules():
        tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        dtypes = collections.Counter(tensor.dtype for tensor in tensors)
        rows[name] = ModuleRow(name, type(module).__name__, weight_dtypes=dtypes)
    if batch is not None:
        _run(model, batch, rows)
    session = session_in_training(model)
    return Report(
        "" if session is None else session.settings.properties.opt_level,
        _device_of(model),
        torch.get_float32_matmul_precision(),
        list(rows.values()),
    )


def _device_of(model: torch.nn.Module) -> torch.device:
    tensors = [*model.parameters(), *model.buffers()]
    return tensors[0].device if tensors else torch.device("cpu")


def _run(model: torch.nn.Module, batch: Any, rows: dict[str, ModuleRow]) -> None:
    """Counts calls, ops and casts."""
    watch = Watch(model, lambda op: _count(op, rows[op.module]))
    with unchanged(model), torch.enable_grad(), watch:
        call_model(model, batch)
    for name, calls in watch.call_counts.items():
        rows[name].calls = calls


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
