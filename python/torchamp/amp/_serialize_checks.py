"""Whether a checkpoint fits the models and optimizers that are to take it over."""

from __future__ import annotations

from typing import Any

import torch

from torchamp.amp._optimizer_state import look_away
from torchamp.optimizers import FusedOptimizer

#: The entry that tells a checkpoint, and its format's version.
MARK = "torchamp"
FORMAT = 1

SCALER_KEYS = ("loss_scale", "growth_tracker", "hysteresis_tracker")


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """The name of torch's optimizer of the same algorithm: "Adam" for FusedAdam."""
    original = getattr(type(optimizer), "_torchamp_original", type(optimizer))
    name = original.__name__
    return name.removeprefix("Fused") if issubclass(original, FusedOptimizer) else name


def take(tree: Any, key: str) -> Any:
    if not isinstance(tree, dict) or key not in tree:
        raise RuntimeError(
            f"amp.load: expected the checkpoint to hold {key!r}, got none: the file is damaged or "
            "was not written by amp.save"
        )
    return tree[key]


def _check(fits: bool, expected: str, got: Any) -> None:
    if not fits:
        raise RuntimeError(f"amp.load: expected {expected}, got {got}")


def check_header(opt_level: str, checkpoint: Any) -> None:
    found = take(checkpoint, MARK)
    _check(
        found == FORMAT,
        f"a checkpoint of format {FORMAT}",
        f"{found}, which another version of torchamp wrote",
    )
    level = take(checkpoint, "opt_level")
    _check(
        level == opt_level,
        f"a checkpoint of opt_level {opt_level}",
        f"one of {level}; initialize at {level} to load it, or load its state dicts by torch.load",
    )


def entries(checkpoint: dict[str, Any], key: str, what: str, here: list) -> list[Any]:
    saved = take(checkpoint, key)
    _check(len(saved) == len(here), f"a checkpoint of {len(here)} {what}", f"one of {len(saved)}")
    return list(saved)


def scaler_state(saved: dict[str, Any], index: int) -> tuple[float, int, int]:
    scale, growth, hysteresis = (take(saved, key) for key in SCALER_KEYS)
    _check(
        0 < scale < float("inf"),
        f"loss_scalers[{index}].loss_scale to be positive and finite",
        scale,
    )
    return scale, growth, hysteresis


def check_model(model: torch.nn.Module, saved: dict[str, Any], name: str) -> None:
    here = model.state_dict()
    problems = [f'no "{key}"' for key in here if key not in saved]
    problems += [f'a further "{key}"' for key in saved if key not in here]
    problems += [
        f'"{key}" of sizes {_sizes(saved[key])} for {_sizes(here[key])}'
        for key in here.keys() & saved.keys()
        if _sizes(saved[key]) != _sizes(here[key])
    ]
    _check(
        not problems,
        f"{name} of the checkpoint to have the names and sizes of the model here",
        ", ".join(problems),
    )


def _sizes(value: Any) -> list[int] | None:
    return list(value.shape) if isinstance(value, torch.Tensor) else None


def check_optimizer(optimizer: torch.optim.Optimizer, saved: Any, name: str) -> None:
    expected, kind = kind_of(optimizer), take(saved, "kind")
    _check(kind == expected, f"{name} of the checkpoint to be of kind {expected}", kind)
    here = optimizer.state_dict()["param_groups"]
    there, states = take(saved, "param_groups"), take(saved, "state")
    _check_count(f"{name}", "param_groups", here, there)
    params = _params_of(optimizer)
    for i, (group, saved_group) in enumerate(zip(here, there)):
        where = f"{name}.param_groups[{i}]"
        _check_count(where, "params", group["params"], take(saved_group, "params"))
        for own, saved_id in zip(group["params"], saved_group["params"]):
            _check_state(states.get(saved_id, {}), params[own], f"{where}.params[{own}]")


def _params_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """What the optimizer steps. Looking at them has no consequences."""
    state = getattr(optimizer, "_torchamp", None)
    with look_away([] if state is None else [state]):
        return [param for group in optimizer.param_groups for param in group["params"]]


def _check_count(name: str, what: str, here: list, there: list) -> None:
    _check(
        len(here) == len(there), f"{name} of the checkpoint to have {len(here)} {what}", len(there)
    )


def _check_state(state: dict[str, Any], param: torch.Tensor, name: str) -> None:
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            _check(
                value.shape == param.shape,
                f'"{name}.{key}" of the checkpoint to have its parameter\'s sizes, '
                f"{list(param.shape)}",
                list(value.shape),
            )
