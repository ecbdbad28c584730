"""What torch's errors about dtypes come from, in a model that initialize has cast."""

from __future__ import annotations

import itertools
import re
import traceback

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from torchamp.amp._masters import LOW_PRECISION
from torchamp.amp._session import Session

_MISMATCH = re.compile(
    r"same (dtype|scalar type)|scalar type (\w+ but found|of)|bias type|dtypes? .*(match|equal)"
    r"|expected dtype|(16|Half)\w*\) and weight type \(torch\.(cuda\.)?Float"
)
_OVERFLOW = "without overflow"
_NO_KERNEL = re.compile("not implemented for '(Half|BFloat16)'")


def explain(error: Exception, model: torch.nn.Module, session: Session) -> None:
    """Adds a note with the likely cause and a remedy to an error about dtypes that the forward of
    `model` has raised, if it is cast to 16 bit. Python has notes since 3.11."""
    if session.settings.properties.cast_model_type not in LOW_PRECISION:
        return
    if _OVERFLOW in str(error):
        _add_note(error, _of_overflow(_running(error), model))
    elif _NO_KERNEL.search(str(error)):
        _add_note(error, _of_kernel(_running(error), model))
    elif _MISMATCH.search(str(error)):
        _add_note(error, _of_mismatch(_running(error), model))


def _add_note(error: Exception, note: str) -> None:
    if hasattr(error, "add_note"):
        error.add_note(f"torchamp: {note}")


def _of_overflow(running: list[torch.nn.Module], model: torch.nn.Module) -> str:
    dtype = _dtype_of(running)
    return (
        f"{_described(running[-1], model)} computes in {dtype}, whose largest number is "
        f"{torch.finfo(dtype).max:g}; write torch.finfo(x.dtype).min, of an input x, in the place "
        "of a number like -1e9"
    )


def _of_kernel(running: list[torch.nn.Module], model: torch.nn.Module) -> str:
    return (
        f"{_described(running[-1], model)} computes in {_dtype_of(running)}, in which torch has no "
        "such kernel for the device; name the module in keep_fp32"
    )


def _of_mismatch(running: list[torch.nn.Module], model: torch.nn.Module) -> str:
    dtype, module = _dtype_of(running), running[-1]
    where = _described(module, model)
    if module not in set(model.modules()):
        return (
            f"{_described(running[-2], model)} calls a {type(module).__name__} that initialize "
            f"has not cast to {dtype}, because it is no submodule; assign it to an attribute or "
            "put it in a torch.nn.ModuleList, before initialize"
        )
    for name, param in _added(module, dtype):
        return (
            f"parameter {name!r} of {where} is in {param.dtype}, in a model that initialize has "
            f"cast to {dtype}; add or replace modules before initialize"
        )
    return (
        f"{where} has got a tensor that is not in {dtype}; make tensors in forward in the dtype "
        "of an input x, as torch.zeros(3, dtype=x.dtype, device=x.device)"
    )


def _added(module: torch.nn.Module, dtype: torch.dtype) -> list[tuple[str, torch.nn.Parameter]]:
    """Its parameters that initialize would have cast."""
    own = module.named_parameters(recurse=False)
    is_norm = isinstance(module, _BatchNorm)
    return [] if is_norm else [(name, param) for name, param in own if param.dtype != dtype]


def _running(error: Exception) -> list[torch.nn.Module]:
    """The modules in whose calls it was raised, the innermost last."""
    calls = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = (call for call in calls if isinstance(call, torch.nn.Module))
    return [module for module, _ in itertools.groupby(modules)]


def _dtype_of(running: list[torch.nn.Module]) -> torch.dtype:
    """What the innermost of them that casts its inputs computes in."""
    states = (vars(module).get("_torchamp") for module in reversed(running))
    return next(state.input_type for state in states if state and state.input_type)


def _described(module: torch.nn.Module, model: torch.nn.Module) -> str:
    name = next((name for name, each in model.named_modules() if each is module), "")
    return f"{name!r} ({type(module).__name__})" if name else f"the model ({type(model).__name__})"
