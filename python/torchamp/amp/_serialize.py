"""Checkpoints: models in float32, optimizers, scalers and level, in one file for both languages.

A file is what torch.save makes of dictionaries, lists, tensors, numbers and text; nothing in it is
run when it is loaded. C++ has the same in serialize.h.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from typing import IO, Any, NamedTuple, Union

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from torchamp._load import _C
from torchamp.amp._optimizer import suppress_accesses
from torchamp.amp._session import Session
from torchamp.optimizers import FusedOptimizer

File = Union[str, "os.PathLike[str]", IO[bytes]]

#: The entry that identifies a checkpoint, with its format's version.
_MARK = "torchamp"
_FORMAT = 1

_SCALER_KEYS = ("loss_scale", "growth_tracker", "hysteresis_tracker")
_PLAIN = (bool, int, float, str)


class Run(NamedTuple):
    """The contents of a checkpoint. There are no scalers if initialize was disabled."""

    models: list[torch.nn.Module]
    optimizers: list[torch.optim.Optimizer]
    opt_level: str
    scalers: list[_C.LossScaler]


def run_of(
    models: list[torch.nn.Module],
    optimizers: list[torch.optim.Optimizer],
    session: Session | None,
) -> Run:
    """`session`: None if initialize was disabled."""
    bare = [
        m.module if isinstance(m, (DataParallel, DistributedDataParallel)) else m for m in models
    ]
    if session is None:
        return Run(bare, optimizers, "disabled", [])
    return Run(bare, optimizers, session.settings.properties.opt_level, session.scalers)


def save(run: Run, file: File) -> None:
    """Writes everything that training resumes from. Waits for the device.

    Raises TypeError, naming it, for anything in a state dict that is not a tensor, a number, text
    or None, or a container of these.
    """
    checkpoint = {
        _MARK: _FORMAT,
        "opt_level": run.opt_level,
        "models": [_plain(m.state_dict(), f"models[{i}]") for i, m in enumerate(run.models)],
        "optimizers": [_saved_optimizer(o, i) for i, o in enumerate(run.optimizers)],
        "loss_scalers": [dict(zip(_SCALER_KEYS, scaler.state())) for scaler in run.scalers],
    }
    torch.save(checkpoint, file)


def load(run: Run, file: File) -> None:
    """Reads what save, here or in C++, wrote.

    Raises RuntimeError, and changes nothing, where the file is damaged or holds anything but data,
    or is of another level, other models or other optimizers.
    """
    checkpoint = _read(file)
    _check_header(run.opt_level, checkpoint)
    models = _entries(checkpoint, "models", "models", run.models)
    optimizers = _entries(checkpoint, "optimizers", "optimizers", run.optimizers)
    scalers = [
        _scaler_state(saved, i)
        for i, saved in enumerate(_entries(checkpoint, "loss_scalers", "losses", run.scalers))
    ]
    for i, (model, saved) in enumerate(zip(run.models, models)):
        _check_model(model, saved, f"models[{i}]")
    for i, (optimizer, saved) in enumerate(zip(run.optimizers, optimizers)):
        _check_optimizer(optimizer, saved, f"optimizers[{i}]")
    for model, saved in zip(run.models, models):
        model.load_state_dict(saved)
    for optimizer, saved in zip(run.optimizers, optimizers):
        optimizer.load_state_dict(_completed(optimizer, saved))
    for scaler, state in zip(run.scalers, scalers):
        scaler.load_state(*state)


def _plain(value: Any, where: str) -> Any:
    """`value` with containers and numbers of the plain types, which C++ reads."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, Mapping):
        return {key: _plain(each, f"{where}.{key}") for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        values = [_plain(each, f"{where}[{i}]") for i, each in enumerate(value)]
        return values if isinstance(value, list) else tuple(values)
    for plain in _PLAIN:
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(
        f"amp.save: expected {where} to be a tensor, a number, text or a container of these, "
        f"got {type(value).__name__}"
    )


def _saved_optimizer(optimizer: torch.optim.Optimizer, index: int) -> dict[str, Any]:
    name = f"optimizers[{index}]"
    return {"kind": _kind_of(optimizer), **_plain(optimizer.state_dict(), name)}


def _read(file: File) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except pickle.UnpicklingError as error:
        # torch's own message advises to load the file with weights_only=False.
        raise _unreadable(file, "it is damaged, or contains non-data objects") from error
    except Exception as error:  # of which kind depends on where the damage is
        raise _unreadable(file, str(error)) from error


def _unreadable(file: File, reason: str) -> RuntimeError:
    return RuntimeError(
        f"amp.load: expected {str(file)!r} to be a file that amp.save wrote, got one that cannot "
        f"be read: {reason}"
    )


def _completed(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """A state dict whose groups keep the options unknown to C++, such as `foreach`, of this run."""
    here = optimizer.state_dict()["param_groups"]
    groups = [{**own, **group} for own, group in zip(here, saved["param_groups"])]
    return {"state": saved["state"], "param_groups": groups}


def _kind_of(optimizer: torch.optim.Optimizer) -> str:
    """The name of torch's optimizer of the same algorithm: "Adam" for FusedAdam."""
    original = getattr(type(optimizer), "_torchamp_original", type(optimizer))
    name = original.__name__
    return name.removeprefix("Fused") if issubclass(original, FusedOptimizer) else name


def _take(tree: Any, key: str) -> Any:
    if not isinstance(tree, dict) or key not in tree:
        raise RuntimeError(
            f"amp.load: expected the checkpoint to contain {key!r}, but it is missing: the file is "
            "damaged or was not written by amp.save"
        )
    return tree[key]


def _check(fits: bool, expected: str, got: Any) -> None:
    if not fits:
        raise RuntimeError(f"amp.load: expected {expected}, got {got}")


def _check_header(opt_level: str, checkpoint: Any) -> None:
    found = _take(checkpoint, _MARK)
    _check(
        found == _FORMAT,
        f"a checkpoint of format {_FORMAT}",
        f"{found}, written by another version of torchamp",
    )
    level = _take(checkpoint, "opt_level")
    _check(
        level == opt_level,
        f"a checkpoint of opt_level {opt_level}",
        f"one of {level}; initialize at {level} to load it, or load its state dicts by torch.load",
    )


def _entries(checkpoint: dict[str, Any], key: str, what: str, here: list) -> list[Any]:
    saved = _take(checkpoint, key)
    _check(len(saved) == len(here), f"a checkpoint of {len(here)} {what}", f"one of {len(saved)}")
    return list(saved)


def _scaler_state(saved: dict[str, Any], index: int) -> tuple[float, int, int]:
    scale, growth, hysteresis = (_take(saved, key) for key in _SCALER_KEYS)
    _check(
        0 < scale < float("inf"),
        f"loss_scalers[{index}].loss_scale to be positive and finite",
        scale,
    )
    return scale, growth, hysteresis


def _check_model(model: torch.nn.Module, saved: dict[str, Any], name: str) -> None:
    here = model.state_dict()
    problems = [f'missing key "{key}"' for key in here if key not in saved]
    problems += [f'unexpected key "{key}"' for key in saved if key not in here]
    problems += [
        f'"{key}" with sizes {_sizes(saved[key])}, expected {_sizes(here[key])}'
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


def _check_optimizer(optimizer: torch.optim.Optimizer, saved: Any, name: str) -> None:
    expected, kind = _kind_of(optimizer), _take(saved, "kind")
    _check(kind == expected, f"{name} of the checkpoint to be of kind {expected}", kind)
    here = optimizer.state_dict()["param_groups"]
    there, states = _take(saved, "param_groups"), _take(saved, "state")
    _check_count(f"{name}", "param_groups", here, there)
    params = _params_of(optimizer)
    for i, (group, saved_group) in enumerate(zip(here, there)):
        where = f"{name}.param_groups[{i}]"
        _check_count(where, "params", group["params"], _take(saved_group, "params"))
        for own, saved_id in zip(group["params"], saved_group["params"]):
            _check_state(states.get(saved_id, {}), params[own], f"{where}.params[{own}]")


def _params_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The tensors that the optimizer steps, without materializing anything."""
    state = getattr(optimizer, "_torchamp", None)
    with suppress_accesses([] if state is None else [state]):
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
