"""Types of the public names. make lint runs mypy on the package and on the typed program."""

from __future__ import annotations

import inspect
import pathlib
import re
import typing

import pytest
import torch

from torchamp import amp, optimizers
from torchamp.amp import initialize
from torchamp.amp._run import settings as _settings

PROGRAM = pathlib.Path(__file__).with_name("typed_program.py")


def test_the_typed_program_runs(python):
    assert re.match("O[0-5] True 1 True ", python(str(PROGRAM)))


def test_the_types_of_overrides_are_those_of_arguments():
    """Every override that initialize takes, and no other."""
    taken = set(inspect.signature(initialize).parameters)
    others = {"models", "optimizers", "enabled", "opt_level", "process_group"}
    assert set(_settings.Overrides.__annotations__) == taken - others


def test_levels():
    assert typing.get_args(amp.Level) == tuple(f"O{i}" for i in range(6))
    for level in typing.get_args(amp.Level):
        amp.initialize(torch.nn.Linear(2, 2), opt_level=level, verbosity=0)


@pytest.mark.parametrize("name", optimizers.__all__)
def test_fused_optimizers_name_all_that_they_take(name):
    """FusedOptimizer's own arguments, too, and in the same way."""
    parameters = inspect.signature(getattr(optimizers, name)).parameters
    assert not any(
        each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters.values()
    )
    own = inspect.signature(optimizers.FusedOptimizer).parameters
    for storage in ("state_dtype", "stochastic_rounding"):
        assert parameters[storage] == own[storage]
