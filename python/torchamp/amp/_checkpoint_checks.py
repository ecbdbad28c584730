"""What a checkpoint must be to be loaded. All is checked before anything is changed: torch's
load_state_dict would fail halfway, or in the next step."""

from __future__ import annotations

import contextlib
import inspect
import math
import reprlib
from typing import Any, NamedTuple

import torch

from torchamp._load import _C
from torchamp.amp._casts.masters import params_of
from torchamp.optimizers import FusedAdam, FusedOptimizer

#: The entry that identifies a checkpoint, with its format's version.
MARK = "torchamp"
FORMAT = 1

SCALER_KEYS = ("loss_scale", "growth_tracker")

#: Options that select torch's implementation, and those that LibTorch's optimizers lack.
_MAY_BE_MISSING = {
    *("foreach", "capturable", "differentiable", "fused", "initial_accumulator_value"),
    *("bias_correction", "decay_after_momentum", "decoupled_weight_decay", "maximize"),
}


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """The name of torch's optimizer of the same algorithm: "Adam" for FusedAdam."""
    name = type(optimizer).__name__
    return name.removeprefix("Fused") if isinstance(optimizer, FusedOptimizer) else name


def completed(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """A state dict whose groups keep the options unknown to C++, such as `foreach`, of this run.
    "step" is no option, but a count that some optimizers show there."""
    here = optimizer.state_dict()["param_groups"]
    for own in here:
        own.pop("step", None)
    groups = [{**own, **group} for own, group in zip(here, saved["param_groups"])]
    return {"state": saved["state"], "param_groups": groups}


class _Brief(reprlib.Repr):
    """The first entries of a value, and no numbers of tensors, which take long to format, and which
    torch cannot format in all casts of O1."""

    def repr1(self, x: Any, level: int) -> str:
        if not isinstance(x, torch.Tensor):
            return super().repr1(x, level)
        return f"a {x.dtype} tensor of sizes {list(x.shape)} on {x.device}"


_described = _Brief().repr


def _check(fits: bool, expected: str, got: Any) -> None:
    if not fits:
        raise RuntimeError(f"amp.load: expected {expected}, got {got}")


def _check_value(fits: bool, expected: str, value: Any) -> None:
    """As _check, of a value of the file, described only where it does not fit."""
    _check(fits, expected, "" if fits else _described(value))


def _check_type(value: Any, expected: type, name: str) -> None:
    is_one = isinstance(value, expected)
    _check_value(is_one, f"{name} of the checkpoint to be a {expected.__name__}", value)


def _take(tree: Any, key: str) -> Any:
    if not isinstance(tree, dict) or key not in tree:
        raise RuntimeError(
            f"amp.load: expected the checkpoint to contain {key!r}, but it is missing: the file is "
            "damaged or was not written by amp.save"
        )
    return tree[key]


def _is_state_dict(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(each, torch.Tensor) for each in value.values())
    )


def check_header(opt_level: str, checkpoint: Any) -> None:
    """Raises RuntimeError for another format or level."""
    _check(
        not _is_state_dict(checkpoint),
        "a file that amp.save wrote",
        "a state dict; model.load_state_dict takes it",
    )
    found = _take(checkpoint, MARK)
    _check_type(found, int, MARK)
    _check(
        found == FORMAT,
        f"a checkpoint of format {FORMAT}",
        f"{found}, written by another version of torchamp",
    )
    level = _take(checkpoint, "opt_level")
    _check_type(level, str, "opt_level")
    _check(
        level == opt_level,
        f"a checkpoint of opt_level {opt_level}",
        f"one of {level}; initialize at {level} to load it, or load its state dicts by torch.load",
    )


def entries_of(checkpoint: dict[str, Any], key: str, what: str, expected: int) -> list[dict]:
    """The dicts of a list that must have `expected` of them."""
    saved = _take(checkpoint, key)
    _check_type(saved, list, key)
    _check(len(saved) == expected, f"a checkpoint of {expected} {what}", f"one of {len(saved)}")
    for i, entry in enumerate(saved):
        _check_type(entry, dict, f"{key}[{i}]")
    return saved


def extra_of(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """What save was given; empty in files that have none."""
    extra = checkpoint.get("extra", {})
    _check_type(extra, dict, "extra")
    return extra


def scaler_state(saved: dict[str, Any], name: str) -> tuple[float, int]:
    """The arguments of LossScaler.load_state."""
    loss_scale, growth = state = tuple(_take(saved, key) for key in SCALER_KEYS)
    try:
        _C.LossScaler().load_state(*state)
    except (TypeError, ValueError):
        raise RuntimeError(
            f"amp.load: expected {name} of the checkpoint to have a loss_scale above 0 that is "
            f"finite in float32, and a growth_tracker of 32 bits, got {loss_scale!r} and {growth!r}"
        ) from None
    return loss_scale, growth


def check_model(model: torch.nn.Module, saved: dict[str, Any], name: str) -> None:
    """Raises RuntimeError, naming all differences, unless the model can load `saved`."""
    here = model.state_dict()
    problems = [f'missing key "{key}"' for key in here if key not in saved]
    problems += [f'unexpected key "{key}"' for key in saved if key not in here]
    for key in here.keys() & saved.keys():
        problems += _differences(f'"{key}"', saved[key], here[key])
    _check(
        not problems,
        f"{name} of the checkpoint to have the names, sizes and types of the model here",
        ", ".join(problems),
    )


def _differences(name: str, saved: Any, own: Any) -> list[str]:
    if not isinstance(own, torch.Tensor):  # a module's extra state
        return []
    if not _is_data(saved) or _number_kind(saved) != _number_kind(own):
        return [f"{name} as {_described(saved)}, expected a {own.dtype} tensor"]
    if saved.shape != own.shape:
        return [f"{name} with sizes {list(saved.shape)}, expected {list(own.shape)}"]
    return []


def _is_data(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.device.type != "meta"
    )


def _number_kind(tensor: torch.Tensor) -> tuple[bool, bool, bool]:
    """Values of one kind are converted to each other: float16 and float32, int32 and int64."""
    return tensor.is_floating_point(), tensor.is_complex(), tensor.dtype is torch.bool


def _is_number(value: Any, *, may_be_nan: bool = False) -> bool:
    """Numbers may be tensors of one element."""
    if _is_data(value) and value.numel() == 1 and not value.is_complex():
        value = value.item()
    return isinstance(value, (int, float)) and (may_be_nan or not math.isnan(value))


def check_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any], name: str) -> None:
    """Raises RuntimeError unless `saved` is of the optimizer's kind, with its groups, complete
    options and complete states that fit the parameters."""
    expected, kind = kind_of(optimizer), _take(saved, "kind")
    _check(kind == expected, f"{name} of the checkpoint to be of kind {expected}", kind)
    here = optimizer.state_dict()["param_groups"]
    there, states = _take(saved, "param_groups"), _take(saved, "state")
    _check_type(there, list, f"{name}.param_groups")
    _check_type(states, dict, f"{name}.state")
    _check_count(name, "param_groups", here, there)
    for i, saved_group in enumerate(there):
        _check_type(saved_group, dict, f"{name}.param_groups[{i}]")
    params = list(map(_C.stepped_for, params_of([optimizer])))
    for i, (group, saved_group) in enumerate(zip(here, there)):
        where = f"{name}.param_groups[{i}]"
        _check_group(optimizer, group, saved_group, where)
        own_params = [params[own] for own in group["params"]]
        wanted = _wanted_states(optimizer, {**group, **saved_group}, own_params)
        for own, saved_id, of_param in zip(group["params"], saved_group["params"], wanted):
            _check_state(states.get(saved_id, {}), of_param, f"{where}.params[{own}]")


def _check_count(name: str, what: str, here: list, there: list) -> None:
    _check(
        len(here) == len(there), f"{name} of the checkpoint to have {len(here)} {what}", len(there)
    )


def _check_group(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], saved: dict[str, Any], name: str
) -> None:
    ids = _take(saved, "params")
    _check_type(ids, list, f"{name}.params")
    _check_count(name, "params", group["params"], ids)
    for saved_id in ids:
        _check_type(saved_id, int, f"{name}.params")
    for option in optimizer.defaults.keys() & group.keys():
        if option in saved or option not in _MAY_BE_MISSING:
            _check_value(
                _is_like(_take(saved, option), group[option]),
                f"{name}.{option} of the checkpoint to be a value like {_described(group[option])}",
                saved[option],
            )
    if isinstance(optimizer, FusedAdam):
        alone = "False, since torch.optim.Adam and AdamW alone have it"
        amsgrad = saved.get("amsgrad")
        _check(not amsgrad, f"{name}.amsgrad of the checkpoint to be {alone}", amsgrad)


def _is_like(saved: Any, own: Any) -> bool:
    """Whether `saved` can replace an option's value `own`."""
    if isinstance(own, (tuple, list)):
        return (
            isinstance(saved, (tuple, list))
            and len(saved) == len(own)
            and all(map(_is_like, saved, own))
        )
    if own is None or isinstance(own, str):
        return saved is None or isinstance(saved, str) or _is_number(saved)
    return _is_number(saved) or (saved is None and isinstance(own, bool))


class _Wanted(NamedTuple):
    """A parameter's state as far as it is known: for each entry a tensor of its sizes, or a
    number."""

    entries: dict[str, Any]
    required: set[str]


def _wanted_states(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], params: list[torch.Tensor]
) -> list[_Wanted]:
    """The states of the parameters of `group`."""
    if isinstance(optimizer, FusedOptimizer):
        algorithm = optimizer.algorithm_of(group)
        required, names = _C.required_states(algorithm), _C.state_names(algorithm)
        numbers = dict.fromkeys(required, 0.0)
        return [_Wanted({**numbers, **dict.fromkeys(names, p)}, set(required)) for p in params]
    may_be_missing = {"momentum_buffer"} if type(optimizer) is torch.optim.SGD else set()
    states = first_states(type(optimizer), group, params)
    return [_Wanted(state, state.keys() - may_be_missing) for state in states]


def first_states(
    kind: Any, group: dict[str, Any], params: list[torch.Tensor]
) -> list[dict[str, Any]]:
    """The states of `params` after a first step by an optimizer of torch's: what a step on the meta
    device makes, even where its arithmetic fails there, with a number for the count of steps. Empty
    for other classes, LBFGS and SparseAdam."""
    if kind not in vars(torch.optim).values():
        return [{} for _ in params]
    plain = {"foreach": None, "fused": None, "capturable": False, "differentiable": False}
    metas = [torch.empty_like(param, device="meta") for param in params]
    for meta in metas:
        meta.grad = torch.empty_like(meta)
    optimizer = kind([{**group, **plain, "params": metas}])
    with torch.no_grad(), contextlib.suppress(Exception):
        inspect.unwrap(kind.step)(optimizer)
    states = [_without_none(optimizer.state.get(meta, {})) for meta in metas]
    for state in states:
        state.update(dict.fromkeys({"step"} & state.keys(), 0.0))
    return states


def _without_none(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if value is not None}


def _check_state(saved: Any, wanted: _Wanted, name: str) -> None:
    _check_type(saved, dict, name)
    state = _without_none(saved)
    if not saved:
        return
    missing = sorted(wanted.required - state.keys())
    _check(not missing, f"{name} of the checkpoint to have {', '.join(missing)}", sorted(state))
    for key, value in state.items():
        _check_entry(value, wanted.entries.get(key), f'"{name}.{key}" of the checkpoint')


def _check_entry(value: Any, wanted: Any, name: str) -> None:
    if wanted is None:
        fits = not isinstance(value, torch.Tensor) or _is_data(value)
        _check_value(fits, f"{name} to have data", value)
    elif not isinstance(wanted, torch.Tensor) or wanted.dim() == 0:
        may_be_nan = isinstance(wanted, torch.Tensor)  # as states of larger sizes
        is_number = _is_number(value, may_be_nan=may_be_nan)
        _check_value(is_number, f"{name} to be a number", value)
    else:
        fits = _is_data(value) and _number_kind(value) == _number_kind(wanted)
        _check_value(fits, f"{name} to be a {wanted.dtype} tensor", value)
        sizes = list(wanted.shape)
        _check(list(value.shape) == sizes, f"{name} to have sizes {sizes}", list(value.shape))
