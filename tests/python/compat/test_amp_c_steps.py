"""amp_C's SGD, Adam and Adagrad against torchamp's."""

import amp_C
import pytest
import torch
from amp_c_lists import GRADS, assert_equal, draw, stepped_by, zeros

from torchamp import optimizers


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_adam_of_any_dtype(dtype, flag, device):
    params = draw(device, dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    states = zeros(params, wide), zeros(params, wide)
    before = [param.clone() for param in params]
    lists = [draw(device, dtype, seed=1), params, *states]
    amp_C.multi_tensor_adam(65536, flag, lists, 1e-2, 0.9, 0.99, 1e-8, 1, 1, 1, 0.0)
    for param, old, grad in zip(params, before, lists[0]):
        torch.testing.assert_close(param, (old - 1e-2 * grad.sign()).to(dtype))


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("copies", [False, True])
def test_sgd(nesterov, copies, flag, device):
    params, m = draw(device), zeros(draw(device))
    dampening = 0.0 if nesterov else 0.3
    expected = stepped_by(
        lambda p: optimizers.FusedSGD(p, 0.1, 0.9, dampening, 0.1, nesterov),
        params,
        [draw(device, seed=s) for s in GRADS],
    )
    models = [[param.half() for param in params]] if copies else []
    for step in GRADS:
        grads = [grad * 2 for grad in draw(device, seed=step)]
        arguments = (0.1, 0.9, dampening, 0.1, nesterov, step == 1, False, 0.5)
        amp_C.multi_tensor_sgd(65536, flag, [grads, params, m, *models], *arguments)
    assert_equal(params, expected)
    for model in models:
        assert_equal(model, [param.half() for param in params])


def test_sgd_skips_where_the_flag_is_set(flag, device):
    params, m = draw(device), zeros(draw(device))
    before = [param.clone() for param in params]
    lists = [draw(device, seed=1), params, m]
    amp_C.multi_tensor_sgd(65536, flag + 7, lists, 0, 0.9, 0, 0.1, False, True, False, 1.0)
    assert_equal(params, before)
    assert all(not buffer.any() for buffer in m)


def test_sgd_without_momentum_leaves_buffers_alone(flag, device):
    params, m = draw(device), zeros(draw(device))
    lists = [draw(device, seed=1), params, m]
    expected = [param - 0.1 * grad for param, grad in zip(params, lists[0])]
    amp_C.multi_tensor_sgd(65536, flag, lists, 0.0, 0.0, 0.0, 0.1, False, True, False, 1.0)
    for got, wanted in zip(params, expected):
        torch.testing.assert_close(got, wanted)
    assert all(not buffer.any() for buffer in m)


@pytest.mark.parametrize("mode", [0, 1])
def test_adagrad(mode, flag, device):
    params, sums = draw(device), zeros(draw(device))
    expected = stepped_by(
        lambda p: optimizers.FusedAdagrad(
            p, 0.1, weight_decay=0.1, eps=1e-5, decoupled_weight_decay=bool(mode)
        ),
        params,
        [draw(device, seed=s) for s in GRADS],
    )
    for step in GRADS:
        lists = [draw(device, seed=step), params, sums]
        amp_C.multi_tensor_adagrad(65536, flag, lists, 0.1, 1e-5, mode, 0.1)
    assert_equal(params, expected)


def test_steps_tell_autograd_that_they_wrote(flag, device):
    (param,) = params = [torch.ones(2, device=device, requires_grad=True)]
    loss = (param * param).sum()
    lists = [[torch.ones_like(param)], params, zeros(params)]
    amp_C.multi_tensor_adagrad(65536, flag, lists, 0.1, 1e-5, 0, 0.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
