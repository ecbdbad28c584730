"""amp_C's optimizer steps against torchamp's optimizers and float64."""

import amp_C
import pytest
import torch
from torch import nn

from torchamp import ops, optimizers

SIZES = [(3,), (17, 5), (0,), ()]


@pytest.fixture
def flag(device):
    return torch.zeros(1, dtype=torch.int32, device=device)


def draw(device, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator).to(device, dtype) for size in SIZES]


def zeros(tensors, dtype=torch.float32):
    return [torch.zeros_like(tensor, dtype=dtype) for tensor in tensors]


def stepped_by(make, values, grads):
    """What an optimizer of torchamp's makes of `values`, with a step for each list of grads."""
    params = [nn.Parameter(value.clone()) for value in values]
    optimizer = make(params)
    for step in grads:
        for param, grad in zip(params, step):
            param.grad = grad.clone()
        optimizer.step()
    return [param.detach() for param in params]


def assert_equal(got, expected):
    for a, b in zip(got, expected):
        assert torch.equal(a, b)


GRADS = [1, 2, 3]


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


@pytest.mark.parametrize("masters", [False, True])
def test_adam_capturable_unscales_and_skips(masters, flag, device):
    dtype = torch.float16 if masters else torch.float32
    params, m, v = draw(device), zeros(draw(device)), zeros(draw(device))
    models = [param.to(dtype) for param in params] if masters else params
    grads = [grad.to(dtype) * 4 for grad in draw(device, seed=1)]
    expected = stepped_by(
        lambda p: optimizers.FusedAdamW(p, 1e-2, weight_decay=0.1),
        params,
        [[grad.float() / 4 for grad in grads]],
    )
    op = "multi_tensor_adam_capturable" + ("_master" if masters else "")
    lists = [grads, models, m, v] + ([params] if masters else [])
    lr = torch.tensor(1e-2, dtype=torch.float32, device=device)
    inv_scale = torch.tensor([0.25], device=device)
    step = torch.ones(1, dtype=torch.int32, device=device)
    arguments = (lists, lr, 0.9, 0.999, 1e-8, step, 1, 1, 0.1, inv_scale)
    before = [tensor.clone() for tensors in lists for tensor in tensors]
    getattr(amp_C, op)(65536, torch.ones_like(flag), *arguments)
    assert_equal([tensor for tensors in lists for tensor in tensors], before)
    unscaled = [grad / 4 for grad in grads]
    getattr(amp_C, op)(65536, flag, *arguments)
    assert_equal(grads, unscaled)
    for got, wanted in zip(params, expected):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-7)
    assert_equal(models, [param.to(dtype) for param in params])


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


def lamb_mp(flag, lists, step, norm, scale, device, found_inf=0.0):
    scalar = {"device": device}
    amp_C.multi_tensor_lamb_mp(
        *(65536, flag, lists, torch.tensor([0.1], **scalar), 0.9, 0.999, 1e-6),
        *(torch.tensor([step], dtype=torch.int32, **scalar), 1, 0.1, 1, 1, norm),
        *(torch.tensor([scale], **scalar), False, torch.tensor([found_inf], **scalar)),
        torch.tensor([1.0 / scale], **scalar),
    )


def test_lamb_mp_unscales_writes_copies_and_skips(flag, device):
    params = draw(device)
    grads = [draw(device, seed=s) for s in GRADS]
    expected = lamb(params, grads, weight_decay=0.1)
    states, models = states_of(params), [param.half() for param in params]
    for step, each in enumerate(grads, 1):
        scaled = [grad * 8 for grad in each]
        lists = [scaled, params, *states, models]
        before = [param.clone() for param in params]
        for skipping in ({"flag": flag + 1}, {"flag": flag, "found_inf": 1.0}):
            lamb_mp(
                lists=lists,
                step=step,
                norm=ops.l2norm(scaled)[0].reshape(1),
                scale=8.0,
                device=device,
                **skipping,
            )
            assert_equal(params, before)
        lamb_mp(flag, lists, step, ops.l2norm(scaled)[0].reshape(1), 8.0, device)
    for got, wanted in zip(params, expected):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)
    assert_equal(models, [param.half() for param in params])


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


def test_steps_tell_autograd_that_they_wrote(flag, device):
    (param,) = params = [torch.ones(2, device=device, requires_grad=True)]
    loss = (param * param).sum()
    lists = [[torch.ones_like(param)], params, zeros(params)]
    amp_C.multi_tensor_adagrad(65536, flag, lists, 0.1, 1e-5, 0, 0.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
