"""amp_C's steps against torchamp's."""

import amp_C
import pytest
import torch
from compat.lists import GRADS, draw, stepped_by, zeros
from compat.optimizers import assert_equal

from torchamp import ops, optimizers


@pytest.fixture
def flag(device):
    return torch.zeros(1, dtype=torch.int32, device=device)


@pytest.mark.parametrize("mode", [0, 1])
def test_adam(mode, flag, device):
    params, m, v = draw(device), zeros(draw(device)), zeros(draw(device))
    expected = stepped_by(
        lambda p: optimizers.FusedAdam(
            p, 1e-2, (0.8, 0.9), 1e-4, 0.1, decoupled_weight_decay=bool(mode)
        ),
        params,
        [draw(device, seed=s) for s in GRADS],
    )
    for step in GRADS:
        lists = [draw(device, seed=step), params, m, v]
        amp_C.multi_tensor_adam(65536, flag, lists, 1e-2, 0.8, 0.9, 1e-4, step, mode, 1, 0.1)
    assert_equal(params, expected)


def test_lamb_in_two_stages(flag, device):
    params, grads = draw(device), draw(device, seed=1)
    expected = stepped_by(lambda p: optimizers.FusedLAMB(p, 0.1, weight_decay=0.1), params, [grads])
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
    torch.testing.assert_close(params, expected, rtol=1e-6, atol=1e-7)


def test_the_decay_of_stage1_is_each_tensors_own(flag, device):
    params, grads = draw(device)[:2], [torch.zeros_like(t) for t in draw(device)[:2]]
    updates = zeros(params)
    decay = torch.tensor([0.5, 0.0], device=device)
    lists = [grads, params, zeros(params), zeros(params), updates]
    amp_C.multi_tensor_lamb_stage1_cuda(65536, flag, lists, decay, 0, 0.9, 0.99, 1e-6, 1.0, 0.0)
    assert torch.equal(updates[0], params[0] * 0.5) and not updates[1].any()
