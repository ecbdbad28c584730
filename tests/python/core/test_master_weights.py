"""Stage 3: which parameters get masters, from what, and how model and masters stay in sync."""

import pytest
import torch
from nets import (
    MASTER_LEVELS,
    Net,
    linear_net,
    loss_of,
    sgd,
    train_step,
)
from torch import nn

from torchamp import amp

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


def test_groups_stay_the_same_objects():
    model = Net()
    optimizer = torch.optim.SGD(
        [{"params": model.first.parameters()}, {"params": list(model.last.parameters())}], lr=0.1
    )
    groups = optimizer.param_groups
    each, lists = list(groups), [group["params"] for group in groups]
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    assert optimizer.param_groups is groups
    assert all(a is b for a, b in zip(groups, each))
    assert all(group["params"] is params for group, params in zip(groups, lists))


def shared(level: str) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    """A net whose last layer two optimizers step."""
    model = linear_net()
    made = [sgd(model), torch.optim.Adam(model[2].parameters())]
    amp.initialize(model, made, opt_level=level, verbosity=0)
    return model, made


ONE_OWNER = (
    "make one optimizer with two groups, or train in phases: amp.release(model), then initialize "
    "with the other optimizer"
)


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_a_parameter_with_a_master_has_one_optimizer(level):
    model = linear_net()
    made = [sgd(model), torch.optim.Adam(model[2].parameters())]
    with pytest.raises(ValueError) as refused:
        amp.initialize(model, made, opt_level=level, verbosity=0)
    assert str(refused.value) == (
        'initialize: expected parameter "2.weight", which gets a float32 master, in one optimizer, '
        f"got it in optimizers[0] and optimizers[1]; {ONE_OWNER}"
    )
    assert all(param.dtype == F32 for param in model.parameters())
    for optimizer in made:  # in phases, as it says
        amp.initialize(model, optimizer, opt_level=level, verbosity=0)
        before = model.state_dict()["2.weight"].clone()
        train_step(model, optimizer)
        assert not torch.equal(model.state_dict()["2.weight"], before)
        amp.release(model)


def test_add_param_group_of_another_optimizers_parameter_is_refused():
    model, other = linear_net(), linear_net()
    first, second = sgd(model), torch.optim.Adam(other.parameters())
    amp.initialize([model, other], [first, second], opt_level="O2", verbosity=0)
    group = {"params": [model[2].weight]}
    with pytest.raises(ValueError) as refused:
        second.add_param_group(group)
    assert str(refused.value) == (
        "add_param_group: expected a parameter that no other optimizer steps, since it has a "
        f"float32 master, got one of sizes {list(model[2].weight.shape)} that another steps; "
        f"{ONE_OWNER}"
    )
    assert len(second.param_groups) == 1 and group == {"params": [model[2].weight]}


@pytest.mark.parametrize("level", ["O0", "O1", "O3", "O4"])
def test_without_masters_several_may_step_it_one_a_scale_loss(level):
    model, made = shared(level)
    for optimizer in made:
        before = model[2].weight.detach().clone()
        for each in made:
            each.zero_grad()
        train_step(model, optimizer)
        assert not torch.equal(model[2].weight, before)
    with pytest.raises(ValueError) as refused:
        amp.scale_loss(loss_of(model), made)
    assert str(refused.value) == (
        f"scale_loss: expected optimizers that share no parameter, got one of sizes "
        f"{list(model[2].weight.shape)} in optimizers[0] and optimizers[1]; make one optimizer "
        "with two groups, or give a scale_loss only the optimizer that steps next"
    )
    amp.release(model)


class BFloat16Momentum(torch.optim.Optimizer):
    """Keeps its momentum in bfloat16, as timm's AdafactorBigVision may."""

    def __init__(self, params, lr=0.125):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for param in self.param_groups[0]["params"]:
            state = self.state[param]
            if not state:
                state["momentum"] = torch.zeros_like(param, dtype=BF16)
                state["sum"] = torch.zeros_like(param)
            state["momentum"].lerp_(param.grad.to(BF16), 0.5)
            param.add_(state["momentum"], alpha=-self.param_groups[0]["lr"])


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_states_that_a_step_makes_in_16_bits_stay_so(level):
    model = linear_net()
    optimizer = BFloat16Momentum(model.parameters())
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    for _ in range(3):
        train_step(model, optimizer)
        assert {state["momentum"].dtype for state in optimizer.state.values()} == {BF16}
    for state in optimizer.state.values():  # the program's
        state["sum"] = state["sum"].to(BF16)
    train_step(model, optimizer)
    assert {state["sum"].dtype for state in optimizer.state.values()} == {F32}
