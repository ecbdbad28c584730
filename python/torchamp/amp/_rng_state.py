"""The states of generators of random numbers, in a checkpoint's extra: C++ has torch's in
serialize.h."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Mapping
from typing import Any

import torch

from torchamp._arguments import expect


def get_rng_state() -> dict[str, Any]:
    """The states of the generators that dropout, data loaders and programs draw from by default:
    torch's of the CPU and of all CUDA devices, Python's `random`, and NumPy's global one where the
    program has imported it. Data alone, for amp.save's `extra`."""
    version, numbers, gauss = random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "cuda": cuda,
        "python": {"version": version, "numbers": torch.tensor(numbers), "gauss": gauss},
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        of_numpy = numpy.random.get_state(legacy=False)
        words = {key: _plain(value) for key, value in of_numpy["state"].items()}
        state["numpy"] = {**of_numpy, "state": words}
    return state


def _plain(value: Any) -> Any:
    """An array of NumPy as a tensor."""
    return torch.tensor(value.tolist()) if hasattr(value, "tolist") else value


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Sets them to what get_rng_state(), here or in C++, returned. Generators that are not in it
    stay as they are.

    Raises:
        TypeError: for anything else.
        ValueError: for another number of CUDA devices.
    """
    is_right = isinstance(state, Mapping) and isinstance(state.get("torch"), torch.Tensor)
    expect(is_right, "set_rng_state", "state", "what get_rng_state returned", state)
    cuda = state.get("cuda", [])
    if cuda and len(cuda) != torch.cuda.device_count():
        raise ValueError(
            f"set_rng_state: expected the states of {torch.cuda.device_count()} CUDA devices, got "
            f"those of {len(cuda)}; remove 'cuda' from the state to go on with other random numbers"
        )
    if "python" in state:
        saved = state["python"]
        random.setstate((saved["version"], tuple(saved["numbers"].tolist()), saved["gauss"]))
    if "numpy" in state:
        words = {key: _listed(value) for key, value in state["numpy"]["state"].items()}
        importlib.import_module("numpy").random.set_state({**state["numpy"], "state": words})
    torch.set_rng_state(state["torch"])
    if cuda:
        torch.cuda.set_rng_state_all(cuda)


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value
