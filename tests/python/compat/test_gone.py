"""What apex ships and the alias has not: an import, or a use, says what to use instead."""

import importlib

import pytest

ADAM = "apex.optimizers.FusedAdam"
LAMB = "apex.optimizers.FusedLAMB with amp.initialize at O2 or O5"

#: By apex's name: what to use instead.
INSTEAD = {
    "amp_C.multi_tensor_adam_capturable": ADAM,
    "amp_C.multi_tensor_adam_capturable_master": f"{ADAM} with amp.initialize at O2 or O5",
    "amp_C.multi_tensor_l2norm_mp": "amp_C.multi_tensor_l2norm",
    "amp_C.multi_tensor_l2norm_scale": "amp_C.multi_tensor_l2norm and amp_C.multi_tensor_scale",
    "amp_C.multi_tensor_lamb_mp": LAMB,
    "apex.fused_dense": "torch.nn.Linear and torch.nn.GELU",
    "apex.mlp.mlp_function": "apex.mlp.MLP",
    "apex.optimizers.FusedMixedPrecisionLamb": LAMB,
    "apex.optimizers.fused_mixed_precision_lamb": LAMB,
}


def message_of(name):
    return f"torchamp has no {name}: use {INSTEAD[name]}, or install apex, which ships it"


@pytest.mark.parametrize("name", INSTEAD)
def test_imports_say_what_to_use_instead(name):
    module, _, last = name.rpartition(".")
    for statement in (f"import {name}", f"from {name} import x", f"from {module} import {last}"):
        with pytest.raises(ImportError) as raised:
            exec(statement, {})
        assert str(raised.value) == message_of(name)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)
    assert not hasattr(importlib.import_module(module), last)


@pytest.mark.parametrize("name", INSTEAD)
def test_attributes_say_what_to_use_instead(name):
    module, _, last = name.rpartition(".")
    with pytest.raises(AttributeError) as raised:
        getattr(importlib.import_module(module), last)
    assert str(raised.value) == message_of(name)
    with pytest.raises(AttributeError, match=f"^module '{module}' has no attribute 'nothing'$"):
        _ = importlib.import_module(module).nothing
