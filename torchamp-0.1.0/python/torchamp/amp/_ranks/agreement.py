"""The ranks of process groups, which agree on overflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import torch
from torch import distributed

from torchamp._load import _C

ProcessGroups = Union["torch.distributed.ProcessGroup", Sequence["torch.distributed.ProcessGroup"]]


def groups_of(function: str, process_group: ProcessGroups | None) -> list[Any]:
    """The argument `process_group` of `function` as a list.

    Raises TypeError unless it is a group, some of them, or None; ValueError for a group that this
    rank is not in, RuntimeError before init_process_group.
    """
    if process_group is None:
        return []
    groups: list[Any] = [process_group]
    if isinstance(process_group, Sequence) and not isinstance(process_group, str):
        groups = list(process_group)
    for group in groups:
        _check_group(function, group)
    return groups


def _check_group(function: str, group: Any) -> None:
    if not distributed.is_available():
        raise RuntimeError(
            f"{function}: expected a torch with distributed for process_group, got one without"
        )
    if group is distributed.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(
            f"{function}: expected process_group to be one that this rank, "
            f"{distributed.get_rank()}, is in, got one that it is not"
        )
    if not isinstance(group, distributed.ProcessGroup):
        raise TypeError(
            f"{function}: expected process_group to be a torch.distributed.ProcessGroup or a list "
            f"of them, got {group!r}"
        )
    if not distributed.is_initialized():
        raise RuntimeError(
            f"{function}: expected torch.distributed to be initialized for process_group, but it "
            "is not; call torch.distributed.init_process_group first"
        )


def agreement_over(groups: Sequence[Any]) -> _C.Agreement:
    """Of the ranks of `groups`, which reduce one after the other: together they are those of a
    mesh. Empty: of this rank alone."""

    def all_reduce_max(tensor: torch.Tensor) -> None:
        for group in groups:
            distributed.all_reduce(tensor, distributed.ReduceOp.MAX, group)

    if not groups:
        return _C.Agreement(None, 0, 1)
    return _C.Agreement(all_reduce_max, distributed.get_rank(), distributed.get_world_size())
