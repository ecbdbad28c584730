"""Subclasses of apex's optimizers with a step of their own over amp_C, as fairseq has one."""

import copy
import pickle

import amp_C
import pytest
import torch
from apex import amp
from apex.multi_tensor_apply import multi_tensor_applier
from apex.optimizers import (
    FusedAdagrad,
    FusedAdam,
    FusedLAMB,
    FusedNovoGrad,
    FusedSGD,
)
from apex_optimizers import ALL, assert_equal, every, make_params, set_grads, train
from nets import linear_net, loss_of, overflow_at

import torchamp

LEVELS = ["O0", "O1", "O2", "O3", "O5"]


class OwnAdam(FusedAdam):
    """Keeps its count in the group, and the moments alone in the state."""

    def __init__(self, *args, **kwargs):
        assert hasattr(self, "multi_tensor_adam"), "Apex installation is outdated."
        super().__init__(*args, **kwargs)

    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group["step"] + 1 if "step" in group else 1
            params = [param for param in group["params"] if param.grad is not None]
            for param in params:
                if "exp_avg" not in self.state[param]:
                    self.state[param]["exp_avg"] = torch.zeros_like(param, dtype=torch.float32)
                    self.state[param]["exp_avg_sq"] = torch.zeros_like(param, dtype=torch.float32)
            multi_tensor_applier(
                self.multi_tensor_adam,
                self._dummy_overflow_buf,
                [
                    [param.grad for param in params],
                    params,
                    [self.state[param]["exp_avg"] for param in params],
                    [self.state[param]["exp_avg_sq"] for param in params],
                ],
                group["lr"],
                *group["betas"],
                group["eps"],
                group["step"],
                self.adam_w_mode,
                1 if group["bias_correction"] else 0,
                group["weight_decay"],
            )


class OwnSGD(FusedSGD):
    def step(self, closure=None):
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            buffers, first_run = self.get_momentums(params)
            multi_tensor_applier(
                self.multi_tensor_sgd,
                self._dummy_overflow_buf,
                [[param.grad for param in params], params, buffers],
                group["weight_decay"],
                group["momentum"],
                group["dampening"],
                group["lr"],
                group["nesterov"],
                first_run,
                self.wd_after_momentum,
                1.0 / self.most_recent_scale,
            )


class Around(FusedAdam):
    """Does something beside the step that it inherits."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        return super().step(closure)


class Mixin:
    def step(self, closure=None):
        return OwnAdam.step(self, closure)


class Mixed(Mixin, FusedAdam):
    """Has its step from elsewhere."""


OWN = {
    OwnAdam: (FusedAdam, {"lr": 0.01, "weight_decay": 0.1}),
    Mixed: (FusedAdam, {"lr": 0.01, "adam_w_mode": False, "weight_decay": 0.1}),
    OwnSGD: (FusedSGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1}),
    Around: (FusedAdam, {"lr": 0.01}),
}
own = pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)


@own
def test_they_step_as_the_class_itself_through_save_and_load(kind, device):
    base, options = OWN[kind]
    params, twins, again = (make_params(device) for _ in range(3))
    optimizer, expected = kind(params, **options), base(twins, **options)
    assert_equal(train(optimizer, params, 3), train(expected, twins, 3))
    resumed = kind(again, **options)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for param, value in zip(again, params):
        param.data.copy_(value)
    assert_equal(train(resumed, again, 3, first=3), train(expected, twins, 3, first=3))
    assert resumed.param_groups[0].get("step") == expected.param_groups[0].get("step")


def test_a_count_of_its_own_goes_on_after_a_step_of_the_class(device):
    params, twins = make_params(device), make_params(device)
    optimizer, expected = OwnAdam(params), FusedAdam(twins)
    for step in range(6):
        for each, some in ((optimizer, params), (expected, twins)):
            set_grads(some, step)
            FusedAdam.step(each) if step % 2 else each.step()
    assert_equal(params, twins)
    assert optimizer.state_dict()["param_groups"][0]["step"] == 6


def run(kind, options, level, device):
    torch.manual_seed(0)
    model = linear_net().to(device)
    optimizer = kind(model.parameters(), **options)
    amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    for value in (0.0, float("inf"), 0.0, 0.0):
        optimizer.zero_grad()
        with overflow_at(model[0].weight, value):
            with amp.scale_loss(loss_of(model), optimizer) as scaled_loss:
                scaled_loss.backward()
        optimizer.step()
    return model, optimizer


@own
@pytest.mark.parametrize("level", LEVELS)
def test_amp_unscales_and_skips_for_them(kind, level, device):
    """They stepped on grads that were not there, or on those of an overflow."""
    base, options = OWN[kind]
    model, optimizer = run(kind, options, level, device)
    expected, other = run(base, options, level, device)
    for got, wanted in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-7)
    assert optimizer.param_groups[0].get("step") == other.param_groups[0].get("step")
    if kind is Around:
        assert optimizer.calls == 3


@own
@pytest.mark.parametrize("make", [torch.amp.GradScaler, torchamp.GradScaler])
def test_grad_scalers_unscale_and_skip_for_them(kind, make, device):
    base, options = OWN[kind]
    params, twins = make_params(device), make_params(device)
    optimizer, expected = kind(params, **options), base(twins, **options)
    scaler = make(device.type, init_scale=8.0)
    for step, factor in enumerate((1.0, float("inf"), 1.0)):
        set_grads(twins, step)
        optimizer.zero_grad()
        weights = [param.grad for param in twins]
        loss = sum((param * weight).sum() for param, weight in zip(params, weights))
        scaler.scale(loss * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        if factor == 1.0:
            expected.step()
    assert_equal(params, twins)


@every
def test_the_classes_themselves_skip_on_the_device(kind, device):
    class Plain(kind):
        pass

    for each in (kind, Plain):
        optimizer = each(make_params(device), **ALL[kind])
        assert optimizer._step_supports_amp_scaling


ATTRIBUTES = {
    FusedAdam: {"adam_w_mode": ("adam_w_mode", [True, False], [1, 0])},
    FusedLAMB: {
        "adam_w_mode": ("adam_w_mode", [True, False], [1, 0]),
        "use_nvlamb": ("use_nvlamb", [True, False], [True, False]),
    },
    FusedNovoGrad: {"moment_mode": ("reg_inside_moment", [True, False], [0, 1])},
    FusedAdagrad: {"adagrad_w_mode": ("adagrad_w_mode", [True, False], [1, 0])},
    FusedSGD: {"wd_after_momentum": ("wd_after_momentum", [True, False], [True, False])},
}


@every
def test_attributes_tell_the_choice_and_make_it(kind, device):
    for name, (argument, choices, values) in ATTRIBUTES[kind].items():
        ends = []
        for choice, value in zip(choices, values):
            options = {**ALL[kind], "weight_decay": 0.1, "lr": 0.1}
            params, again = make_params(device), make_params(device)
            optimizer = kind(params, **options, **{argument: choice})
            assert getattr(optimizer, name) == value
            other = kind(again, **options, **{argument: not choice})
            setattr(other, name, value)
            assert getattr(other, name) == value
            assert_equal(train(optimizer, params, 3), train(other, again, 3))
            ends.append([param.detach().clone() for param in params])
        if name != "use_nvlamb":  # which acts without weight decay
            assert not all(torch.equal(a, b) for a, b in zip(*ends))


def test_copies_keep_what_was_chosen(device):
    adam = FusedAdam(make_params(device), capturable=True)
    sgd = FusedSGD(make_params(device), 0.1, materialize_master_grads=False)
    assert adam.capturable and not sgd.materialize_master_grads
    for copied in (copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))):
        assert copied(adam).capturable
        assert not copied(sgd).materialize_master_grads
    assert not FusedAdam(make_params(device)).capturable


def test_the_flag_is_kept(device):
    optimizer = FusedAdam(make_params(device))
    flag = optimizer._dummy_overflow_buf
    assert flag.dtype == torch.int32 and flag.shape == (1,) and flag.device.type == device.type
    grads = [torch.full((2,), float("inf"), device=device)]
    amp_C.multi_tensor_scale(1, flag, [grads, grads], 1.0)
    assert optimizer._dummy_overflow_buf is flag and flag.item() == 1


def test_momentum_buffers_are_made_in_float32(device):
    params = make_params(device, torch.float16)
    optimizer = FusedSGD(params, 0.1, momentum=0.9)
    buffers, is_first = optimizer.get_momentums(params[:2])
    assert is_first and {each.dtype for each in buffers} == {torch.float32}
    again, is_first = optimizer.get_momentums(params)
    assert not is_first and again[0] is buffers[0] and len(again) == len(params)
