"""What initialize demands of models and optimizers, before it changes anything."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from torchamp._arguments import expect, type_of, uncompiled
from torchamp._load import _C
from torchamp._shards import shard_of
from torchamp.amp._casts.autocast import lasting_casts
from torchamp.amp._casts.cast import Float32Parts
from torchamp.amp._casts.masters import LOW_PRECISION, is_left_alone, params_of
from torchamp.amp._model.model import AmpModel
from torchamp.amp._run.session import in_training
from torchamp.amp._run.settings import Settings


def as_list(argument: str, value: Any, kind: type) -> list:
    """`value`, a `kind` or a list of them, as a list, and without torch.compile. Raises TypeError
    for anything else."""
    values = value if isinstance(value, list) else [value]
    for i, element in enumerate(values):
        if not isinstance(element, kind):
            where = f"{argument}[{i}]" if isinstance(value, list) else argument
            what = f"a {_name(kind)}{'' if isinstance(value, list) else ' or a list of them'}"
            remedy = "pass a list: list(...)" if isinstance(element, tuple) else ""
            expect(False, "initialize", where, what, element, remedy)
    return list(map(uncompiled, values))


def _name(kind: type) -> str:
    return f"torch.{'nn' if issubclass(kind, torch.nn.Module) else 'optim'}.{kind.__name__}"


def check_are_trained(
    models: list[torch.nn.Module], optimizers: list[torch.optim.Optimizer], settings: Settings
) -> None:
    """Raises ValueError where casts to 16 bits would have no model, or none whose parameters an
    optimizer may step. Without casts there is the loss scale alone."""
    properties = settings.properties
    if properties.cast_model_type not in LOW_PRECISION and properties.autocast_type is None:
        return
    if not models:
        raise ValueError(
            "initialize: expected models to be a torch.nn.Module or a list of them, got an empty "
            "list; pass the model that is trained"
        )
    if optimizers and not any(True for model in models for _ in model.parameters()):
        raise ValueError(
            f"initialize: expected models with parameters, got {', '.join(map(type_of, models))} "
            f"without any; pass the model that optimizers[0] ({type(optimizers[0]).__name__}) "
            "trains"
        )


class Float16Models:
    """Whether initialize takes models that train in float16 already."""

    are_allowed = False


def check_models(models: list[torch.nn.Module]) -> None:
    """Raises TypeError or RuntimeError for a model that initialize cannot take."""
    for i, model in enumerate(models):
        where = f"models[{i}]"
        if isinstance(model, (DataParallel, DistributedDataParallel)):
            raise RuntimeError(
                f"initialize: expected {where} to be an unwrapped model, got one wrapped in "
                f"{type(model).__name__}; initialize first, then wrap"
            )
        if isinstance(model, torch.jit.ScriptModule):
            raise TypeError(
                f"initialize: expected {where} to be a Python model, got a "
                f"{type(model).__name__}; initialize first, then trace"
            )
        _check_is_new(where, model)
        _check_tensors(where, model)


def check_scripted(models: list[torch.nn.Module], settings: Settings, kept: Float32Parts) -> None:
    """Raises TypeError for a scripted module whose tensors or calls would be cast."""
    is_cast = settings.properties.cast_model_type in LOW_PRECISION
    for i, model in enumerate(models):
        for name, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                continue
            own = (*module.parameters(), *module.buffers()) if is_cast else ()
            if module in kept or any(map(torch.is_floating_point, own)):
                raise TypeError(
                    f"initialize: expected models[{i}].{name} to be a Python module, got a "
                    f"{type(module).__name__}, whose state dict and calls cannot be cast; pass the "
                    "module that it was made of, or use O1 or O4 without keep_fp32 for it"
                )


def _check_is_new(where: str, model: torch.nn.Module) -> None:
    """A model of an earlier initialize that is still float32 may start again."""
    for name, module in model.named_modules():
        if isinstance(module, AmpModel) and module._torchamp.is_cast(module is model):
            part = f"{where}.{name}" if name else where
            if module._torchamp.is_for_inference:
                raise RuntimeError(
                    f"initialize: expected {part} ({type(module).__name__}) to be in float32, got "
                    "one that cast_for_inference has cast; load its state_dict() into a new model"
                )
            raise RuntimeError(
                f"initialize: expected {part} ({type(module).__name__}) not to be initialized "
                "already, but it is; pass all models and optimizers that belong together to one "
                "call, or end the earlier training by amp.release(model)"
            )


def _check_tensors(where: str, model: torch.nn.Module) -> None:
    for kind, named in (
        ("parameter", model.named_parameters()),
        ("buffer", model.named_buffers()),
    ):
        for name, tensor in named:
            if torch.nn.parameter.is_lazy(tensor):
                raise RuntimeError(
                    f"initialize: expected {kind} {name!r} of {where} to be materialized, got a "
                    "lazy one; run a forward first"
                )
    for name, param in model.named_parameters():
        if not is_left_alone(param):
            _check_memory(f"parameter {name!r} of {where}", param)
        is_half = param.dtype == torch.float16 and param.requires_grad
        if is_half and not Float16Models.are_allowed:
            raise RuntimeError(
                f"initialize: expected {where} to be a float32 model, got parameter {name!r} in "
                "float16; initialize casts the model itself: remove the call of half(), or freeze "
                "what does not train by requires_grad_(False)"
            )


def _check_memory(what: str, param: torch.Tensor) -> None:
    if not _C.has_memory(shard_of(param)):
        raise TypeError(
            f"initialize: expected {what} to have memory of its own, got a "
            f"{type(param).__name__} on {param.device}"
        )


def check_closures(optimizers: list[torch.optim.Optimizer], settings: Settings) -> None:
    """Raises ValueError for LBFGS where steps may be skipped."""
    takes_closures = settings.properties.loss_scale != "dynamic"
    for i, optimizer in enumerate(optimizers):
        if isinstance(optimizer, torch.optim.LBFGS) and not takes_closures:
            raise ValueError(
                f"initialize: expected optimizers[{i}] to call its closure once at a dynamic loss "
                "scale, which skips steps, got LBFGS; give initialize a loss_scale, or take O0, O4 "
                "or O5"
            )


def check_optimizers(optimizers: list[torch.optim.Optimizer]) -> None:
    """Raises TypeError, ValueError or RuntimeError for an optimizer that initialize cannot take."""
    for i, optimizer in enumerate(optimizers):
        name = type(optimizer).__name__
        if any(optimizer is other for other in optimizers[:i]):
            raise ValueError(
                f"initialize: expected each optimizer once, got optimizers[{i}] ({name}) twice"
            )
        if in_training(optimizer) is not None:
            raise RuntimeError(
                f"initialize: expected optimizers[{i}] ({name}) not to be initialized already, "
                "but it is; amp.release(model), of its model, makes it plain again"
            )
        for k, param in enumerate(params_of([optimizer])):
            if not param.is_meta:  # GivenParams.device() raises
                _check_memory(f"parameter {k} of optimizers[{i}] ({name})", param)
        if any(base.__name__ == "ZeroRedundancyOptimizer" for base in type(optimizer).__mro__):
            raise TypeError(
                f"initialize: expected optimizers[{i}] to step the parameters in its param_groups, "
                f"got a {name}, which steps some of them on each rank; shard the model by "
                "fully_shard, and pass a plain optimizer"
            )
        if any(base.__name__ == "PostLocalSGDOptimizer" for base in type(optimizer).__mro__):
            raise TypeError(
                f"initialize: expected optimizers[{i}] not to average in its step, which a rank "
                f"may skip alone, got a {name}; pass its optim, and average after the step"
            )


def check_in_backward(models: list[torch.nn.Module], settings: Settings) -> None:
    """Raises RuntimeError for parameters with in-backward optimizers that a cast would detach."""
    dtype = settings.properties.cast_model_type
    if dtype in (None, torch.float32):
        return
    for i, model in enumerate(models):
        for name, param in model.named_parameters():
            if param.dtype != dtype and hasattr(param, "_in_backward_optimizers"):
                raise RuntimeError(
                    f"initialize: expected parameter {name!r} of models[{i}] to be stepped after "
                    "the backward, got one that apply_optimizer_in_backward steps in it; use O0 or "
                    "O4, which leave parameters alone and do not scale the loss"
                )


def check_casts(settings: Settings) -> None:
    """Ends the casts of runs that are gone. Raises RuntimeError for those of another dtype that
    remain."""
    wanted = settings.properties.autocast_type
    others = lasting_casts(wanted) - {wanted}
    if wanted and others:
        raise RuntimeError(
            f"initialize: expected no casts but to {wanted} in this thread, got a model of an "
            f"earlier initialize that casts to {others.pop()}; end them by amp.release(model), "
            "also of a model that only a notebook's Out holds, or use another thread"
        )
