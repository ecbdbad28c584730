"""amp.init and its handle, from before initialize."""

import pytest
import torch
from apex import amp
from apex.amp import _amp_state
from compat import optimizers
from nets import batch, initialized, linear_net


@pytest.fixture
def handle():
    handle = amp.init()
    yield handle
    handle._deactivate()
    _amp_state.legacy_handle = None


def test_init_casts_what_o1_casts(handle):
    model, (x, _) = linear_net(), batch()
    assert handle.is_active() and _amp_state.handle is handle
    assert model(x).dtype == torch.float16 and model[0].weight.dtype == torch.float32
    assert (x.half() + x).dtype == torch.float32
    handle._clear_cache()
    with amp.disable_casts():
        assert model(x).dtype == torch.float32
    handle._deactivate()
    assert not handle.is_active() and model(x).dtype == torch.float32


def test_init_takes_the_16_bit_type(handle):
    handle._deactivate()
    other = amp.init(patch_type=torch.bfloat16)
    assert linear_net()(batch()[0]).dtype == torch.bfloat16
    other._deactivate()


def test_programs_switch_the_handle_off_and_on(handle):
    model, (x, _) = linear_net(), batch()
    handle._is_active = False
    assert not handle.is_active() and model(x).dtype == torch.float32
    handle._is_active = False
    handle._is_active = True
    assert handle.is_active() and model(x).dtype == torch.float16


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_init_after_initialize(level, request):
    model, _ = initialized(level, linear_net())
    request.getfixturevalue("handle")
    x, _ = batch()
    assert linear_net()(x).dtype == torch.float16
    assert model(x).dtype == (torch.float16 if level == "O1" else torch.float32)


def test_the_handle_of_o1():
    model, optimizer = optimizers.initialized("O1")
    x, _ = batch()
    _amp_state.handle._is_active = False
    assert model(x).dtype == torch.float32
    _amp_state.handle._is_active = True
    assert model(x).dtype == torch.float16
    _amp_state.handle._deactivate()
    assert model(x).dtype == torch.float32 and not _amp_state.handle.is_active()
    del optimizer


def test_there_is_no_handle_without_casts():
    model, optimizer = initialized("O2")
    assert not hasattr(_amp_state, "handle")
    del model, optimizer


def test_banned_functions_may_be_allowed():
    p = torch.tensor([0.5]).half()
    handle = amp.init(allow_banned=True)
    allowed = torch.nn.functional.binary_cross_entropy(p, p)
    handle._deactivate()
    handle = amp.init()
    with pytest.raises(NotImplementedError, match="binary_cross_entropy"):
        torch.nn.functional.binary_cross_entropy(p, p)
    handle._deactivate()
    _amp_state.legacy_handle = None
    assert allowed.dtype == torch.float32
    assert allowed == torch.nn.functional.binary_cross_entropy(p.float(), p.float())


def test_what_was_allowed_ends_with_the_handle():
    amp.init(allow_banned=True)._deactivate()
    _amp_state.legacy_handle = None
    model, optimizer = initialized("O1")
    p = torch.tensor([0.5]).half()
    with pytest.raises(NotImplementedError, match="binary_cross_entropy"):
        torch.nn.functional.binary_cross_entropy(p, p)
    del model, optimizer


@pytest.mark.parametrize("name", ["scale_loss", "wrap_optimizer"])
def test_losses_are_not_scaled_by_the_handle(handle, name):
    with pytest.raises(AttributeError) as raised:
        getattr(handle, name)
    assert str(raised.value) == (
        f"torchamp has no apex.amp.handle.AmpHandle.{name}: use apex.amp.scale_loss after "
        "apex.amp.initialize"
    )
    with pytest.raises(AttributeError, match="^'AmpHandle' object has no attribute 'nothing'$"):
        _ = handle.nothing


def test_a_handle_that_does_nothing():
    handle = amp.init(enabled=False, verbose=True)
    model, (x, _) = linear_net(), batch()
    assert not handle.is_active() and not handle._is_active
    handle._is_active = False
    handle._clear_cache()
    handle._deactivate()
    assert not hasattr(_amp_state, "handle") and model(x).dtype == torch.float32
