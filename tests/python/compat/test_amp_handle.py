"""amp.init and its handle, from before initialize."""

import pytest
import torch
from apex import amp
from apex.amp import _amp_state
from compat import optimizers
from nets import batch, initialized, linear_net, loss_of, overflow_at, sgd


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
    assert not handle.has_cache and handle.cache == {} and not handle.verbose
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


@pytest.mark.parametrize("style", ["wrapped", "handle"])
def test_a_loop_of_2018_trains_and_skips(handle, style):
    model = linear_net()
    optimizer = sgd(model)
    wrapped = handle.wrap_optimizer(optimizer) if style == "wrapped" else None
    losses, changed = [], []
    for i in range(12):
        optimizer.zero_grad()
        before = model[0].weight.detach().clone()
        loss = loss_of(model)
        context = wrapped.scale_loss(loss) if wrapped else handle.scale_loss(loss, optimizer)
        with overflow_at(model[0].weight, float("inf") if i in (2, 5) else 0.0):
            with context as scaled_loss:
                assert scaled_loss > 1000 * loss
                scaled_loss.backward()
        (wrapped or optimizer).step()
        changed.append(not torch.equal(before, model[0].weight))
        losses.append(loss.item())
    assert [i for i, moved in enumerate(changed) if not moved] == [2, 5]
    assert losses[-1] < 0.8 * losses[0]


def test_losses_of_one_step_have_scalers_of_their_own(handle):
    model = linear_net()
    optimizer = handle.wrap_optimizer(sgd(model), num_loss=2)
    for overflows in ((False, True), (False, False)):
        optimizer.zero_grad()
        for overflow in overflows:
            with overflow_at(model[0].weight, float("inf") if overflow else 0.0):
                with optimizer.scale_loss(loss_of(model)) as scaled_loss:
                    scaled_loss.backward()
        optimizer.step()
    first, second = optimizer._amp.loss_scalers
    assert (first.loss_scale(), second.loss_scale()) == (2.0**16, 2.0**15)
    assert optimizer.param_groups[0]["lr"] == 0.125
    for _ in range(2):
        optimizer.scale_loss(loss_of(model))
    with pytest.raises(IndexError, match="num_losses, 2"):
        with optimizer.scale_loss(loss_of(model)):
            pass
    with pytest.raises(NotImplementedError, match="expected no closure"):
        optimizer.step(lambda: None)


def test_a_handle_that_does_nothing():
    handle = amp.init(enabled=False)
    model = linear_net()
    optimizer = sgd(model)
    wrapped, loss = handle.wrap_optimizer(optimizer), loss_of(model)
    assert not handle.is_active() and loss.dtype == torch.float32
    with handle.scale_loss(loss, optimizer) as same, wrapped.scale_loss(loss) as also:
        assert same is also is loss
    loss.backward()
    wrapped.step(lambda: loss)
    handle._clear_cache()
    handle._deactivate()
    assert type(optimizer) is torch.optim.SGD
