"""apex.contrib: clipping and cross entropy."""

import math

import pytest
import torch
import torch.nn.functional as F
from apex.contrib.clip_grad import clip_grad_norm_
from apex.contrib.xentropy import SoftmaxCrossEntropyLoss
from torch import nn


def params_with_grads(device, dtypes):
    params = [nn.Parameter(torch.zeros(50, device=device, dtype=dtype)) for dtype in dtypes]
    for param in params:
        param.grad = torch.randn(50, device=device).to(param.dtype)
    return params


MIXED = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipping_is_as_in_float64(max_norm, device):
    params = params_with_grads(device, MIXED)
    before = [param.grad.double() for param in params]
    norm = torch.cat(before).norm()
    got = clip_grad_norm_(params, max_norm)
    torch.testing.assert_close(got.double(), norm, rtol=1e-6, atol=0)
    for param, old in zip(params, before):
        wanted = old * min(1.0, max_norm / norm.item())
        assert param.grad.dtype == param.dtype
        torch.testing.assert_close(param.grad.double(), wanted, rtol=1e-2, atol=1e-4)


def test_clipping_takes_what_torchs_takes(device):
    (param,) = params_with_grads(device, [torch.float32])
    norm = param.grad.norm().item()
    assert clip_grad_norm_(param, 1e9).item() == pytest.approx(norm)
    assert clip_grad_norm_((p for p in [param]), 1e9).item() == pytest.approx(norm)
    largest = param.grad.abs().max()
    assert torch.equal(clip_grad_norm_([param], 1e9, norm_type=math.inf), largest)
    assert clip_grad_norm_([nn.Parameter(torch.ones(2))], 1.0).item() == 0.0


def test_squares_of_float16_do_not_overflow(device):
    (param,) = params_with_grads(device, [torch.float16])
    param.grad.fill_(3e4)
    norm = clip_grad_norm_(param, 1.0)
    assert norm.item() == pytest.approx(3e4 * 50**0.5, rel=1e-5)
    assert param.grad.float().norm().item() == pytest.approx(1.0, rel=1e-2)


def test_a_norm_that_is_not_finite_raises_if_asked(device):
    (param,) = params_with_grads(device, [torch.float32])
    param.grad[3] = math.inf
    before = param.grad.clone()
    with pytest.raises(RuntimeError, match="expected the grads to have a finite norm, got inf"):
        clip_grad_norm_(param, 1.0, error_if_nonfinite=True)
    assert torch.equal(param.grad, before)


@pytest.mark.parametrize("half_to_float", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_as_in_float64(smoothing, dtype, half_to_float, device):
    logits = (torch.randn(16, 10, device=device) * 4).to(dtype).requires_grad_()
    labels = torch.randint(0, 10, (16,), device=device)
    labels[:3] = 0
    losses = SoftmaxCrossEntropyLoss.apply(logits, labels, smoothing, 0, half_to_float)
    assert losses.shape == (16,)
    assert losses.dtype == (torch.float32 if half_to_float else dtype)
    exact = logits.detach().double().requires_grad_()
    logp = F.log_softmax(exact, -1)
    wanted = -(1 - smoothing) * logp.gather(1, labels[:, None])[:, 0] - smoothing * logp.mean(-1)
    wanted = wanted * (labels != 0)
    eps = torch.finfo(losses.dtype).eps
    torch.testing.assert_close(losses.double(), wanted, rtol=2 * eps, atol=16 * eps)
    weights = torch.randn(16, device=device).double()
    (losses.double() * weights).sum().backward()
    (wanted * weights).sum().backward()
    assert logits.grad.dtype == dtype and not logits.grad[:3].any()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=4 * eps, atol=4 * eps)


def test_cross_entropys_defaults(device):
    logits = torch.randn(4, 5, device=device)
    labels = torch.tensor([0, 1, 2, 3], device=device)
    losses = SoftmaxCrossEntropyLoss.apply(logits, labels)
    assert losses[0] == 0
    torch.testing.assert_close(losses[1:], F.cross_entropy(logits, labels, reduction="none")[1:])


@pytest.fixture
def logits(device):
    return torch.randn(5, 8, device=device, dtype=torch.float64, requires_grad=True)


def smoothed(logits):
    labels = torch.tensor([0, 1, 2, 7, 3], device=logits.device)
    return SoftmaxCrossEntropyLoss.apply(logits, labels, 0.1)


def test_cross_entropy_can_be_differentiated_twice(logits):
    assert torch.autograd.gradcheck(smoothed, logits)
    assert torch.autograd.gradgradcheck(smoothed, logits)


def test_a_compiled_graph_has_cross_entropy_whole(logits):
    torch._dynamo.reset()
    whole = torch.compile(lambda x: smoothed(x).sin(), backend="aot_eager", fullgraph=True)
    upstream = torch.randn(5, device=logits.device, dtype=torch.float64)
    got = torch.autograd.grad(whole(logits), logits, upstream)
    wanted = torch.autograd.grad(smoothed(logits).sin(), logits, upstream)
    torch.testing.assert_close(got, wanted)
