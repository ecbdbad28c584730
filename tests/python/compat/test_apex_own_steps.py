"""Subclasses of apex's FusedAdam with a step of their own."""

import functools

import pytest
import torch
from apex import amp
from apex.optimizers import FusedAdam
from compat.optimizers import ALL, every, make_params, resumed_from, set_grads, train
from nets import linear_net, overflow_at, train_step

import torchamp

LEVELS = ["O0", "O1", "O2", "O3", "O5"]


assert_close = functools.partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)


class OwnAdam(FusedAdam):
    """Keeps its count in the group, and the moments alone in the state."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group["step"] + 1 if "step" in group else 1
            for param in group["params"]:
                if param.grad is not None:
                    step_by_hand(group, param, self.state[param])


def step_by_hand(group, param, state):
    beta1, beta2 = group["betas"]
    for name in ("exp_avg", "exp_avg_sq"):
        if name not in state:
            state[name] = torch.zeros_like(param, dtype=torch.float32)
    grad, wide = param.grad.float(), param.float()
    if not group["decoupled_weight_decay"]:
        grad = grad + group["weight_decay"] * wide
    state["exp_avg"].mul_(beta1).add_(grad, alpha=1 - beta1)
    state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    update = state["exp_avg"] / (1 - beta1 ** group["step"])
    update /= (state["exp_avg_sq"] / (1 - beta2 ** group["step"])).sqrt() + group["eps"]
    if group["decoupled_weight_decay"]:
        update += group["weight_decay"] * wide
    param.copy_(wide - group["lr"] * update)


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
    Around: (FusedAdam, {"lr": 0.01}),
}
own = pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)


@own
def test_they_step_as_the_class_itself_through_save_and_load(kind, device):
    base, options = OWN[kind]
    params, twins = make_params(device), make_params(device)
    optimizer, expected = kind(params, **options), base(twins, **options)
    assert_close(train(optimizer, params, 3), train(expected, twins, 3))
    resumed, again = resumed_from(optimizer.state_dict(), params, kind, **options)
    assert_close(train(resumed, again, 3, first=3), train(expected, twins, 3, first=3))
    assert resumed.param_groups[0].get("step") == expected.param_groups[0].get("step")


def test_a_count_of_its_own_goes_on_after_a_step_of_the_class(device):
    params, twins = make_params(device), make_params(device)
    optimizer, expected = OwnAdam(params), FusedAdam(twins)
    for step in range(6):
        for each, some in ((optimizer, params), (expected, twins)):
            set_grads(some, step)
            FusedAdam.step(each) if step % 2 else each.step()
    assert_close(params, twins)
    assert optimizer.state_dict()["param_groups"][0]["step"] == 6


def run(kind, options, level, device):
    torch.manual_seed(0)
    model = linear_net().to(device)
    optimizer = kind(model.parameters(), **options)
    amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    for value in (0.0, float("inf"), 0.0, 0.0):
        with overflow_at(model[0].weight, value):
            train_step(model, optimizer)
    return model, optimizer


@own
@pytest.mark.parametrize("level", LEVELS)
def test_amp_unscales_and_skips_for_them(kind, level, device):
    """They stepped on grads that were not there, or on those of an overflow."""
    base, options = OWN[kind]
    model, optimizer = run(kind, options, level, device)
    expected, other = run(base, options, level, device)
    got, wanted = list(model.parameters()), list(expected.parameters())
    assert_close(got, wanted)
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
    assert_close(params, twins)


@every
def test_the_classes_themselves_skip_on_the_device(kind, device):
    class Plain(kind):
        pass

    for each in (kind, Plain):
        optimizer = each(make_params(device), **ALL[kind])
        assert optimizer._step_supports_amp_scaling
