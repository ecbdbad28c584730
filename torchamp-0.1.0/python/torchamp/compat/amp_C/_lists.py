"""Shared by amp_C's functions: checks of the lists, and the flag."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

Lists = list[list[torch.Tensor]]


def check_lists(function: str, tensor_lists: Lists, *depths: int) -> None:
    """Raises RuntimeError unless there are as many lists as one of `depths`, not empty and of one
    length."""
    if len(tensor_lists) not in depths:
        expected = " or ".join(map(str, depths))
        raise RuntimeError(
            f"{function}: expected tensor_lists to have {expected} lists, got {len(tensor_lists)}"
        )
    lengths = [len(tensors) for tensors in tensor_lists]
    if lengths[0] == 0:
        raise RuntimeError(f"{function}: expected tensor_lists[0] to have tensors, got none")
    for i, length in enumerate(lengths):
        if length != lengths[0]:
            raise RuntimeError(
                f"{function}: expected tensor_lists[{i}] to have as many tensors as "
                f"tensor_lists[0], {lengths[0]}, got {length}"
            )


@contextlib.contextmanager
def found_inf_of(noop_flag: torch.Tensor, tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """A float32 scalar beside the tensors; if it is not 0 in the end, `noop_flag` becomes 1."""
    found_inf = torch.zeros((), device=tensors[0].device)
    yield found_inf
    noop_flag.masked_fill_(found_inf.to(noop_flag.device) != 0, 1)
