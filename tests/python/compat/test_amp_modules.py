"""apex.amp's submodules, for programs that import names from them."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from apex import amp
from apex.amp._amp_state import _amp_state
from apex.amp._initialize import applier, to_type
from apex.amp._list_edits import follow_list_edits
from apex.amp.lists import functional_overrides, tensor_overrides, torch_overrides
from compat.optimizers import initialized

from torchamp.amp._casts import autocast as _autocast


def test_small_submodules():
    from apex.amp.__version__ import VERSION
    from apex.amp.rnn_compat import RNN_NAMES, has_old_rnns

    assert VERSION == (0, 1, 0) and not has_old_rnns() and "lstm" in RNN_NAMES


def test_applier_goes_into_what_forward_takes():
    one, count = torch.ones(1), torch.ones(1, dtype=torch.int64)
    half = applier({"a": [one, "s", None], "b": (count,)}, lambda t: to_type(torch.half, t))
    assert half["a"][0].dtype == torch.half and half["a"][1:] == ["s", None]
    assert half["b"][0] is count and type(half["b"]) is tuple


# Properties.


def test_chosen_properties_cannot_be_changed_in_silence():
    model, optimizer = initialized()
    with pytest.raises(
        AttributeError,
        match="^opt_properties: expected 'enabled' to stay as initialize chose it, got False; pass "
        "it to initialize$",
    ):
        _amp_state.opt_properties.enabled = False
    with pytest.raises(
        AttributeError, match="^opt_properties: expected one of enabled, .*, got 'typo'$"
    ):
        _ = _amp_state.opt_properties.typo
    del model, optimizer


# The state.


@pytest.mark.parametrize(
    ("name", "instead"),
    [("maybe_print", "logging.info"), ("verbosity", "the argument of apex.amp.initialize")],
)
def test_what_the_state_lacks(name, instead):
    with pytest.raises(AttributeError) as raised:
        getattr(_amp_state, name)
    assert str(raised.value) == f"torchamp has no apex.amp._amp_state.{name}: use {instead}"


# Lists.


@pytest.fixture
def lists(monkeypatch):
    """The lists, which the test may edit."""
    monkeypatch.setattr(_autocast.Ban, "is_lifted", False)
    patches = list(_autocast.OPEN._patches)
    edited = [
        value
        for module in (functional_overrides, tensor_overrides, torch_overrides)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, list)
    ]
    before = [list(each) for each in edited]
    yield
    for each, entries in zip(edited, before):
        each[:] = entries
    follow_list_edits()
    assert not _autocast.OPEN._holders, "the test left O1 open"
    _autocast.OPEN._patches[:] = patches


def test_o1_follows_edited_lists(lists):
    x = torch.randn(4, 4)
    functional_overrides.FP32_FUNCS.remove("softmax")
    functional_overrides.FP16_FUNCS.append("relu")
    torch_overrides.FP16_FUNCS.remove("mm")
    torch_overrides.FP32_FUNCS.append("mm")
    tensor_overrides.FP32_FUNCS.append("sigmoid")
    model, optimizer = initialized("O1")
    assert F.softmax(x.half(), -1).dtype == torch.float16 and F.relu(x).dtype == torch.float16
    assert torch.mm(x, x).dtype == torch.float32 and x.mm(x).dtype == torch.float16
    assert x.half().sigmoid().dtype == torch.float32
    assert torch.sigmoid(x.half()).dtype == torch.float16
    del model, optimizer
    assert F.relu(x).dtype == torch.float32


def test_edits_taken_back_are_followed_too(lists):
    x = torch.randn(4, 4)
    functional_overrides.FP16_FUNCS.append("relu")
    model, optimizer = initialized("O1")
    functional_overrides.FP16_FUNCS.remove("relu")
    model, optimizer = initialized("O1")
    assert F.relu(x).dtype == torch.float32
    del model, optimizer


def test_a_ban_may_be_removed_from_its_list(lists):
    p = torch.tensor([0.5]).half()
    functional_overrides.BANNED_FUNCS.clear()
    handle = amp.init()
    assert F.binary_cross_entropy(p, p).dtype == torch.float32
    handle._deactivate()
    _amp_state.legacy_handle = None
