"""apex.amp's private names that programs use: the state, its scalers, the stash, the handle."""

import inspect
import math

import pytest
import torch
from apex import amp
from apex.amp._amp_state import _amp_state
from apex.amp._process_optimizer import AmpOptimizerState
from apex.fp16_utils import FP16_Optimizer
from compat.optimizers import initialized
from nets import adam, backward, batch, linear_net, loss_of, overflow_at, sgd

import torchamp

LEVELS = ["O0", "O1", "O2", "O3", "O5"]


# The state.


def test_every_spelling_of_the_state_is_one_object(python):
    python(
        "-c",
        "import torchamp; torchamp.install_as_apex()\n"
        "import apex.amp._amp_state\n"
        "from apex.amp._amp_state import _amp_state as one\n"
        "from apex.amp import _amp_state as other\n"
        "from apex import amp\n"
        "assert one is other is amp._amp_state is apex.amp._amp_state\n"
        "assert not hasattr(one, 'loss_scalers')",
    )


@pytest.mark.parametrize("level", LEVELS)
def test_the_chosen_properties(level):
    model, optimizer = initialized(level)
    properties = _amp_state.opt_properties
    assert properties.enabled and properties.opt_level == level
    assert properties.master_weights is properties.options["master_weights"]
    assert bool(properties.master_weights) == (level in ("O2", "O5"))
    assert properties.patch_torch_functions == (level == "O1")
    with pytest.raises(AttributeError, match="master_weight'"):
        properties.master_weight  # noqa: B018
    del model, optimizer


def test_disabled():
    model = linear_net()
    _, optimizer = amp.initialize(model, sgd(model), enabled=False)
    assert not hasattr(optimizer, "_amp_stash")
    assert not _amp_state.opt_properties.enabled
    assert not hasattr(_amp_state, "loss_scalers")


def test_the_last_initialize_s_scalers():
    one, other = initialized(loss_scale=2.0), initialized(num_losses=2, min_loss_scale=4.0)
    assert [scaler._min_loss_scale for scaler in _amp_state.loss_scalers] == [4.0, 4.0]
    assert _amp_state.loss_scalers[0] is _amp_state.loss_scalers[0]
    del one, other
    with pytest.raises(AttributeError, match="expected 'loss_scalers' to be an attribute that"):
        _amp_state.loss_scalers  # noqa: B018


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_not_cast_stays_as_it_is(level, monkeypatch):
    monkeypatch.setattr(_amp_state, "allow_incoming_model_not_fp32", True)
    model = linear_net()
    model[0].half()
    optimizer = sgd(model)
    amp.initialize(model, optimizer, opt_level=level, cast_model_type=False, verbosity=0)
    assert [param.dtype for param in model.parameters()] == [torch.half] * 2 + [torch.float32] * 2
    has_masters = level in ("O2", "O5")
    masters = {param.dtype for param in amp.master_params(optimizer)}
    assert masters == ({torch.float32} if has_masters else {torch.half, torch.float32})


# The scalers.


def test_writing_the_scale():
    model, optimizer = initialized()
    _amp_state.loss_scalers[0]._loss_scale = 2**20
    assert _amp_state.loss_scalers[0].loss_scale() == 2.0**20
    with amp.scale_loss(torch.ones(()), optimizer) as scaled_loss:
        assert scaled_loss == 2**20
    del model


def test_reading_the_overflow_after_the_step():
    model, optimizer = initialized(num_losses=2)
    with overflow_at(model[0].weight):
        backward(model, optimizer, loss_id=1)
    assert optimizer._amp_stash.already_patched
    optimizer.step()
    clean, overflowed = amp._amp_state.loss_scalers
    assert overflowed._has_overflow and not clean._has_overflow
    assert overflowed._loss_scale == 2**15 and overflowed._unskipped == 0
    assert not optimizer._amp_stash.already_patched
    backward(model, optimizer, loss_id=1)
    assert not overflowed._has_overflow and overflowed._unskipped == 1


@pytest.mark.parametrize("make", [sgd, adam])
def test_a_program_that_updates_the_scale_and_steps_by_itself(make):
    model, optimizer = initialized(make=make)
    scaler = _amp_state.loss_scalers[0]
    buffer = torch.zeros(1, dtype=torch.int32)
    stepped = []
    for i in range(6):
        with overflow_at(model[0].weight, float("inf") if i in (1, 2) else 0.0):
            backward(model, optimizer, delay_overflow_check=True)
        grads = [p.grad for p in amp.master_params(optimizer)]
        buffer.fill_(not all(grad.isfinite().all() for grad in grads))
        scaler._overflow_buf = buffer
        before = [p.detach().clone() for p in model.parameters()]
        if scaler.update_scale():
            for param in optimizer._amp_stash.all_fp32_from_fp16_params:
                param.grad = None
        else:
            optimizer.step()
        for param in model.parameters():
            param.grad = None
        stepped.append(not all(map(torch.equal, model.parameters(), before)))
    assert stepped == [True, False, False, True, True, True]
    assert scaler.loss_scale() == 2.0**14 and scaler._unskipped == 3


def test_programs_change_the_rule_of_the_scale():
    model, optimizer = initialized("O1")
    scaler = _amp_state.loss_scalers[0]
    scaler._scale_seq_len, scaler._min_loss_scale, scaler._max_loss_scale = 2, 2.0**15, 2.0**17
    scales = []
    for factor in (1.0, 1.0, 1.0, 1.0, math.inf, math.inf, math.inf):
        optimizer.zero_grad()
        amp.scale_loss(loss_of(model) * factor, optimizer).backward()
        optimizer.step()
        scales.append(scaler.loss_scale())
    assert scales == [2.0**16, 2.0**17, 2.0**17, 2.0**17, 2.0**16, 2.0**15, 2.0**15]


def test_a_scale_that_always_overflows_does_not_vanish():
    model, optimizer = initialized()
    scaler = _amp_state.loss_scalers[0]
    scaler._overflow_buf = torch.ones(1, dtype=torch.int32)
    for _ in range(60):
        assert scaler.update_scale()
    assert scaler.loss_scale() == 2.0**-10 and scaler._min_loss_scale is None
    scaler._min_loss_scale = 4.0
    scaler.update_scale()
    assert scaler.loss_scale() == 4.0
    scaler.clear_overflow_state()
    assert not scaler._has_overflow and not scaler._overflow_buf.any()
    del model, optimizer


def test_a_fixed_scaler_never_skips():
    model, optimizer = initialized(loss_scale=4)
    scaler = _amp_state.loss_scalers[0]
    scaler._overflow_buf = torch.ones(1, dtype=torch.int32)
    assert not scaler.update_scale() and scaler.loss_scale() == 4.0 and not scaler.dynamic
    del model, optimizer


# The stash.


@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_the_stash_pairs_masters_with_parameters(level):
    model, optimizer = initialized(level)
    stash = optimizer._amp_stash
    assert isinstance(stash, AmpOptimizerState)
    assert stash.lazy_init_called and not stash.params_have_scaled_gradients
    with amp.scale_loss(loss_of(model), optimizer, delay_unscale=True) as scaled_loss:
        scaled_loss.backward()
    assert stash.params_have_scaled_gradients == (level == "O2")  # the others scale by 1
    optimizer.zero_grad()
    if level != "O2":
        of_its_dtype = stash.all_fp16_params if level == "O3" else stash.all_fp32_params
        assert all(a is b for a, b in zip(of_its_dtype, model.parameters()))
        assert len(stash.all_fp16_params) == (4 if level == "O3" else 0)
        assert len(stash.all_fp32_params) == (0 if level == "O3" else 4)
        assert stash.fp16_groups == stash.fp32_from_fp16_groups == [[]]
        assert all(map(torch.equal, stash.all_fp32_from_fp32_params, model.parameters()))
        return
    assert [p.dtype for p in stash.all_fp16_params] == [torch.float16] * 4
    masters = stash.all_fp32_from_fp16_params
    assert all(a is b for a, b in zip(masters, amp.master_params(optimizer)))
    assert all(map(torch.equal, stash.fp16_groups[0], [m.half() for m in masters]))
    assert stash.fp32_from_fp32_groups == [[]]


@pytest.mark.parametrize("name", ["_prepare_amp_backward", "_post_amp_backward"])
def test_the_parts_of_scale_loss_say_what_to_use_instead(name):
    model, optimizer = initialized()
    with pytest.raises(RuntimeError) as raised:
        getattr(optimizer, name)(*_amp_state.loss_scalers[: name == "_post_amp_backward"])
    assert str(raised.value) == (
        "torchamp has no _prepare_amp_backward and _post_amp_backward: use apex.amp.scale_loss"
    )
    del model


def test_masters_are_restored_as_programs_do_it():
    (model, optimizer), (twin, twin_optimizer) = initialized(make=adam), initialized(make=adam)
    for _ in range(3):
        optimizer.zero_grad()
        backward(model, optimizer)
        optimizer.step()
    twin_optimizer._lazy_init_maybe_master_weights()
    twin_optimizer._amp_lazy_init()
    twin_optimizer._amp_stash.lazy_init_called = True
    twin_optimizer.load_state_dict(optimizer.state_dict())
    for param, saved in zip(amp.master_params(twin_optimizer), amp.master_params(optimizer)):
        param.data.copy_(saved.data)
    twin_optimizer._master_params_to_model_params()
    x, _ = batch()
    assert torch.equal(twin(x), model(x))


# initialize.


@pytest.mark.parametrize(
    ("options", "adopted"), [({}, True), ({"adopt_data_writes": False}, False)]
)
def test_writes_through_data_are_adopted_unless_refused(options, adopted):
    model, optimizer = initialized(**options)
    model[0].weight.data.fill_(0.5)
    optimizer.step()
    assert bool((model[0].weight == 0.5).all()) == adopted


def test_initialize_has_torchamp_s_signature_and_its_own_place():
    assert inspect.signature(amp.initialize) == inspect.signature(torchamp.amp.initialize)
    assert amp.initialize.__module__ == "torchamp.compat.apex.amp.frontend"


@pytest.mark.parametrize("wrap", [lambda o: o, lambda o: [o]], ids=["one", "list"])
def test_an_fp16_optimizer_is_apex_s_error(wrap):
    model = linear_net()
    with pytest.raises(RuntimeError, match="got an FP16_Optimizer, which keeps masters"):
        amp.initialize(model, wrap(FP16_Optimizer(sgd(model))), opt_level="O2")
    assert model[0].weight.dtype == torch.float32
