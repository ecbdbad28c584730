"""Checkpoints: models in float32, optimizers, scalers and level, in one file for both languages.

A file is what torch.save makes of dictionaries, lists, tensors, numbers and text; nothing in it is
run when it is loaded. C++ has the same in serialize.h.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from typing import IO, Any, NamedTuple, Union

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from torchamp._arguments import expect, uncompiled
from torchamp._load import _C
from torchamp.amp import _checkpoint_checks as checks
from torchamp.amp._run.ranks import are_sharded
from torchamp.amp._run.session import Session

File = Union[str, "os.PathLike[str]", IO[bytes]]

#: A zip's attribute of folders: torch's reader leaves such a record's memory uninitialized.
_FOLDER = 0x10

_OBJECTS = (
    "it is damaged, or contains non-data objects, as of torch.save(model, file); amp.save(model, "
    "optimizer, file) writes data alone"
)

_PLAIN = (bool, int, float, str)


class Run(NamedTuple):
    """The contents of a checkpoint. There are no scalers if initialize was disabled."""

    models: list[torch.nn.Module]
    optimizers: list[torch.optim.Optimizer]
    opt_level: str
    scalers: list[_C.LossScaler]


def run_of(
    function: str,
    models: list[torch.nn.Module],
    optimizers: list[torch.optim.Optimizer],
    session: Session | None,
) -> Run:
    """`session`: None if initialize was disabled. Raises RuntimeError after release(), and
    TypeError for DTensors, which name `function`."""
    bare = [
        uncompiled(m.module) if isinstance(m, (DataParallel, DistributedDataParallel)) else m
        for m in models
    ]
    if session is not None:
        session.check_not_released(function)
    if are_sharded(bare):
        raise TypeError(
            f"{function}: expected models of plain tensors, got DTensors; save their state dicts "
            "and the optimizers' by torch.distributed.checkpoint, and amp.state_dict()"
        )
    if session is None:
        return Run(bare, optimizers, "disabled", [])
    return Run(bare, optimizers, session.settings.properties.opt_level, session.scalers)


def _check_file(function: str, file: Any, method: str) -> None:
    is_right = isinstance(file, (str, os.PathLike)) or hasattr(file, method)
    expect(is_right, function, "file", "a path or a binary file", file)


def save(run: Run, file: File, extra: Mapping[str, Any] | None = None) -> None:
    """See amp.save. A TypeError names what in a state dict or in `extra` cannot be saved."""
    _check_file("save", file, "write")
    checkpoint = {
        checks.MARK: checks.FORMAT,
        "opt_level": run.opt_level,
        "models": [_plain(m.state_dict(), f"models[{i}]") for i, m in enumerate(run.models)],
        "optimizers": [_saved_optimizer(o, i) for i, o in enumerate(run.optimizers)],
        "loss_scalers": [dict(zip(checks.SCALER_KEYS, scaler.state())) for scaler in run.scalers],
        "extra": _saved_extra({} if extra is None else extra),
    }
    try:
        _write(checkpoint, file)
    except (OSError, RuntimeError) as error:
        if str(error).startswith("amp::save: "):  # of replace_file
            raise RuntimeError(str(error).replace("::", ".", 1)) from None
        raise RuntimeError(
            f"amp.save: expected {str(file)!r} to be written, got the error {str(error)!r}"
        ) from error


def _write(checkpoint: dict[str, Any], file: File) -> None:
    """A path keeps what it holds until all is written."""

    def write(path: str) -> None:
        with open(path, "wb") as opened:  # torch 2.8 and 2.9 do not report a full disk
            torch.save(checkpoint, opened)

    if isinstance(file, (str, os.PathLike)):
        _C.replace_file(os.fspath(file), write)
    else:
        torch.save(checkpoint, file)


def load(run: Run, file: File) -> dict[str, Any]:
    """See amp.load. Checks everything before it changes anything."""
    _check_file("load", file, "read")
    checkpoint = _read(file)
    checks.check_header(run.opt_level, checkpoint)
    models = checks.entries_of(checkpoint, "models", "models", len(run.models))
    optimizers = checks.entries_of(checkpoint, "optimizers", "optimizers", len(run.optimizers))
    scalers = [
        checks.scaler_state(saved, f"loss_scalers[{i}]")
        for i, saved in enumerate(
            checks.entries_of(checkpoint, "loss_scalers", "losses", len(run.scalers))
        )
    ]
    extra = checks.extra_of(checkpoint)
    for i, (model, saved) in enumerate(zip(run.models, models)):
        checks.check_model(model, saved, f"models[{i}]")
    for i, (optimizer, saved) in enumerate(zip(run.optimizers, optimizers)):
        checks.check_optimizer(optimizer, saved, f"optimizers[{i}]")
    for model, saved in zip(run.models, models):
        model.load_state_dict(saved)
    for optimizer, saved in zip(run.optimizers, optimizers):
        optimizer.load_state_dict(checks.completed(optimizer, saved))
    for scaler, state in zip(run.scalers, scalers):
        scaler.load_state(*state)
    return extra


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


def _saved_extra(extra: Any) -> dict[str, Any]:
    expect(isinstance(extra, Mapping), "amp.save", "extra", "a dict or None", extra)
    saved = _plain(extra, "extra")
    _check_for_cpp(saved, "extra")
    return saved


def _check_for_cpp(value: Any, where: str) -> None:
    """Raises TypeError for what C++ cannot read of plain values: it reads integers of 32 bits."""
    if isinstance(value, dict):
        for key, each in value.items():
            what = "text" if where == "extra" else "text or integers"
            is_right = isinstance(key, str) or (where != "extra" and isinstance(key, int))
            expect(is_right, "amp.save", f"the keys of {where}", what, key)
            _check_for_cpp(key, f"the keys of {where}")
            _check_for_cpp(each, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            _check_for_cpp(each, f"{where}[{i}]")
    elif isinstance(value, int) and not -(2**31) <= value < 2**31:
        raise TypeError(
            f"amp.save: expected {where} to be an integer of 32 bits, got {value}; save "
            "torch.tensor of it"
        )


def _saved_optimizer(optimizer: torch.optim.Optimizer, index: int) -> dict[str, Any]:
    name = f"optimizers[{index}]"
    return {"kind": checks.kind_of(optimizer), **_plain(optimizer.state_dict(), name)}


def _read(file: File) -> Any:
    try:
        _check_checksums(file)
        return torch.load(file, map_location="cpu", weights_only=True)
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except pickle.UnpicklingError as error:
        # torch's own message advises to load the file with weights_only=False.
        raise _unreadable(file, _OBJECTS) from error
    except Exception as error:  # of which kind depends on where the damage is
        raise _unreadable(file, str(error)) from error


def _check_checksums(file: File) -> None:
    """Raises an exception unless every record of the zip is as it was written: torch.load ignores
    the zip's checksums. Accepts zips without them: torch.serialization.set_crc32_options(False)."""
    with _kept_position(file), zipfile.ZipFile(file) as records:
        entries = records.infolist()
        if any(entry.filename.endswith("/constants.pkl") for entry in entries):
            raise RuntimeError(
                "it is one of C++'s torch::save; "
                "model.load_state_dict(torch.jit.load(file).state_dict()) loads a model of it"
            )
        if any(entry.external_attr & _FOLDER for entry in entries):
            raise RuntimeError("its directory is damaged")
        has_checksums = any(entry.CRC for entry in entries)
        damaged = records.testzip() if has_checksums else None
    if damaged is not None:
        raise RuntimeError(f"its record {damaged!r} is damaged: the checksum differs")


@contextlib.contextmanager
def _kept_position(file: File) -> Iterator[None]:
    if isinstance(file, (str, os.PathLike)):
        yield
        return
    position = file.tell()
    try:
        yield
    finally:
        file.seek(position)


def _unreadable(file: File, reason: str) -> RuntimeError:
    return RuntimeError(
        f"amp.load: expected {str(file)!r} to be a file that amp.save wrote, got one that cannot "
        f"be read: {reason}"
    )
