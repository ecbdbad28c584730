"""Which linears initialize puts into float8."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchamp._load import _C
from torchamp._shards import is_dtensor
from torchamp.amp._casts.cast import Float32Parts

_EMBEDDINGS = (torch.nn.Embedding, torch.nn.EmbeddingBag)


def choose(
    models: Sequence[torch.nn.Module], kept: Float32Parts, option: bool | Sequence[str] | None
) -> tuple[list[tuple[str, torch.Tensor]], str]:
    """The weights of these linears by the linears' names, and the line that initialize logs; none
    where the option is False or None. Raises ValueError or RuntimeError where there are none."""
    if option in (None, False):
        return [], ""
    names = option if isinstance(option, list) else []
    return _C.choose_for_float8([_candidates(model, kept) for model in models], names)


def _candidates(model: torch.nn.Module, kept: Float32Parts) -> tuple[list[str], list, int]:
    """The names of its modules, its matrices, and how many elements its parameters have. Of a
    matrix: a name, whether the module of that name is an embedding, and whether it is kept."""
    modules = dict(model.named_modules(remove_duplicate=False))
    matrices = []
    for name, param in model.named_parameters(remove_duplicate=False):
        if is_dtensor(param):
            raise RuntimeError(
                "initialize: expected a model without DTensors for float8, got parameter "
                f"{name!r}, one of them; leave float8 out"
            )
        if param.dim() == 2 and param.is_floating_point():
            owner = modules[name.rpartition(".")[0]]
            matrices.append((name, param, isinstance(owner, _EMBEDDINGS), owner in kept))
    num_params = sum(param.numel() for param in model.parameters())
    return [*filter(None, modules)], matrices, num_params
