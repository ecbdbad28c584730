"""amp_C's scaling, sums and norms."""

from __future__ import annotations

import torch

from torchamp import ops
from torchamp.compat.amp_C._lists import Lists, check_lists, found_inf_of

_CHECKED = {-1: ops.Check.BOTH, 0: ops.Check.X, 1: ops.Check.Y}


def multi_tensor_scale(
    chunk_size: int, noop_flag: torch.Tensor, tensor_lists: Lists, scale: float
) -> None:
    """tensor_lists: inputs, outputs. outputs = inputs * scale."""
    check_lists("multi_tensor_scale", tensor_lists, 2)
    inputs, outputs = tensor_lists
    with found_inf_of(noop_flag, inputs) as found_inf:
        ops.scale(inputs, outputs, scale, found_inf)


def multi_tensor_axpby(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Lists,
    a: float,
    b: float,
    arg_to_check: int = -1,
) -> None:
    """tensor_lists: x, y, outputs. outputs = a * x + b * y; arg_to_check: -1 both, 0 x, 1 y."""
    check_lists("multi_tensor_axpby", tensor_lists, 3)
    x, y, outputs = tensor_lists
    with found_inf_of(noop_flag, x) as found_inf:
        ops.axpby(a, x, b, y, outputs, found_inf, _CHECKED[arg_to_check])


def multi_tensor_l2norm(
    chunk_size: int, noop_flag: torch.Tensor, tensor_lists: Lists, per_tensor: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """tensor_lists: x. Returns (norm of all, norm of each), float32 of one element and of the
    list's length; the second is empty without per_tensor."""
    check_lists("multi_tensor_l2norm", tensor_lists, 1)
    (tensors,) = tensor_lists
    with found_inf_of(noop_flag, tensors) as found_inf:
        ops.check(tensors, found_inf)
    norm, norms = ops.l2norm(tensors, bool(per_tensor))
    return norm.reshape(1), norm.new_empty(0) if norms is None else norms
