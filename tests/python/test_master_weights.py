"""Stage 3: which parameters get masters, from what, and how model and masters stay in sync."""

import copy

import pytest
import torch
from nets import (
    MASTER_LEVELS,
    Net,
    adam,
    backward,
    initialized,
    linear_net,
    loss_of,
    overflow_at,
    sgd,
    train_step,
)
from torch import nn

from torchamp import amp, optimizers

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


def masters(optimizer) -> list[torch.Tensor]:
    return list(amp.master_params(optimizer))


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_masters_keep_every_bit_of_the_weights(level):
    model = Net()
    before = [p.detach().clone() for p in model.parameters()]
    _, optimizer = initialized(level, model)
    for master, weight, param in zip(masters(optimizer), before, model.parameters()):
        assert master.dtype == F32 and torch.equal(master, weight)
        assert torch.equal(param, weight.to(param.dtype))
        assert (master is param) == (param.dtype == F32), "batch norm is its own master"


def test_masters_take_over_the_memory_of_the_weights():
    model = Net()
    address = model.first.weight.data_ptr()
    _, optimizer = initialized("O2", model)
    assert masters(optimizer)[0].data_ptr() == address != model.first.weight.data_ptr()


@pytest.mark.parametrize("level", ["O0", "O1", "O3", "O4"])
def test_levels_without_masters(level):
    model, optimizer = initialized(level)
    assert all(m is p for m, p in zip(masters(optimizer), model.parameters()))


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


def test_state_moves_to_the_masters_unrounded():
    model = Net()
    optimizer = adam(model)
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    before = [copy.deepcopy(optimizer.state[p]) for p in model.parameters()]
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    for master, state in zip(masters(optimizer), before):
        now = optimizer.state[master]
        assert now["exp_avg"].dtype == F32 and torch.equal(now["exp_avg"], state["exp_avg"])
        assert torch.equal(now["exp_avg_sq"], state["exp_avg_sq"])
    assert len(optimizer.state) == 6, "states of the low-precision parameters stayed behind"


def test_one_master_for_a_tied_parameter():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    one = torch.optim.SGD(model.parameters(), lr=0.1)
    two = torch.optim.SGD([model[0].weight, model[1].bias], lr=0.1)
    amp.initialize(model, [one, two], opt_level="O2", loss_scale=128, verbosity=0)
    assert masters(one)[0] is masters(two)[0]
    with amp.scale_loss(model(torch.ones(1, 3)).sum(), [one, two]) as scaled_loss:
        scaled_loss.backward()
    expected = model[0].weight.grad.float() / 128
    assert torch.equal(masters(one)[0].grad, expected), "unscaled once, not once an optimizer"


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O5"])
@pytest.mark.parametrize("make", [torch.optim.SGD, optimizers.FusedSGD])
def test_optimizers_that_share_a_parameter_both_step_it(level, make):
    model = nn.Linear(2, 2, bias=False)
    before = model.weight.detach().clone()
    pair = [make(model.parameters(), 0.5), make(model.parameters(), 0.25)]
    model, pair = amp.initialize(model, pair, opt_level=level, verbosity=0, loss_scale=1.0)
    for expected in (0.75, 1.5):
        with amp.scale_loss(model(torch.ones(1, 2)).sum(), pair) as scaled_loss:
            scaled_loss.backward()
        for optimizer in pair:
            optimizer.step()
        for optimizer in pair:
            optimizer.zero_grad()
        (master,) = amp.master_params(pair[1])
        torch.testing.assert_close(before - master, torch.full((2, 2), expected))


def test_optimizers_that_share_a_parameter_drop_grads_that_none_still_needs():
    model = linear_net()
    one = torch.optim.SGD(model.parameters(), lr=0.0)
    two = torch.optim.SGD([model[0].weight], lr=0.0)
    amp.initialize(model, [one, two], opt_level="O2", verbosity=0)
    backward(model, [one, two])
    one.step()
    assert [m.grad is None for m in masters(one)] == [False, True, True, True]
    two.step()
    assert masters(two)[0].grad is None


def backward_of_ones(model, optimizers) -> None:
    with amp.scale_loss(model(torch.ones(1, 2)).sum(), optimizers) as scaled_loss:
        scaled_loss.backward()


@pytest.mark.parametrize("zero", [lambda m: m.zero_grad(), lambda m: None], ids=["zeroed", "not"])
def test_an_optimizer_that_is_not_used_keeps_no_grads_of_a_shared_parameter(zero):
    model = nn.Linear(2, 2, bias=False)
    before = model.weight.detach().clone()
    one, unused = (torch.optim.SGD(model.parameters(), 0.25) for _ in range(2))
    model, _ = amp.initialize(model, [one, unused], opt_level="O2", verbosity=0, loss_scale=1.0)
    for _ in range(2):
        backward_of_ones(model, one)
        one.step()
        zero(model)
    torch.testing.assert_close(before - masters(one)[0], torch.full((2, 2), 0.5))


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("make", [torch.optim.SGD, optimizers.FusedSGD])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["given_first", "given_last"])
def test_an_overflow_of_a_shared_parameter_skips_all_its_optimizers(level, make, order):
    model = nn.Linear(2, 2, bias=False)
    before = model.weight.detach().clone()
    pair = [make(model.parameters(), 0.25) for _ in range(2)]
    model, pair = amp.initialize(model, pair, opt_level=level, verbosity=0)
    with amp.scale_loss(model(torch.full((1, 2), torch.inf)).sum(), pair[0]) as scaled_loss:
        scaled_loss.backward()
    for i in order:
        pair[i].step()
    assert torch.equal(masters(pair[0])[0], before)
    backward_of_ones(model, pair)
    for optimizer in pair:
        optimizer.step()
    torch.testing.assert_close(before - masters(pair[0])[0], torch.full((2, 2), 0.5))


def test_a_shared_parameter_is_zeroed_by_its_model():
    model = nn.Linear(2, 2, bias=False)
    before = model.weight.detach().clone()
    pair = [torch.optim.SGD(model.parameters(), 0.25) for _ in range(2)]
    model, pair = amp.initialize(model, pair, opt_level="O2", verbosity=0, loss_scale=1.0)
    for _ in range(2):
        backward_of_ones(model, pair)
        pair[0].step()  # the other never steps
        model.zero_grad()
    torch.testing.assert_close(before - masters(pair[0])[0], torch.full((2, 2), 0.5))


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_frozen_parameters_can_be_thawed(level):
    model = linear_net()
    model[0].weight.requires_grad_(False)
    _, optimizer = initialized(level, model)
    train_step(model, optimizer)
    frozen = masters(optimizer)[0].detach().clone()
    model[0].weight.requires_grad_(True)
    train_step(model, optimizer)
    now = masters(optimizer)[0]
    assert not torch.equal(now, frozen)
    assert torch.equal(model[0].weight, now.to(model[0].weight.dtype))


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_the_model_follows_the_masters(level):
    model, optimizer = initialized(level)
    for seed in range(3):
        train_step(model, optimizer, seed)
        for master, param in zip(masters(optimizer), model.parameters()):
            assert torch.equal(param, master.to(param.dtype))


def test_masters_follow_what_is_written_to_the_model():
    model, optimizer = initialized("O2", linear_net())
    with torch.no_grad():
        model[0].weight.fill_(3.0)
    backward(model, optimizer)
    assert torch.equal(masters(optimizer)[0], torch.full((8, 4), 3.0))
    assert not torch.equal(masters(optimizer)[1], model[0].bias.float()), "others keep their bits"


def test_a_write_leaves_the_masters_of_what_it_does_not_change():
    model, optimizer = initialized("O2", linear_net())
    expected = masters(optimizer)[0].detach().clone()
    expected[0, 0] = 3.0
    with torch.no_grad():
        model[0].weight[0, 0] = 3.0
    backward(model, optimizer)
    assert torch.equal(masters(optimizer)[0], expected)


def test_masters_follow_writes_between_backward_and_step():
    model, optimizer = initialized("O2", linear_net(), lambda m: sgd(m, lr=0.0))
    backward(model, optimizer)
    with torch.no_grad():
        model[0].weight.fill_(3.0)
    optimizer.step()
    assert (model[0].weight == 3).all() and (masters(optimizer)[0] == 3).all()


def test_writes_past_the_version_counter_need_a_word():
    model, optimizer = initialized("O2", linear_net(), lambda m: sgd(m, lr=0.0))
    model[0].weight.data.fill_(3.0)
    amp.refresh_masters(optimizer)
    train_step(model, optimizer)
    assert (model[0].weight == 3).all()


def test_the_model_follows_masters_written_by_hand():
    model, optimizer = initialized("O2", linear_net(), lambda m: sgd(m, lr=0.0))
    with torch.no_grad():
        masters(optimizer)[0].fill_(2.0)
    train_step(model, optimizer)
    assert (model[0].weight == 2).all()


@pytest.mark.parametrize("change", [nn.Module.float, nn.Module.bfloat16])
def test_changing_the_type_afterwards_is_refused(change):
    model, optimizer = initialized("O2", linear_net())
    loss = loss_of(model)
    change(model)
    with pytest.raises(RuntimeError, match="change the type before initialize"):
        amp.scale_loss(loss, optimizer).__enter__()
    with pytest.raises(RuntimeError, match="expected model parameter 0 of the optimizer"):
        optimizer.step()


def test_sub_ulp_updates_add_up_in_the_masters():
    model, optimizer = initialized("O5", nn.Linear(2, 3, bias=False), lambda m: sgd(m, lr=2.0**-14))
    with torch.no_grad():
        model.weight.fill_(1.0)
    for _ in range(8):
        with amp.scale_loss(-model(torch.ones(1, 2)).sum(), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    assert (model.weight == 1).all() and (masters(optimizer)[0] > 1).all()


def test_a_parameter_that_no_model_owns_gets_a_master_too():
    model, extra = linear_net(), nn.Parameter(torch.ones(3).half())
    optimizer = torch.optim.SGD([*model.parameters(), extra], lr=0.5)
    amp.initialize(model, optimizer, opt_level="O2", loss_scale=128, verbosity=0)
    with amp.scale_loss(extra.float().sum(), optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    assert masters(optimizer)[-1].dtype == F32 and (extra == 0.5).all()


def test_which_parameters_overflowed():
    model, optimizer = initialized("O2", linear_net())
    weights = optimizer._torchamp.weights
    with overflow_at(model[2].bias):
        backward(model, optimizer)
    backward(model, optimizer)
    assert weights.found_inf_per_param().tolist() == [0, 0, 0, 1], "the clean one hides nothing"
    optimizer.step()
    assert weights.found_inf_per_param() is None
