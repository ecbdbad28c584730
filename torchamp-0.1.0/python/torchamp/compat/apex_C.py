"""apex_C: flattening lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["flatten", "unflatten"]


def flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements of the dense tensors, which have one dtype and device, one after the other in a
    new tensor of one dimension."""
    return torch._utils._flatten_dense_tensors(tuple(tensors))


def unflatten(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Views of `flat`, one with the sizes of each tensor."""
    return list(torch._utils._unflatten_dense_tensors(flat, tuple(tensors)))
