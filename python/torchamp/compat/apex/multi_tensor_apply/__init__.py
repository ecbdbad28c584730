"""apex.multi_tensor_apply: how apex's programs call amp_C's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["MultiTensorApply", "multi_tensor_applier"]


class MultiTensorApply:
    """Calls a function of amp_C as apex does. chunk_size: handed over; torchamp's own plans decide
    how tensors are cut."""

    available = True

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(
        self, op: Callable, noop_flag_buffer: torch.Tensor, tensor_lists: list[Any], *args: Any
    ) -> Any:
        """op(chunk_size, noop_flag_buffer, tensor_lists, *args)."""
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)


multi_tensor_applier: MultiTensorApply = MultiTensorApply(2048 * 32)
