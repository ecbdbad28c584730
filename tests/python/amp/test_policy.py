"""Dtype policies by Keras's names."""

from __future__ import annotations

import pytest
import torch
from nets import Net, adam, batch, loss_of, sgd
from torch import nn

import torchamp
from torchamp import amp, optimizers

LEVELS = {
    "float32": "O0",
    "mixed_float16": "O1",
    "mixed_bfloat16": "O4",
    "float16": "O3",
    "bfloat16": "O3",
}


@pytest.fixture(autouse=True)
def no_global_policy():
    yield
    torchamp.set_global_policy(None)


def level_of(model):
    return model._torchamp.session.settings.properties.opt_level


@pytest.mark.parametrize("name", LEVELS)
def test_levels_and_dtypes(name, device):
    policy = amp.Policy(name)
    model, _ = amp.initialize(Net().to(device), None, opt_level=policy, verbosity=0), None
    assert level_of(model) == policy.opt_level == LEVELS[name]
    assert model.first.weight.dtype == policy.variable_dtype
    inner = []
    model.first.register_forward_hook(lambda module, args, output: inner.append(output.dtype))
    model(batch(0, device)[0])
    assert inner == [policy.compute_dtype]


def test_the_global_policy(device):
    assert torchamp.global_policy() is None
    assert level_of(amp.initialize(Net().to(device), verbosity=0)) == "O1"
    torchamp.set_global_policy("mixed_bfloat16")
    assert torchamp.global_policy() == amp.Policy("mixed_bfloat16")
    assert level_of(amp.initialize(Net().to(device), verbosity=0)) == "O4"
    assert level_of(amp.initialize(Net().to(device), opt_level="O2", verbosity=0)) == "O2"
    torchamp.set_global_policy(amp.Policy("float32"))
    assert level_of(torchamp.Amp(Net().to(device), verbosity=0).models[0]) == "O0"


def test_what_the_program_overrides_wins(device):
    model = amp.initialize(
        Net().to(device),
        opt_level=amp.Policy("bfloat16"),
        cast_model_type=torch.float16,
        verbosity=0,
    )
    assert model.first.weight.dtype == torch.float16


@pytest.mark.parametrize("opt_level", ["O1", "O2", "O5"])
def test_the_policy_of_a_module(opt_level, device):
    model = Net()
    assert amp.set_policy(model.last, "float32") is model.last
    amp.initialize(model.to(device), adam(model), opt_level=opt_level, verbosity=0)
    assert model.last.weight.dtype == torch.float32
    assert model.last(torch.randn(2, 8, device=device).half()).dtype == torch.float32


def test_wrong_policies():
    with pytest.raises(ValueError, match="Policy: expected name to be one of 'float32', 'mixed_"):
        amp.Policy("mixed_float32")
    with pytest.raises(ValueError, match="expected the policy of a module to be 'float32', got"):
        amp.set_policy(nn.Linear(2, 2), "mixed_float16")


@pytest.mark.parametrize("make", [sgd, lambda m: optimizers.FusedAdamW(m.parameters(), lr=0.01)])
def test_loss_scale_optimizers_step_as_their_inner_ones(make, device):
    nets = [Net().to(device) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    plain, scaled = make(nets[0]), amp.LossScaleOptimizer(make(nets[1]), initial_scale=256.0)
    for seed in range(3):
        plain.zero_grad()
        loss_of(nets[0], seed).backward()
        plain.step()
        scaled.zero_grad()
        scaled.scale_loss(loss_of(nets[1], seed)).backward()
        scaled.step()
    torch.testing.assert_close(list(nets[1].parameters()), list(nets[0].parameters()))


def test_loss_scale_optimizers_skip_and_grow(device):
    model = Net().to(device)
    optimizer = amp.LossScaleOptimizer(sgd(model), initial_scale=8.0, dynamic_growth_steps=2)
    before = [param.clone() for param in model.parameters()]
    (optimizer.scale_loss(loss_of(model)) * torch.inf).backward()
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    assert optimizer.dynamic_scale == 4.0
    for _ in range(2):
        optimizer.zero_grad()
        optimizer.scale_loss(loss_of(model)).backward()
        optimizer.step()
    assert optimizer.dynamic_scale == 8.0
    twin = amp.LossScaleOptimizer(sgd(model))
    twin.load_state_dict(optimizer.state_dict())
    assert twin.dynamic_scale == 8.0 and twin.param_groups is twin.inner_optimizer.param_groups
    assert repr(twin).startswith("LossScaleOptimizer(GradScaler(scale=8")
