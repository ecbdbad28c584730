"""Notes on the errors of torch that casts cause: the likely cause, and the remedy."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterable

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from torchamp._load import _C
from torchamp.amp._casts.autocast import autocast_around
from torchamp.amp._casts.masters import LOW_PRECISION, mastered


def explain(
    error: Exception,
    model: torch.nn.Module,
    device: torch.device,
    dtype: torch.dtype | None,
    autocast_type: torch.dtype | None,
) -> None:
    """Adds a note with the likely cause and a remedy to an error about dtypes that the forward of
    `model`, on `device`, has raised, if it is cast to `dtype`, or its ops to `autocast_type`, of 16
    bits. Python has notes since 3.11."""
    kind = _C.dtype_error(str(error))
    if not kind:
        return
    running = _running(model, error)
    if autocast_type is not None:
        add_note(error, _AUTOCAST[kind].format(autocast_type) + _or_kept(running, model))
    elif dtype in LOW_PRECISION:
        notes = {"overflow": _overflow_note, "no kernel": _kernel_note, "mixed": _mismatch_note}
        around = autocast_around(dtype, device.type)
        add_note(error, around or notes[kind](running, model))


_AUTOCAST = {
    "overflow": "the op computes in {0}, which does not hold a number of this size; write "
    "torch.finfo(x.dtype).min, of the tensor x, in the place of a number like -1e9",
    "no kernel": "torch has no kernel in {0} for this op on this device; write op(x.float())",
    "mixed": "the op has got tensors of two dtypes, for which autocast to {0} has no rule; cast "
    "one of them, as x.float()",
}


def explain_change(
    error: Exception, models: Iterable[torch.nn.Module], dtype: torch.dtype | None
) -> None:
    """Adds a note that names a parameter with a master that `models`, cast to `dtype`, have in
    another dtype by now, and a remedy."""
    for name, param in (named for model in models for named in model.named_parameters()):
        if param.dtype != dtype and mastered(param) is not None:
            note = f"parameter {name!r} is in {param.dtype}"
            if module := name.rpartition(".")[0]:
                note += f"; if a forward has cast it, initialize with keep_fp32={module!r}"
            return add_note(error, note)


def explain_backward(error: object) -> None:
    """Adds a note with the cause and a remedy to an error about dtypes of a backward."""
    if isinstance(error, RuntimeError) and (note := _BACKWARD.get(_C.dtype_error(str(error)))):
        add_note(error, note)


_BACKWARD = {
    "hook": "a hook of a tensor has to return its grad in the dtype that it came in, which is that "
    "of the tensor, and a mask or factor in float32 widens it; write mask.to(grad.dtype)",
    "mixed": "an op of the forward has got tensors of two dtypes; cast one of them, as "
    "target.to(output.dtype)",
}


def add_note(error: Exception, note: str) -> None:
    if hasattr(error, "add_note"):
        error.add_note(f"torchamp: {note}")


def _overflow_note(running: list[torch.nn.Module], model: torch.nn.Module) -> str:
    dtype = _dtype_of(running)
    return (
        f"{described(running[-1], model)} computes in {dtype}, whose largest number is "
        f"{torch.finfo(dtype).max:g}; write torch.finfo(x.dtype).min, of an input x, in the place "
        f"of a number like -1e9{_or_kept(running, model)}"
    )


def _kernel_note(running: list[torch.nn.Module], model: torch.nn.Module) -> str:
    return (
        f"{described(running[-1], model)} computes in {_dtype_of(running)}, in which torch has no "
        "such kernel for the device; write op(x.float()).to(x.dtype) in its forward"
        f"{_or_kept(running, model)}"
    )


def _mismatch_note(running: list[torch.nn.Module], model: torch.nn.Module) -> str:
    dtype, module = _dtype_of(running), running[-1]
    where = described(module, model)
    if module not in set(model.modules()):
        return (
            f"{described(running[-2], model)} calls a {type(module).__name__} that initialize "
            f"has not cast to {dtype}, because it is no submodule; assign it to an attribute or "
            "put it in a torch.nn.ModuleList, before initialize"
        )
    is_norm = isinstance(module, _BatchNorm)
    for name, param in () if is_norm else module.named_parameters(recurse=False):
        if param.dtype == dtype:
            continue
        return (
            f"parameter {name!r} of {where} is in {param.dtype}, in a model that initialize has "
            f"cast to {dtype}; add or replace modules before initialize"
        )
    return (
        f"{where} has got a tensor that is not in {dtype}; make tensors in forward in the dtype "
        "of an input x, as torch.zeros(3, dtype=x.dtype, device=x.device)"
        f"{_or_kept(running, model)}"
    )


def _or_kept(running: list[torch.nn.Module], model: torch.nn.Module) -> str:
    """The remedy where the code of the innermost module cannot be changed; none for the model
    itself, and for what is in float32 already."""
    states = (vars(module).get("_torchamp") for module in running)
    is_kept = any(state and state.input_type == torch.float32 for state in states)
    name = _name_of(running[-1], model)
    return f", or initialize with keep_fp32={name!r}" if name and not is_kept else ""


def _running(model: torch.nn.Module, error: Exception) -> list[torch.nn.Module]:
    """`model` and the modules in it in whose calls `error` was raised, the innermost last."""
    calls = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = (call for call in (model, *calls) if isinstance(call, torch.nn.Module))
    return [module for module, _ in itertools.groupby(modules)]


def _dtype_of(running: list[torch.nn.Module]) -> torch.dtype:
    """The dtype that the innermost of them that casts its inputs computes in."""
    states = (vars(module).get("_torchamp") for module in reversed(running))
    return next(state.input_type for state in states if state and state.input_type)


def described(module: torch.nn.Module, model: torch.nn.Module) -> str:
    """Its name in the model, and its class."""
    name = _name_of(module, model)
    return f"{name!r} ({type(module).__name__})" if name else f"the model ({type(model).__name__})"


def _name_of(module: torch.nn.Module, model: torch.nn.Module) -> str:
    return next((name for name, each in model.named_modules() if each is module), "")
