"""What apex ships and the alias has not: an import says what to use instead."""

import importlib

import pytest

SHIPPED = "or install apex, which ships it"

#: By apex's name: what to use instead.
INSTEAD = {
    "apex.fused_dense": "torch.nn.Linear and torch.nn.GELU",
}


@pytest.mark.parametrize("name", INSTEAD)
def test_imports_say_what_to_use_instead(name):
    module, _, last = name.rpartition(".")
    message = f"torchamp has no {name}: use {INSTEAD[name]}, {SHIPPED}"
    for statement in (f"import {name}", f"from {name} import x", f"from {module} import {last}"):
        with pytest.raises(ImportError) as raised:
            exec(statement, {})
        assert str(raised.value) == message
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)
    assert not hasattr(importlib.import_module(module), last)
