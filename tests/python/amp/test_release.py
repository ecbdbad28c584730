"""amp.release makes what initialize returned plain again, and loses nothing."""

import copy
import gc

import pytest
import torch
from nets import (
    LEVELS,
    Net,
    adam,
    backward,
    batch,
    changed,
    everything,
    fused_adam,
    initialized,
    linear_net,
    loss_of,
    sgd,
    train_step,
)
from torch import nn

import torchamp
from torchamp import amp

SETTINGS = [
    *[(level, {}) for level in LEVELS],
    ("O2", {"master_weights": False}),
    ("O2", {"keep_batchnorm_fp32": False}),
    ("O3", {"keep_batchnorm_fp32": True}),
    ("O5", {"master_weights": False}),
]
ALL_SETTINGS = pytest.mark.parametrize(("level", "overrides"), SETTINGS)


def foreach_sgd(model):
    return sgd(model, foreach=True)


def torch_fused(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


OPTIMIZERS = pytest.mark.parametrize("make", [sgd, adam, foreach_sgd, torch_fused, fused_adam])


def trained(level, make=sgd, model=None, **overrides):
    torch.manual_seed(0)
    model, optimizer = initialized(level, model, make, **overrides)
    for seed in range(3):
        train_step(model, optimizer, seed)
    return model, optimizer


def plain_step(model, optimizer, seed=0):
    optimizer.zero_grad()
    loss_of(model, seed).backward()
    optimizer.step()


def plain_copy(model):
    """A model of the same weights that torchamp has never seen."""
    other = Net()
    other.load_state_dict(model.state_dict())
    return other


def bytes_of(tensors):
    return {name: t.clone() for name, t in tensors.items()}


@OPTIMIZERS
@ALL_SETTINGS
def test_parameters_are_the_masters(level, overrides, make):
    model, optimizer = trained(level, make, **overrides)
    params, saved = list(model.parameters()), model.state_dict()
    amp.release(model)
    assert not changed(saved, bytes_of(dict(model.state_dict())))
    assert all(now is before for now, before in zip(model.parameters(), params))
    stepped = optimizer.param_groups[0]["params"]
    assert type(stepped) is list and all(a is b for a, b in zip(stepped, params))
    assert all(t.dtype == torch.float32 for t in params) and all(p.grad is None for p in params)


@OPTIMIZERS
@ALL_SETTINGS
def test_it_trains_as_a_plain_model(level, overrides, make):
    model, optimizer = trained(level, make, **overrides)
    amp.release(model)
    other = plain_copy(model)
    other_optimizer = make(other)
    other_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for seed in range(3, 6):
        plain_step(model, optimizer, seed)
        plain_step(other, other_optimizer, seed)
    assert not changed(everything(model, optimizer), everything(other, other_optimizer))


@pytest.mark.parametrize(("level", "overrides"), SETTINGS)
def test_nothing_of_initialize_is_left(level, overrides):
    model, optimizer = trained(level, **overrides)
    amp.release(model)
    assert type(model) is Net and type(optimizer) is torch.optim.SGD
    assert not {"_torchamp", "forward", "step"} & {*vars(model), *vars(optimizer)}
    assert not any(m._state_dict_hooks or m._load_state_dict_pre_hooks for m in model.modules())
    x, _ = batch()
    assert torch.equal(model(x), plain_copy(model).train()(x)) and model(x).dtype == torch.float32
    assert model.first(x).dtype == torch.float32  # O1's casts are over
    assert model.state_dict()["first.weight"].data_ptr() == model.first.weight.data_ptr()
    with pytest.raises(RuntimeError, match="scale_loss: expected optimizers"):
        backward(model, optimizer)


@pytest.mark.parametrize("after", LEVELS)
@pytest.mark.parametrize("before", LEVELS)
def test_a_second_phase_at_another_level(before, after):
    model, _ = trained(before)
    model.first.requires_grad_(False)
    amp.release(model)
    kept = {name: t.clone() for name, t in model.state_dict().items()}
    optimizer = adam(model.last)
    model, optimizer = amp.initialize(model, optimizer, opt_level=after, verbosity=0)
    train_step(model, optimizer)
    now = {name: t.to(kept[name].dtype) for name, t in model.state_dict().items()}
    assert {"last.weight", "last.bias"} <= changed(kept, now)
    if after in ("O0", "O1", "O4"):
        assert torch.equal(now["first.weight"], kept["first.weight"])
    model.eval()
    amp.release(model)


def test_a_new_optimizer_after_the_old_one_is_gone():
    model, optimizer = trained("O2")
    saved = model.state_dict()
    del optimizer
    gc.collect()
    amp.release(model)
    assert not changed(saved, dict(model.state_dict()))


@pytest.mark.parametrize("delay", [False, True])
@pytest.mark.parametrize("make", [sgd, fused_adam])
def test_grads_and_overflows_are_dropped(make, delay):
    model, optimizer = trained("O2", make)
    model.last.bias.register_hook(lambda grad: grad * float("inf"))
    backward(model, optimizer, delay_unscale=delay)
    saved = model.state_dict()
    amp.release(model)
    assert all(param.grad is None for param in model.parameters())
    optimizer.step()
    assert not changed(saved, dict(model.state_dict()))


def test_values_written_through_data_are_kept():
    model, _ = trained("O2", fused_adam)
    model.first.weight.data.fill_(0.5)
    saved = model.state_dict()
    amp.release(model)
    assert (model.first.weight == 0.5).all() and not changed(saved, dict(model.state_dict()))


@pytest.mark.parametrize("make", [sgd, fused_adam])
def test_values_written_to_masters_are_kept(make):
    model, optimizer = trained("O2", make)
    with torch.no_grad():
        written = [master.mul_(1.7).clone() for master in amp.master_params(optimizer)]
    amp.release(model)
    assert all(map(torch.equal, model.parameters(), written))


def test_user_hooks_forwards_and_steps_come_back():
    model = Net()
    optimizer = sgd(model)
    calls = []
    forward, step = model.forward, optimizer.step
    model.forward = lambda x: (calls.append("forward"), forward(x))[1]
    optimizer.step = lambda *args: (calls.append("step"), step(*args))[1]
    bound = vars(model)["forward"], vars(optimizer)["step"]
    model.register_state_dict_post_hook(lambda *args: None)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    amp.release(model)
    assert (vars(model)["forward"], vars(optimizer)["step"]) == bound
    assert len(model._state_dict_hooks) == 1
    plain_step(model, optimizer)
    assert calls == ["forward", "step"]


def test_a_recurrent_model():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.last = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

        def forward(self, x):
            return self.last(self.rnn(x[:, None])[0][:, 0])

    model, optimizer = trained("O5", model=Recurrent())
    saved = model.state_dict()
    amp.release(model)
    assert not changed(saved, dict(model.state_dict()))
    plain_step(model, optimizer)


@pytest.mark.parametrize("make", [sgd, fused_adam])
def test_a_refusal_changes_nothing(make):
    first, second = Net(), linear_net()
    one, two = make(first), make(second)
    amp.initialize([first, second], [one, two], opt_level="O2", verbosity=0)
    second.bfloat16()
    before = everything(first, one)
    with pytest.raises(RuntimeError, match="to hold Half as initialize left it, got"):
        amp.release(first)
    assert not changed(before, everything(first, one))
    train_step(first, one)


@pytest.mark.parametrize("level", ["O2", "O5"])
def test_a_model_that_the_program_has_made_float32_has_its_masters_values(level):
    model, optimizer = trained(level)
    expected = [master.clone() for master in amp.master_params(optimizer)]
    model.float()
    amp.release(model)
    assert all(map(torch.equal, model.parameters(), expected))
    plain_step(model, optimizer)


def test_what_has_replaced_a_class_since_is_named():
    model, _ = trained("O2")
    kind = type(model)
    model.__class__ = type("Other", (kind,), {})
    with pytest.raises(RuntimeError, match=r"release: expected models\[0\] to be a .* an Other"):
        amp.release(model)
    model.__class__ = kind
    amp.release(model)


def test_models_that_initialize_did_not_return():
    model, _ = trained("O2")
    other, _ = trained("O5")
    for strange in (nn.Sequential(model), amp.cast_for_inference(Net(), torch.float16), "model"):
        with pytest.raises(RuntimeError) as caught:
            amp.release(strange)
        assert str(caught.value) == (
            "release: expected models[0] to be a model that initialize returned, or a plain one, "
            f"got a {type(strange).__name__}"
        )
    with pytest.raises(RuntimeError) as caught:
        amp.release([Net(), model, other])
    assert str(caught.value) == (
        "release: expected models[2] to come from the same initialize as those before it, got one "
        "from another"
    )


def test_disabled_and_twice():
    model, optimizer = Net(), None
    amp.initialize(model, optimizer, enabled=False)
    amp.release(model)
    handle = torchamp.Amp(model, sgd(model), "O2", verbosity=0)
    handle.release()
    handle.release()
    assert type(model) is Net and model.first.weight.dtype == torch.float32
    torchamp.Amp(model, None, "O2", enabled=False).release()
