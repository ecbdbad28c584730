"""amp_C's NovoGrad and LAMB against torchamp's."""

import amp_C
import pytest
import torch
from amp_c_lists import GRADS, assert_equal, draw, stepped_by, zeros

from torchamp import ops, optimizers


@pytest.fixture
def flag(device):
    return torch.zeros(1, dtype=torch.int32, device=device)


@pytest.mark.parametrize("mode", [0, 1])
def test_novograd(mode, flag, device):
    params, m = draw(device), zeros(draw(device))
    norms = torch.zeros(len(params), device=device)
    expected = stepped_by(
        lambda p: optimizers.FusedNovoGrad(
            p, 0.1, weight_decay=0.1, decay_in_moment=mode == 0, starts_at_zero=True
        ),
        params,
        [draw(device, seed=s) for s in GRADS],
    )
    for step in GRADS:
        lists = [draw(device, seed=step), params, m]
        arguments = (norms, 0.1, 0.9, 0.999, 1e-8, step, 1, 0.1, 1, mode, 2)
        amp_C.multi_tensor_novograd(65536, flag, lists, *arguments)
    assert_equal(params, expected)
    with pytest.raises(RuntimeError, match="expected norm_type to be 2"):
        amp_C.multi_tensor_novograd(65536, flag, lists, *arguments[:-1], 0)


def lamb(params, grads, **options):
    return stepped_by(lambda p: optimizers.FusedLAMB(p, 0.1, **options), params, grads)


def states_of(params):
    return zeros(params), zeros(params)


@pytest.mark.parametrize("nvlamb", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_lamb(weight_decay, nvlamb, flag, device):
    params = draw(device)
    grads = [draw(device, seed=s) for s in GRADS]
    expected = lamb(params, grads, weight_decay=weight_decay, always_adapts=nvlamb)
    states = states_of(params)
    for step, each in enumerate(grads, 1):
        norm = ops.l2norm(each)[0]
        arguments = (0.1, 0.9, 0.999, 1e-6, step, 1, weight_decay, 1, 1, norm, 1.0, nvlamb)
        kept = [grad.clone() for grad in each]
        amp_C.multi_tensor_lamb(65536, flag, [each, params, *states], *arguments)
        assert_equal(each, kept)
    assert_equal(params, expected)


def test_lamb_in_two_stages(flag, device):
    params, grads = draw(device), draw(device, seed=1)
    expected = lamb(params, [grads], weight_decay=0.1)
    states, updates = states_of(params), zeros(params)
    decay = torch.full((len(params),), 0.1, device=device)
    norm = ops.l2norm(grads)[0]
    first = [grads, params, *states, updates]
    amp_C.multi_tensor_lamb_stage1_cuda(65536, flag, first, decay, 0, 0.9, 0.999, 1e-6, norm, 1.0)
    param_norms, update_norms = ops.l2norm(params, True)[1], ops.l2norm(updates, True)[1]
    amp_C.multi_tensor_lamb_stage2_cuda(
        65536, flag, [params, updates], param_norms, update_norms, 0.1, 0.1, False
    )
    for got, wanted in zip(params, expected):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-7)


def test_the_decay_of_stage1_is_each_tensors_own(flag, device):
    params, grads = draw(device)[:2], [torch.zeros_like(t) for t in draw(device)[:2]]
    updates = zeros(params)
    decay = torch.tensor([0.5, 0.0], device=device)
    lists = [grads, params, *states_of(params), updates]
    amp_C.multi_tensor_lamb_stage1_cuda(65536, flag, lists, decay, 0, 0.9, 0.99, 1e-6, 1.0, 0.0)
    assert torch.equal(updates[0], params[0] * 0.5) and not updates[1].any()
