"""What initialize demands of models and optimizers, before it changes anything."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from torchamp.amp._model import AmpModel
from torchamp.amp._optimizer import AmpOptimizer


def as_list(argument: str, value: Any, kind: type) -> list:
    """`value`, a `kind` or a list of them, as a list. Raises TypeError for anything else."""
    values = value if isinstance(value, list) else [value]
    for i, element in enumerate(values):
        if not isinstance(element, kind):
            where = f"{argument}[{i}]" if isinstance(value, list) else argument
            raise TypeError(
                f"initialize: expected {where} to be a {_name(kind)}"
                f"{'' if isinstance(value, list) else ' or a list of them'}, "
                f"got {_described(element)}"
            )
    return values


def _name(kind: type) -> str:
    return f"torch.{'nn' if issubclass(kind, torch.nn.Module) else 'optim'}.{kind.__name__}"


def _described(value: Any) -> str:
    hint = "; a list is asked for: list(...) makes one" if isinstance(value, tuple) else ""
    return f"{type(value).__name__}{hint}"


def check_models(models: list[torch.nn.Module]) -> None:
    """Raises TypeError or RuntimeError for a model that initialize cannot take."""
    for i, model in enumerate(models):
        where = f"models[{i}]"
        if isinstance(model, (DataParallel, DistributedDataParallel)):
            raise RuntimeError(
                f"initialize: expected {where} to be a bare model, got one wrapped in "
                f"{type(model).__name__}; initialize first, then wrap"
            )
        if isinstance(model, torch.jit.ScriptModule):
            raise TypeError(
                f"initialize: expected {where} to be a Python model, got a "
                f"{type(model).__name__}; initialize first, then trace"
            )
        _check_is_new(where, model)
        _check_tensors(where, model)


def _check_is_new(where: str, model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, AmpModel) and not _may_start_again(module, module is model):
            part = f"{where}.{name}" if name else where
            raise RuntimeError(
                f"initialize: expected {part} ({type(module).__name__}) to be new to initialize, "
                "got one that it returned before; pass all models and optimizers that belong "
                "together to one call"
            )


def _may_start_again(module: AmpModel, is_whole: bool) -> bool:
    """Whether what an earlier initialize did to the model does not stand in the way of another:
    its parameters are float32 still, and, of a part of a model, its forward is as it was."""
    state = module._torchamp
    return state.input_type in (None, torch.float32) if is_whole else not state.changes_forward


def _check_tensors(where: str, model: torch.nn.Module) -> None:
    for kind, named in (
        ("parameter", model.named_parameters()),
        ("buffer", model.named_buffers()),
    ):
        for name, tensor in named:
            if torch.nn.parameter.is_lazy(tensor):
                raise RuntimeError(
                    f"initialize: expected {kind} {name!r} of {where} to have sizes, got a lazy "
                    "one; run a forward first"
                )
            if tensor.dtype == torch.float16:
                raise RuntimeError(
                    f"initialize: expected {where} to be a float32 model, got {kind} {name!r} in "
                    "float16; initialize casts the model itself: remove the call of half()"
                )


def check_optimizers(optimizers: list[torch.optim.Optimizer]) -> None:
    """Raises TypeError or RuntimeError for an optimizer that initialize cannot take."""
    for i, optimizer in enumerate(optimizers):
        name = type(optimizer).__name__
        if isinstance(optimizer, AmpOptimizer):
            raise RuntimeError(
                f"initialize: expected optimizers[{i}] ({name}) to be new to initialize, got one "
                "that it returned before"
            )
        if any(base.__name__ == "ZeroRedundancyOptimizer" for base in type(optimizer).__mro__):
            raise TypeError(
                f"initialize: expected optimizers[{i}] to show its parameters, got a {name}, "
                "which steps others than it shows"
            )


def one_device(
    models: list[torch.nn.Module], optimizers: list[torch.optim.Optimizer]
) -> torch.device:
    """The device of the optimizers' parameters; without any, of the first model parameter, else
    the CPU. Raises RuntimeError if the optimizers have several."""
    found = None
    for i, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for param in group["params"]:
                if found is not None and param.device != found:
                    raise RuntimeError(
                        "initialize: expected the parameters of all optimizers to be on one "
                        f"device, {found}, got one on {param.device} in optimizers[{i}]"
                    )
                found = param.device
    params = (param for model in models for param in model.parameters())
    return found or next((param.device for param in params), torch.device("cpu"))
