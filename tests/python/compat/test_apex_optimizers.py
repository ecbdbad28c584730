"""apex.optimizers: torch's numbers, and apex's."""

import pytest
import torch
from apex.optimizers import FusedAdam, FusedLAMB, FusedNovoGrad, FusedSGD
from compat.optimizers import assert_equal, make_params, set_grads, train
from torch import nn

#: apex's optimizer, its arguments, and the reference: torch's in float64
PAIRS = {
    "adam_is_adamw": (
        lambda p: FusedAdam(p, 1e-2, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1),
    ),
    "adam_l2": (
        lambda p: FusedAdam(p, lr=1e-2, adam_w_mode=False, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, 1e-2, weight_decay=0.1),
    ),
    "adam_positional": (
        lambda p: FusedAdam(p, 1e-2, True, (0.5, 0.7), 1e-3, False, 0.1),
        lambda p: torch.optim.Adam(p, 1e-2, (0.5, 0.7), 1e-3, 0.1),
    ),
    "sgd": (
        lambda p: FusedSGD(p, 0.1, 0.9, 0.0, 0.1, True),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, 0.0, 0.1, True),
    ),
    "sgd_dampening": (
        lambda p: FusedSGD(p, lr=0.1, momentum=0.9, dampening=0.3),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, 0.3),
    ),
}


@pytest.mark.parametrize("case", PAIRS)
def test_steps_as_torch(case, device):
    ours, theirs = PAIRS[case]
    params, exact = make_params(device), make_params(device, torch.float64)
    train(ours(params), params, 5)
    for got, wanted in zip(params, train(theirs(exact), exact, 5)):
        torch.testing.assert_close(got.double(), wanted, rtol=2e-6, atol=2e-6)


def lamb_by_hand(params, grads, state, step, lr, weight_decay, use_nvlamb=False):
    """One step of LAMB as documented by apex, in float64, with decoupled decay."""
    norm = torch.sqrt(sum(grad.double().square().sum() for grad in grads))
    clip = torch.clamp(norm, min=1.0)
    for i, (param, grad) in enumerate(zip(params, grads)):
        g = grad.double() / clip
        m, v = state.setdefault(i, [torch.zeros_like(param), torch.zeros_like(param)])
        m.mul_(0.9).add_(0.1 * g)
        v.mul_(0.999).add_(0.001 * g * g)
        update = (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-6)
        update += weight_decay * param
        lengths = param.norm(), update.norm()
        adapts = (weight_decay != 0 or use_nvlamb) and min(lengths) != 0
        param -= lr * (lengths[0] / lengths[1] if adapts else 1.0) * update


@pytest.mark.parametrize(("weight_decay", "use_nvlamb"), [(0.01, False), (0.0, False), (0.0, True)])
def test_lamb_steps_as_apex_describes_and_leaves_grads_alone(weight_decay, use_nvlamb, device):
    params = make_params(device)
    exact, state = [param.detach().double() for param in params], {}
    optimizer = FusedLAMB(params, 1e-2, weight_decay=weight_decay, use_nvlamb=use_nvlamb)
    for step in range(1, 5):
        set_grads(params, step)
        grads = [param.grad.clone() for param in params]
        optimizer.step()
        assert_equal([param.grad for param in params], grads)
        lamb_by_hand(exact, grads, state, step, 1e-2, weight_decay, use_nvlamb)
    for got, wanted in zip(params, exact):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("inside", [False, True])
def test_novograd_steps_as_apex_describes(inside, device):
    (param, *_) = params = make_params(device)[:1]
    exact = param.detach().double()
    optimizer = FusedNovoGrad(params, 1e-2, weight_decay=0.1, reg_inside_moment=inside)
    average, length = torch.zeros_like(exact), None
    for step in range(1, 5):
        set_grads(params, step)
        grad = param.grad.double()
        optimizer.step()
        square = grad.norm() ** 2
        length = square.sqrt() if length is None else (0.999 * length**2 + 0.001 * square).sqrt()
        divisor = length / (1 - 0.999**step) ** 0.5 + 1e-8
        if inside:
            average = 0.9 * average + 0.1 * (grad / divisor + 0.1 * exact)
            exact -= 1e-2 * average / (1 - 0.9**step)
        else:
            average = 0.9 * average + 0.1 * grad
            exact -= 1e-2 * (average / (1 - 0.9**step) / divisor + 0.1 * exact)
    torch.testing.assert_close(param.double(), exact, rtol=1e-5, atol=1e-6)


def test_weight_decay_after_momentum(device):
    (param,) = params = [nn.Parameter(torch.ones(3, device=device))]
    optimizer = FusedSGD(params, 0.5, momentum=0.9, weight_decay=0.1, wd_after_momentum=True)
    param.grad = torch.ones_like(param)
    optimizer.step()
    torch.testing.assert_close(param.detach(), torch.full_like(param, 1 - 0.5 * 1.1))
    assert torch.equal(optimizer.state[param]["momentum_buffer"], torch.ones_like(param))
