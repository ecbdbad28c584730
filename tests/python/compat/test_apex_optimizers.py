"""apex.optimizers: the numbers of torch's, and of the papers'."""

import pytest
import torch
from apex.optimizers import FusedAdam, FusedLAMB, FusedNovoGrad, FusedSGD
from compat.optimizers import make_params, train
from reference.optimizers import LAMB, NovoGrad
from torch import nn

#: apex's optimizer, its arguments, and the reference, in float64
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
    "lamb": (lambda p: FusedLAMB(p, 1e-2), lambda p: LAMB(p, 1e-2)),
    "lamb_without_decay": (
        lambda p: FusedLAMB(p, 1e-2, weight_decay=0.0),
        lambda p: LAMB(p, 1e-2, weight_decay=0.0),
    ),
    "nvlamb": (
        lambda p: FusedLAMB(p, 1e-2, weight_decay=0.0, use_nvlamb=True),
        lambda p: LAMB(p, 1e-2, weight_decay=0.0, always_adapts=True),
    ),
    "novograd": (
        lambda p: FusedNovoGrad(p, 1e-2, weight_decay=0.1),
        lambda p: NovoGrad(p, 1e-2, weight_decay=0.1),
    ),
    "novograd_inside_moment": (
        lambda p: FusedNovoGrad(p, 1e-2, weight_decay=0.1, reg_inside_moment=True),
        lambda p: NovoGrad(p, 1e-2, weight_decay=0.1, decay_in_moment=True),
    ),
}


@pytest.mark.parametrize("case", PAIRS)
def test_steps_as_the_reference_and_leaves_grads_alone(case, device):
    ours, theirs = PAIRS[case]
    params, exact = make_params(device), make_params(device, torch.float64)
    train(ours(params), params, 5)
    train(theirs(exact), exact, 5)
    for got, wanted in zip(params, exact):
        torch.testing.assert_close(got.double(), wanted, rtol=2e-6, atol=2e-6)
        assert torch.equal(got.grad.double(), wanted.grad)


def test_weight_decay_after_momentum(device):
    (param,) = params = [nn.Parameter(torch.ones(3, device=device))]
    optimizer = FusedSGD(params, 0.5, momentum=0.9, weight_decay=0.1, wd_after_momentum=True)
    param.grad = torch.ones_like(param)
    optimizer.step()
    torch.testing.assert_close(param.detach(), torch.full_like(param, 1 - 0.5 * 1.1))
    assert torch.equal(optimizer.state[param]["momentum_buffer"], torch.ones_like(param))
