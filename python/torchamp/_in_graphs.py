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
            return in_graph(*args, **kwargs)
        return eager(*args, **kwargs)

    call.__module__, call.__qualname__ = "torchamp.ops", op.__name__
    return call  # type: ignore[return-value]


def constant_in_graphs(function: Function) -> Function:
    """`function`, whose result a graph takes for constant: torch.compiler.assume_constant_result,
    which imports torch._dynamo, and this does not."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def _l2norm(tensors: Any, per_tensor: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
    norm, norms = torch.ops.torchamp.l2norm(tensors, per_tensor)
    return norm, norms if per_tensor else None


def _axpby(
    a: float,
    x: Any,
    b: float,
    y: Any,
    outputs: Any,
    found_inf: torch.Tensor,
    checked: _C.ops.Check = _C.ops.Check.BOTH,
    found_inf_per_tensor: torch.Tensor | None = None,
) -> None:
    torch.ops.torchamp.axpby(a, x, b, y, outputs, found_inf, checked.value, found_inf_per_tensor)


_APEX_RULE = _C.ops.ScaleRule()


def _update_scale(
    loss_scale: torch.Tensor,
    growth_tracker: torch.Tensor,
    hysteresis_tracker: torch.Tensor,
    found_inf: torch.Tensor,
    rule: _C.ops.ScaleRule = _APEX_RULE,
) -> None:
    packed = [rule.growth_factor, rule.backoff_factor, float(rule.growth_interval)]
    packed += [rule.min_scale, rule.max_scale, float(rule.hysteresis)]
    torch.ops.torchamp.update_scale(
        loss_scale, growth_tracker, hysteresis_tracker, found_inf, packed
    )


def _fused_step(
    algorithm: _C.StepAlgorithm, *args: Any, model_params: Any = (), **kwargs: Any
) -> None:
    torch.ops.torchamp.fused_step(
        algorithm.value, *args, model_params=list(model_params or ()), **kwargs
    )


#: Of arguments or results that no schema has a type for.
_ADAPTED = {
    "axpby": _axpby,
    "fused_step": _fused_step,
    "l2norm": _l2norm,
    "update_scale": _update_scale,
}
