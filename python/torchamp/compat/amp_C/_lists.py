"""Shared by amp_C's functions: checks of the lists, and the flag."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

Lists = list[list[torch.Tensor]]


def check_lists(function: str, tensor_lists: Lists, depth: int) -> None:
    """Raises RuntimeError unless there are `depth` lists of one length, not empty."""
    lengths = [len(tensors) for tensors in tensor_lists]
    if len(lengths) != depth or 0 in lengths or len(set(lengths)) > 1:
        raise RuntimeError(
            f"{function}: expected tensor_lists to have {depth} lists of one length, not empty, "
            f"got {len(lengths)} of {lengths} tensors"
        )


@contextlib.contextmanager
def found_inf_of(noop_flag: torch.Tensor, tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """A float32 scalar beside the tensors; if it is not 0 in the end, `noop_flag` becomes 1."""
    found_inf = torch.zeros((), device=tensors[0].device)
    yield found_inf
    noop_flag.masked_fill_(found_inf.to(noop_flag.device) != 0, 1)
