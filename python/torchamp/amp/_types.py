"""Types of initialize's arguments. Nothing here is needed to run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypedDict, TypeVar, Union

import torch

from torchamp.amp._kept import Rule
from torchamp.amp._policy import Policy

Level = Union[Literal["O0", "O1", "O2", "O3", "O4", "O5"], Policy, None]
Models = TypeVar("Models", bound=Union[torch.nn.Module, Sequence[torch.nn.Module]])
Optimizers = TypeVar("Optimizers", bound=Union[torch.optim.Optimizer, Sequence])


class Overrides(TypedDict, total=False):
    """What initialize changes of a level; its docstring says what each means."""

    cast_model_type: torch.dtype | bool | None
    patch_torch_functions: bool | None
    keep_batchnorm_fp32: bool | str | None
    master_weights: bool | None
    loss_scale: float | str | None
    cast_model_outputs: torch.dtype | None
    num_losses: int
    verbosity: int
    min_loss_scale: float | None
    max_loss_scale: float | None
    adopt_data_writes: bool
    materialize_master_grads: bool
    max_consecutive_skips: int | None
    keep_fp32: Rule | Iterable[Rule]
