"""apex.parallel.LARC against its formula."""

import copy
import pickle

import pytest
import torch
from apex.optimizers import FusedSGD
from apex.parallel.LARC import LARC
from torch import nn

from torchamp import amp


def make_params(device, dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    params = [nn.Parameter(torch.randn(5, n, generator=generator).to(device)) for n in (1, 4)]
    params.append(nn.Parameter(torch.zeros(3, device=device)))
    for param in params:
        param.data = param.data.to(dtype)
        param.grad = torch.randn(param.shape, generator=generator).to(device, dtype)
    return params


def by_hand(param, grad, lr, decay, trust, clip, eps=1e-8):
    """The expected parameter after a step of SGD with the adapted grad."""
    p, g = param.detach().double(), grad.double()
    if p.norm() != 0 and g.norm() != 0:
        rate = trust * p.norm() / (g.norm() + decay * p.norm() + eps)
        g = (g + decay * p) * (min(rate / lr, 1.0) if clip else rate)
    return p - lr * g


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("trust", [0.02, 50.0])
def test_a_step(trust, decay, clip, device):
    params = make_params(device)
    wanted = [by_hand(p, p.grad, 0.5, decay, trust, clip) for p in params]
    optimizer = LARC(torch.optim.SGD(params, 0.5, weight_decay=decay), trust, clip)
    assert optimizer.step() is None
    torch.testing.assert_close([p.double() for p in params], wanted, rtol=1e-5, atol=1e-6)
    assert optimizer.param_groups[0]["weight_decay"] == decay


def test_float16_grads_are_adapted_in_float32(device):
    params = make_params(device, torch.float16)
    wanted = [by_hand(p, p.grad, 0.5, 0.1, 0.02, True) for p in params]
    LARC(torch.optim.SGD(params, 0.5, weight_decay=0.1)).step()
    torch.testing.assert_close([p.double() for p in params], wanted, rtol=2e-3, atol=1e-3)


def test_a_learning_rate_of_zero_changes_nothing(device):
    """apex divided by it."""
    params = make_params(device)
    before = [param.detach().clone() for param in params]
    LARC(torch.optim.SGD(params, 0.0)).step()
    assert all(torch.equal(a, b) for a, b in zip(before, params))


def test_it_is_an_optimizer_in_front_of_another(device):
    params = make_params(device)
    inner = torch.optim.SGD(params, 0.5, momentum=0.9)
    optimizer = LARC(inner)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.optim is inner and optimizer.param_groups is inner.param_groups
    assert optimizer.state is inner.state and optimizer.defaults is inner.defaults
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    optimizer.step()
    scheduler.step()
    assert inner.param_groups[0]["lr"] == 0.25
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1, device=device))]})
    assert len(inner.param_groups) == 2
    optimizer.zero_grad(set_to_none=False)
    assert not params[0].grad.any()


def test_state_goes_to_and_from_the_inner_optimizer(device):
    params, twins = make_params(device), make_params(device)
    optimizer = LARC(torch.optim.SGD(params, 0.5, momentum=0.9))
    optimizer.step()
    other = LARC(torch.optim.SGD(twins, 0.5, momentum=0.9))
    other.load_state_dict(optimizer.state_dict())
    assert torch.equal(
        other.state[twins[1]]["momentum_buffer"], optimizer.state[params[1]]["momentum_buffer"]
    )
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert twin.optim is not optimizer.optim and twin.trust_coefficient == 0.02
        assert torch.equal(twin.param_groups[0]["params"][1], params[1])


def test_weight_decay_comes_back_after_an_exception(device):
    optimizer = LARC(torch.optim.SGD(make_params(device), 0.5, weight_decay=0.1))
    optimizer.optim.step = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        optimizer.step()
    assert optimizer.param_groups[0]["weight_decay"] == 0.1


def test_a_closures_value_is_returned(device):
    params = make_params(device)
    optimizer = LARC(torch.optim.SGD(params, 0.5))

    def closure():
        loss = sum(param.square().sum() for param in params)
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0


def test_step_hooks_run_once(device):
    seen = []
    optimizer = LARC(torch.optim.SGD(make_params(device), 0.5))
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    optimizer.step()
    assert seen == [1]


@pytest.mark.parametrize("inner", [torch.optim.SGD, FusedSGD])
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_amp_takes_it(level, inner, device):
    torch.manual_seed(0)
    model = nn.Linear(4, 3).to(device)
    optimizer = LARC(inner(model.parameters(), 0.5, momentum=0.9))
    model, returned = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    assert returned is optimizer and isinstance(optimizer, LARC)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = [param.detach().clone() for param in amp.master_params(optimizer)]
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        loss = factor * model(torch.randn(8, 4, device=device)).float().square().mean()
        amp.scale_loss(loss, optimizer).backward()
        optimizer.step()
        same = torch.equal(before[0], next(amp.master_params(optimizer)))
        if level in ("O1", "O2"):
            assert same == (factor != 1.0)
            assert torch.equal(
                model.weight, next(amp.master_params(optimizer)).to(model.weight.dtype)
            )
    scheduler.step()


@pytest.mark.parametrize("inner", [torch.optim.SGD, FusedSGD])
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O5"])
def test_larc_adapts_true_grads(level, inner, device):
    lr, trust, momentum = 0.25, 0.02, 0.125
    model = nn.Linear(4, 1, bias=False).to(device)
    exact, buffer = model.weight.detach().double(), None
    optimizer = LARC(inner([{"params": model.parameters(), "lr": lr}], momentum=momentum), trust)
    model, optimizer = amp.initialize(
        model, optimizer, opt_level=level, loss_scale=64.0, verbosity=0
    )
    grad = torch.tensor([[0.5, -1.0, 2.0, 4.0]], device=device)
    for _ in range(4):
        optimizer.zero_grad()
        amp.scale_loss(model(grad).sum(), optimizer).backward()
        optimizer.step()
        rate = trust * exact.norm() / grad.double().norm()
        adapted = grad.double() * min(rate / lr, 1.0)
        buffer = adapted if buffer is None else momentum * buffer + adapted
        exact = exact - lr * buffer
    (master,) = amp.master_params(optimizer)
    torch.testing.assert_close(master.double(), exact, rtol=1e-5, atol=1e-6)
    assert torch.equal(model.weight, master.to(model.weight.dtype))
