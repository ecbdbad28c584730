"""amp_C: apex's functions on lists of tensors, over torchamp's ops.

All take `chunk_size` (not used), `noop_flag` (int32 of one element) and `tensor_lists`, then their
own arguments. Lists may mix dtypes, layouts and sizes; nothing waits for the device. `noop_flag` is
set to 1 by what was not finite, and by a 16-bit output that overflowed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from torchamp import ops
from torchamp.compat import _gone

__all__ = ["multi_tensor_axpby", "multi_tensor_l2norm", "multi_tensor_scale"]

__getattr__: _gone.Getattr = _gone.attributes_of("amp_C")

Lists = list[list[torch.Tensor]]

_CHECKED = {-1: ops.Check.BOTH, 0: ops.Check.X, 1: ops.Check.Y}


def multi_tensor_scale(
    chunk_size: int, noop_flag: torch.Tensor, tensor_lists: Lists, scale: float
) -> None:
    """tensor_lists: inputs, outputs. outputs = inputs * scale."""
    _check_lists("multi_tensor_scale", tensor_lists, 2)
    inputs, outputs = tensor_lists
    with _found_inf_of(noop_flag, inputs) as found_inf:
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
    _check_lists("multi_tensor_axpby", tensor_lists, 3)
    x, y, outputs = tensor_lists
    with _found_inf_of(noop_flag, x) as found_inf:
        ops.axpby(a, x, b, y, outputs, found_inf, _CHECKED[arg_to_check])


def multi_tensor_l2norm(
    chunk_size: int, noop_flag: torch.Tensor, tensor_lists: Lists, per_tensor: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """tensor_lists: x. Returns (norm of all, norm of each), float32 of one element and of the
    list's length; the second is empty without per_tensor."""
    _check_lists("multi_tensor_l2norm", tensor_lists, 1)
    (tensors,) = tensor_lists
    with _found_inf_of(noop_flag, tensors) as found_inf:
        ops.check(tensors, found_inf)
    norm, norms = ops.l2norm(tensors, bool(per_tensor))
    return norm.reshape(1), norm.new_empty(0) if norms is None else norms


def _check_lists(function: str, tensor_lists: Lists, depth: int) -> None:
    """Raises RuntimeError unless there are `depth` lists of one length, not empty."""
    lengths = [len(tensors) for tensors in tensor_lists]
    if len(lengths) != depth or 0 in lengths or len(set(lengths)) > 1:
        raise RuntimeError(
            f"{function}: expected tensor_lists to have {depth} lists of one length, not empty, "
            f"got {len(lengths)} of {lengths} tensors"
        )


@contextlib.contextmanager
def _found_inf_of(noop_flag: torch.Tensor, tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """A float32 scalar beside the tensors; if it is not 0 in the end, `noop_flag` becomes 1."""
    found_inf = torch.zeros((), device=tensors[0].device)
    yield found_inf
    noop_flag.masked_fill_(found_inf.to(noop_flag.device) != 0, 1)
