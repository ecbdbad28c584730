"""Stage 3: keep masters. Which parameters have one, and how others find it."""

from __future__ import annotations

import weakref

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from torchamp._load import _C
from torchamp.amp._cast import params_to_cast
from torchamp.amp._settings import Settings

#: The MasterWeights, weakly, of each model parameter that has a master of its own.
_weights_of: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def weights_of(model_param: torch.Tensor | None) -> _C.Masters | None:
    """The MasterWeights that keep the master of `model_param`; None if it has none of its own."""
    found = None if model_param is None else _weights_of.get(model_param)
    return None if found is None else found()


def make_masters(
    models: list[torch.nn.Module],
    optimizers: list[torch.optim.Optimizer],
    settings: Settings,
) -> dict[torch.Tensor, torch.Tensor]:
    """float32 masters of the optimizers' parameters that the models' cast is about to round, by
    parameter; to be called before the cast."""
    properties = settings.properties
    if not settings.keeps_masters or properties.cast_model_type is None:
        return {}
    stepped = set(params_of(optimizers))
    masters = {}
    for model in models:
        kept = bool(properties.keep_batchnorm_fp32)
        for param in params_to_cast(model, properties.cast_model_type, kept):
            if param in stepped and param not in masters:
                masters[param] = _C.Masters.make_master(param)
    return masters


def params_of(optimizers: list[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """Every tensor in the optimizers' groups, in order."""
    return [
        param
        for optimizer in optimizers
        for group in optimizer.param_groups
        for param in group["params"]
    ]


def weights_for(optimizers: list[torch.optim.Optimizer]) -> list[_C.Masters]:
    """A MasterWeights for each optimizer; one for all of them if they share a parameter, which is
    then unscaled once."""
    distinct = [set(params_of([optimizer])) for optimizer in optimizers]
    if len(set().union(*distinct)) < sum(map(len, distinct)):
        return [_C.Masters()] * len(optimizers)
    return [_C.Masters() for _ in optimizers]


def track(
    weights: _C.Masters,
    param: torch.Tensor,
    masters: dict[torch.Tensor, torch.Tensor],
    keeps_masters: bool,
) -> torch.Tensor:
    """Tracks `param` and returns what the optimizer is to step: the master it has already, the one
    in `masters`, a new one if it is of low precision and masters are kept, or itself."""
    master = masters.get(param)
    if master is None and keeps_masters and param.dtype in (torch.float16, torch.bfloat16):
        master = _C.Masters.make_master(param)
    stepped = weights.track(param, master)
    if stepped is not param:
        _weights_of[param] = weakref.ref(weights)
    return stepped
