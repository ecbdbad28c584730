"""The dtypes of an optimizer's states: those from before initialize, and those of a state dict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchamp.amp._copies import PlainState, plain_state
from torchamp.amp._masters import params_of
from torchamp.optimizers import FusedOptimizer


def fitting(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    state: dict[str, Any],
    stepped: torch.Tensor,
) -> dict[str, Any]:
    """`state`, which the optimizer made before initialize, in the dtype of what it steps now, as
    its load_state_dict() gives it; torch's Adagrad, unless it is fused, keeps wider sums."""
    if isinstance(optimizer, FusedOptimizer):
        return state
    keeps_wide = isinstance(optimizer, torch.optim.Adagrad) and not group.get("fused")

    def fit(name: str, value: Any) -> Any:
        if name == "step" or not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        is_wide = value.element_size() > stepped.element_size()
        return value if keeps_wide and is_wide else value.to(stepped.dtype)

    return {name: fit(name, value) for name, value in state.items()}


def plain_state_of(optimizer: Any, own: dict[str, Any]) -> PlainState:
    """Of a copy of an AmpOptimizer. own: as the user's class gives it."""
    state = optimizer._torchamp
    state.follow(optimizer, "copy")
    params = {param.master: param.model for param in state.core.params()}
    cast_to = state.session.settings.properties.cast_model_type
    with state.accesses.suppress():
        stepped = [params.get(each, each) for each in params_of([optimizer])]
        plain = plain_state(own, stepped, cast_to)
        return plain._replace(own=_with_params(optimizer, own, params, dict(plain.values)))


def _with_params(
    optimizer: torch.optim.Optimizer,
    own: dict[str, Any],
    params: dict[torch.Tensor, torch.Tensor],
    values: dict[torch.Tensor, torch.Tensor],
) -> dict[str, Any]:
    """`own`, of optimizer.__getstate__(), with `params`, by master, in the place of masters, and
    with states that fit `values`, by parameter."""
    groups, states = [], own["state"].copy()
    for group in own["param_groups"]:
        groups.append({**group, "params": [params.get(each, each) for each in group["params"]]})
        for stepped, param in zip(group["params"], groups[-1]["params"]):
            if stepped in states:
                value = values.get(param, param)
                states[param] = fitting(optimizer, group, states.pop(stepped), value)
    return {**own, "param_groups": groups, "state": states}


def check_whole(state_dict: Any, function: str) -> None:
    """Raises RuntimeError for one rank's part of a state, as the former shard_masters made it."""
    if any("shard" in group for group in state_dict["param_groups"]):
        raise RuntimeError(
            f"{function}: expected the state of a whole optimizer, got one rank's part, which "
            "shard_masters made; load the model's state alone, which is whole"
        )


def load_keeping_dtypes(
    optimizer: torch.optim.Optimizer, load: Callable[[dict[str, Any]], Any], state_dict: Any
) -> None:
    """Calls `load`, torch's, which gives states the dtype of their parameter, except that states
    that the optimizer has already, such as Adagrad's float32 sums of float16 parameters, keep
    theirs."""
    dtypes = {(i, name): value.dtype for i, name, value in _tensors_of(optimizer)}
    load(state_dict)
    if isinstance(optimizer, FusedOptimizer):
        return
    saved_ids = [i for group in state_dict["param_groups"] for i in group["params"]]
    params = params_of([optimizer])
    for i, name, value in list(_tensors_of(optimizer)):
        dtype = dtypes.get((i, name), value.dtype)
        if dtype != value.dtype:
            saved = state_dict["state"][saved_ids[i]][name]
            optimizer.state[params[i]][name] = saved.to(value.device, dtype, copy=True)


def _tensors_of(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, str, torch.Tensor]]:
    """The optimizer's states, each with the number of its parameter and its name."""
    for i, param in enumerate(params_of([optimizer])):
        for name, value in optimizer.state.get(param, {}).items():
            if isinstance(value, torch.Tensor):
                yield i, name, value
