"""The dtypes of the states that optimizers keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from torchamp._logging import warn
from torchamp.amp._casts.masters import LOW_PRECISION, mastered
from torchamp.optimizers import FusedOptimizer


def fit_states(optimizer: torch.optim.Optimizer, params: Iterable[torch.Tensor]) -> None:
    """Gives the states of those of `params` that were cast, and have no master, the dtype that the
    optimizer's load_state_dict() gives them, except for wide sums."""
    keeps_wide = keeps_wide_sums(optimizer)
    for param in params:
        fitted = {
            name: value.to(param.dtype)
            for name, value in _fitting_states(optimizer, param)
            if value.dtype != param.dtype
            and (not keeps_wide or value.element_size() < param.element_size())
        }
        if fitted:
            optimizer.state[param] = {**optimizer.state[param], **fitted}


def keeps_wide_sums(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is torch's Adagrad, which, unless fused, has float32 sums of 16-bit parameters."""
    is_adagrad = isinstance(optimizer, torch.optim.Adagrad)
    return is_adagrad and not any(group.get("fused") for group in optimizer.param_groups)


def is_scalar_state(value: torch.Tensor, param: torch.Tensor) -> bool:
    """Whether it is one number for the whole parameter, as NAdam's product of momenta is, which
    torch computes in float32."""
    return value.dim() == 0 < param.dim()


def narrow_states(
    optimizers: Iterable[torch.optim.Optimizer], params: Iterable[torch.Tensor]
) -> list[torch.Tensor]:
    """The 16-bit states of those of `params` that have no master."""
    every = list(params)
    return [
        value
        for optimizer in optimizers
        for param in every
        for _, value in _fitting_states(optimizer, param)
        if value.dtype in LOW_PRECISION
    ]


def made_narrow(states: dict[Any, Any]) -> Iterator[str]:
    """The names of the 16-bit states of parameters with masters. After a step, they are those that
    the step has made so, of float32 parameters."""
    for param, state in states.items():
        if isinstance(state, dict) and isinstance(param, torch.Tensor) and mastered(param):
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.dtype in LOW_PRECISION:
                    yield name


def _fitting_states(
    optimizer: torch.optim.Optimizer, param: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    """The states, by name, that are to have their parameter's dtype."""
    state: Any = optimizer.state.get(param)
    is_plain = isinstance(state, dict) and mastered(param) is None
    if not is_plain or isinstance(optimizer, FusedOptimizer):
        return
    for name, value in state.items():
        is_tensor = isinstance(value, torch.Tensor) and name != "step"
        if not is_tensor or is_scalar_state(value, param):
            continue
        if value.dtype in (*LOW_PRECISION, torch.float32):
            yield name, value


def tell_copies(states: Any) -> None:
    """Warns of an optimizer whose parameters have 16 bits, and their states 32: a copy, without its
    model, of one that initialize returned."""
    for param, state in states.items() if isinstance(states, dict) else ():
        is_narrow = isinstance(param, torch.Tensor) and param.dtype in LOW_PRECISION
        values = state.values() if is_narrow and isinstance(state, dict) else ()
        if any(isinstance(v, torch.Tensor) and v.shape == param.shape for v in values) and all(
            v.dtype == torch.float32 for v in values if isinstance(v, torch.Tensor)
        ):
            warn(
                "step: expected an optimizer that initialize returned, got one that steps "
                "parameters of 16 bits by states of 32, as a copy without its model does; copy "
                "both: copy.deepcopy((model, optimizer)) gives them in float32"
            )
            return
