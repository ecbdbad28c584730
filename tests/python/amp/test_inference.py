"""cast_for_inference: a model cast once, for inference-only programs."""

import copy

import pytest
import torch
from nets import Net, batch, initialized, linear_net, train_step
from torch import nn

from torchamp import amp

DTYPES = [torch.float16, torch.bfloat16]
IN_TRAINING = (
    r"^cast_for_inference: expected model \(Net\) to be in float32, got one that initialize has "
    "cast for training; cast a copy.deepcopy of it$"
)


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def test_casts_the_model_once_and_what_goes_in_and_comes_out():
    x, _ = batch()
    expected = net()(x)
    for dtype in DTYPES:
        model = net()
        assert amp.cast_for_inference(model, dtype) is model and isinstance(model, Net)
        assert {model.first.weight.dtype, model.last.bias.dtype} == {dtype}
        assert {model.norm.weight.dtype, model.norm.running_var.dtype} == {torch.float32}
        assert model(x).dtype == torch.float32
        torch.testing.assert_close(model(x), expected, atol=0.05, rtol=0.05)


def test_casts_batch_norms_and_leaves_outputs_where_asked():
    model = amp.cast_for_inference(net(), torch.bfloat16, False, None)
    assert {tensor.dtype for tensor in model.parameters()} == {torch.bfloat16}
    assert model(batch()[0]).dtype == torch.bfloat16


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_runs_without_grads_and_in_inference_mode(mode):
    x, _ = batch()
    model = amp.cast_for_inference(net(), torch.bfloat16)
    expected = model(x)
    assert expected.requires_grad
    with mode():
        assert torch.equal(model(x), expected) and not model(x).requires_grad


def test_cast_in_inference_mode_it_is_a_model_like_any_other():
    model = net()
    with torch.inference_mode():
        amp.cast_for_inference(model, torch.bfloat16)
    assert not any(param.is_inference() for param in model.parameters())
    model(batch()[0]).sum().backward()
    assert model.last.weight.grad is not None


def test_keeps_parameters_their_flags_and_the_mode():
    model = net()
    before = list(model.parameters())
    before[0].requires_grad_(False)
    amp.cast_for_inference(model, torch.float16)
    assert all(a is b for a, b in zip(before, model.parameters()))
    assert not before[0].requires_grad and not model.training


def test_may_be_cast_again_and_copied():
    x, _ = batch()
    model = amp.cast_for_inference(net(), torch.bfloat16)
    other = copy.deepcopy(model)
    amp.cast_for_inference(model, torch.float16)
    assert model.last.weight.dtype == torch.float16
    assert other.last.weight.dtype == torch.bfloat16
    assert model(x).dtype == other(x).dtype == torch.float32


@pytest.mark.parametrize("level", ["O0", "O1", "O4"])
def test_takes_a_model_that_was_trained_in_float32(level):
    x, _ = batch()
    model, optimizer = initialized(level, loss_scale=1.0)
    train_step(model, optimizer)
    model.eval()
    with amp.disable_casts():
        expected = model(x).float()
    amp.cast_for_inference(model, torch.float16)
    torch.testing.assert_close(model(x), expected, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("level", ["O2", "O5"])
def test_takes_a_copy_of_a_model_that_is_trained_in_low_precision(level):
    x, _ = batch()
    model, optimizer = initialized(level)
    model.eval()
    with pytest.raises(RuntimeError, match=IN_TRAINING):
        amp.cast_for_inference(model, torch.float16)
    deployed = amp.cast_for_inference(copy.deepcopy(model), torch.float16)
    torch.testing.assert_close(deployed(x), model(x), atol=0.05, rtol=0.05)
    train_step(model.train(), optimizer)


def test_refuses_a_part_whose_own_forward_casts():
    part, _ = initialized("O2", linear_net())
    whole = nn.Sequential(part)
    with pytest.raises(RuntimeError, match=r"expected model\.0 \(Sequential\)"):
        amp.cast_for_inference(whole, torch.float16)
