"""apex.amp's submodules, for programs that import names from them."""

import importlib

import pytest
import torch


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("frontend", ["initialize", "Properties", "opt_levels", "state_dict", "load_state_dict"]),
        ("amp", ["init", "half_function", "register_float_function"]),
        ("handle", ["AmpHandle", "NoOpHandle"]),
        ("opt", ["OptimWrapper"]),
        ("scaler", ["LossScaler"]),
        ("_initialize", ["applier", "to_type"]),
    ],
)
def test_names_of_submodules(module, names):
    assert set(names) <= set(vars(importlib.import_module(f"apex.amp.{module}")))


def test_small_submodules():
    from apex.amp.__version__ import VERSION
    from apex.amp.frontend import opt_levels
    from apex.amp.rnn_compat import has_old_rnns

    assert VERSION == (0, 1, 0) and not has_old_rnns()
    assert opt_levels["O2"]().options["cast_model_type"] == torch.float16


def test_applier_goes_into_what_forward_takes():
    from apex.amp._initialize import applier, to_type

    one, count = torch.ones(1), torch.ones(1, dtype=torch.int64)
    half = applier({"a": [one, "s", None], "b": (count,)}, lambda t: to_type(torch.half, t))
    assert half["a"][0].dtype == torch.half and half["a"][1:] == ["s", None]
    assert half["b"][0] is count and type(half["b"]) is tuple
