"""What apex has and the alias has not: an import, or a use, says what to use instead."""

import importlib
import pkgutil
import sys

import pytest

from torchamp.compat._gone import INSTEAD

#: Those in packages: an import of another one says that its parent is none.
NAMES = [
    name
    for name in INSTEAD
    if not any(part in name for part in ("AmpHandle", "_amp_state", "fused_layer_norm"))
]

names = pytest.mark.parametrize("name", NAMES)
every = pytest.mark.parametrize("name", INSTEAD)


def message_of(name):
    return f"torchamp has no {name}: use {INSTEAD[name]}"


def test_the_sentence():
    expected = (
        "torchamp has no apex.optimizers.FusedMixedPrecisionLamb: use apex.optimizers.FusedLAMB "
        "with amp.initialize at O2 or O5"
    )
    assert message_of("apex.optimizers.FusedMixedPrecisionLamb") == expected


@names
def test_imports_say_what_to_use_instead(name):
    module, _, last = name.rpartition(".")
    for statement in (f"import {name}", f"from {name} import x", f"from {module} import {last}"):
        with pytest.raises(ImportError) as raised:
            exec(statement, {})
        assert str(raised.value) == message_of(name)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)
    assert not hasattr(importlib.import_module(module), last)


@names
def test_attributes_say_what_to_use_instead(name, capsys):
    module, _, last = name.rpartition(".")
    with pytest.raises(AttributeError) as raised:
        getattr(importlib.import_module(module), last)
    assert str(raised.value) == message_of(name)
    sys.__excepthook__(type(raised.value), raised.value, raised.value.__traceback__)
    assert capsys.readouterr().err.splitlines()[-1] == f"AttributeError: {message_of(name)}"
    with pytest.raises(AttributeError, match=f"^module '{module}' has no attribute 'nothing'$"):
        _ = importlib.import_module(module).nothing


@every
def test_what_to_use_is_there(name):
    named = [word.rstrip(",") for word in INSTEAD[name].split() if "." in word]
    assert named
    for each in named:
        pkgutil.resolve_name("apex." * each.startswith("amp.") + each)
