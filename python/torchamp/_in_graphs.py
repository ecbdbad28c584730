"""The ops for torch.compile, which traces what Python calls, and no compiled function: each is a
call of torch.ops.torchamp's op of the same name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from torchamp._bound import plain
from torchamp._load import _C

Function = TypeVar("Function", bound=Callable[..., Any])


def traceable(op: Function) -> Function:
    """`op`, for which a graph has torch.ops.torchamp's."""
    in_graph: Any = _ADAPTED.get(op.__name__) or getattr(torch.ops.torchamp, op.__name__)
    eager = plain(op)

    @functools.wraps(eager)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            named = {name: _in_schema(value) for name, value in kwargs.items()}
            return in_graph(*map(_in_schema, args), **named)
        return eager(*args, **kwargs)

    call.__module__, call.__qualname__ = "torchamp.ops", op.__name__
    return call  # type: ignore[return-value]


def constant_in_graphs(function: Function) -> Function:
    """`function`, whose result a graph takes for constant: torch.compiler.assume_constant_result,
    which imports torch._dynamo, and this does not."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def _in_schema(value: Any) -> Any:
    """`value`, of a type that schemas have."""
    if isinstance(value, (_C.ops.Check, _C.StepAlgorithm)):
        return value.value
    if isinstance(value, _C.ops.ScaleRule):
        numbers = (value.growth_factor, value.backoff_factor, float(value.growth_interval))
        return [*numbers, value.min_scale, value.max_scale]
    return value


def _l2norm(tensors: Any, per_tensor: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
    norm, norms = torch.ops.torchamp.l2norm(tensors, per_tensor)
    return norm, norms if per_tensor else None


def _fused_step(*args: Any, model_params: Any = (), **kwargs: Any) -> None:
    models = list(model_params or ())
    torch.ops.torchamp.fused_step(*args, model_params=models, lrs=[], **kwargs)


#: The ops whose arguments or results no schema has a type for.
_ADAPTED = {"fused_step": _fused_step, "l2norm": _l2norm}
