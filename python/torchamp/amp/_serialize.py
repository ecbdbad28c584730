"""Checkpoints: models in float32, optimizers, scalers and level, in one file for both languages.

A file is what torch.save makes of dictionaries, lists, tensors, numbers and text; nothing in it is
run when it is loaded. C++ has the same in serialize.h.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Union

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from torchamp._load import _C
from torchamp.amp._serialize_checks import (
    FORMAT,
    MARK,
    SCALER_KEYS,
    check_header,
    check_model,
    check_optimizer,
    entries,
    kind_of,
    scaler_state,
)

if TYPE_CHECKING:
    from torchamp.amp._session import Session

File = Union[str, "os.PathLike[str]", IO[bytes]]


class Run(NamedTuple):
    """What a checkpoint is of. There are no scalers where initialize was told to leave everything
    alone."""

    models: list[torch.nn.Module]
    optimizers: list[torch.optim.Optimizer]
    opt_level: str
    scalers: list[_C.LossScaler]


def run_of(
    models: list[torch.nn.Module],
    optimizers: list[torch.optim.Optimizer],
    session: Session | None,
) -> Run:
    """`session`: None where initialize was told to leave everything alone."""
    bare = [
        m.module if isinstance(m, (DataParallel, DistributedDataParallel)) else m for m in models
    ]
    if session is None:
        return Run(bare, optimizers, "disabled", [])
    return Run(bare, optimizers, session.settings.properties.opt_level, session.scalers)


def save(run: Run, file: File) -> None:
    """Writes everything that training goes on from. Waits for the device.

    Raises TypeError, naming it, for anything in a state dict that is not a tensor, a number, text
    or None, or a container of these.
    """
    checkpoint = {
        MARK: FORMAT,
        "opt_level": run.opt_level,
        "models": [_plain(m.state_dict(), f"models[{i}]") for i, m in enumerate(run.models)],
        "optimizers": [_saved_optimizer(o, i) for i, o in enumerate(run.optimizers)],
        "loss_scalers": [dict(zip(SCALER_KEYS, scaler.state())) for scaler in run.scalers],
    }
    torch.save(checkpoint, file)


def load(run: Run, file: File) -> None:
    """Reads what save, here or in C++, wrote.

    Raises RuntimeError, and changes nothing, where the file is damaged or holds anything but data,
    or is of another level, other models or other optimizers.
    """
    checkpoint = _read(file)
    check_header(run.opt_level, checkpoint)
    models = entries(checkpoint, "models", "models", run.models)
    optimizers = entries(checkpoint, "optimizers", "optimizers", run.optimizers)
    scalers = [
        scaler_state(saved, i)
        for i, saved in enumerate(entries(checkpoint, "loss_scalers", "losses", run.scalers))
    ]
    for i, (model, saved) in enumerate(zip(run.models, models)):
        check_model(model, saved, f"models[{i}]")
    for i, (optimizer, saved) in enumerate(zip(run.optimizers, optimizers)):
        check_optimizer(optimizer, saved, f"optimizers[{i}]")
    for model, saved in zip(run.models, models):
        model.load_state_dict(saved)
    for optimizer, saved in zip(run.optimizers, optimizers):
        optimizer.load_state_dict(_completed(optimizer, saved))
    for scaler, state in zip(run.scalers, scalers):
        scaler.load_state(*state)


_PLAIN = (bool, int, float, str, type(None))


def _plain(value: Any, where: str) -> Any:
    """`value` with containers and numbers of the plain types, which C++ reads."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, Mapping):
        return {key: _plain(each, f"{where}.{key}") for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        values = [_plain(each, f"{where}[{i}]") for i, each in enumerate(value)]
        return values if isinstance(value, list) else tuple(values)
    for plain in _PLAIN:
        if isinstance(value, plain):
            return value if value is None else plain(value)
    raise TypeError(
        f"amp.save: expected {where} to be a tensor, a number, text or a container of these, "
        f"got {type(value).__name__}"
    )


def _saved_optimizer(optimizer: torch.optim.Optimizer, index: int) -> dict[str, Any]:
    name = f"optimizers[{index}]"
    return {"kind": kind_of(optimizer), **_plain(optimizer.state_dict(), name)}


def _read(file: File) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except pickle.UnpicklingError as error:
        # torch's own message advises to load it with everything that stands in it.
        raise _unreadable(file, "it is damaged, or holds more than data") from error
    except Exception as error:  # of which kind depends on where the damage is
        raise _unreadable(file, str(error)) from error


def _unreadable(file: File, reason: str) -> RuntimeError:
    return RuntimeError(
        f"amp.load: expected {str(file)!r} to be a file that amp.save wrote, got one that cannot "
        f"be read: {reason}"
    )


def _completed(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """A state dict whose groups have what C++ knows nothing of, `foreach` say, as it is here."""
    here = optimizer.state_dict()["param_groups"]
    groups = [{**own, **group} for own, group in zip(here, saved["param_groups"])]
    return {"state": saved["state"], "param_groups": groups}
