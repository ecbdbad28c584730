"""amp_C's steps of LAMB against torchamp's. test_apex_own_steps.py has that of Adam."""

import amp_C
import pytest
import torch
from compat.optimizers import assert_equal
from torch import nn

from torchamp import ops, optimizers


@pytest.fixture
def flag(device):
    return torch.zeros(1, dtype=torch.int32, device=device)


def draw(device, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = [(3,), (17, 5), (0,), ()]
    return [torch.randn(size, generator=generator).to(device) for size in sizes]


def zeros(tensors):
    return [torch.zeros_like(tensor) for tensor in tensors]


def test_lamb_in_two_stages(flag, device):
    params, grads = draw(device), draw(device, seed=1)
    expected = [nn.Parameter(param.clone()) for param in params]
    for param, grad in zip(expected, grads):
        param.grad = grad.clone()
    optimizers.FusedLAMB(expected, 0.1, weight_decay=0.1).step()
    updates, kept = zeros(params), [grad.clone() for grad in grads]
    decay = torch.full((len(params),), 0.1, device=device)
    norm = ops.l2norm(grads)[0]
    first = [grads, params, zeros(params), zeros(params), updates]
    amp_C.multi_tensor_lamb_stage1_cuda(65536, flag, first, decay, 0, 0.9, 0.999, 1e-6, norm, 1.0)
    assert_equal(grads, kept)
    param_norms, update_norms = ops.l2norm(params, True)[1], ops.l2norm(updates, True)[1]
    amp_C.multi_tensor_lamb_stage2_cuda(
        65536, flag, [params, updates], param_norms, update_norms, 0.1, 0.1, False
    )
    torch.testing.assert_close(params, [param.detach() for param in expected], rtol=1e-6, atol=1e-7)


def test_the_decay_of_stage1_is_each_tensors_own(flag, device):
    params, grads = draw(device)[:2], zeros(draw(device)[:2])
    updates = zeros(params)
    decay = torch.tensor([0.5, 0.0], device=device)
    lists = [grads, params, zeros(params), zeros(params), updates]
    amp_C.multi_tensor_lamb_stage1_cuda(65536, flag, lists, decay, 0, 0.9, 0.99, 1e-6, 1.0, 0.0)
    assert torch.equal(updates[0], params[0] * 0.5) and not updates[1].any()
