"""apex.normalization against float64, in every dtype and under autocast."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from apex.normalization import (
    FusedLayerNorm,
    FusedRMSNorm,
    fused_layer_norm,
)
from torch import nn

from torchamp import Amp

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
KINDS = [FusedLayerNorm, FusedRMSNorm]
by_name = {"ids": lambda kind: getattr(kind, "__name__", str(kind))}


def exact(module, x):
    """The expected result of the module, in float64."""
    weight = None if module.weight is None else module.weight.double()
    if isinstance(module, FusedRMSNorm):
        return F.rms_norm(x.double(), module.normalized_shape, weight, module.eps)
    bias = None if module.bias is None else module.bias.double()
    return F.layer_norm(x.double(), module.normalized_shape, weight, bias, module.eps)


def randomize(module):
    for param in module.parameters():
        nn.init.normal_(param)
    return module


@pytest.mark.parametrize("x_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS, **by_name)
def test_any_dtypes_meet(kind, dtype, x_dtype, device):
    module = randomize(kind((3, 8))).to(device, dtype)
    x = torch.randn(5, 3, 8, device=device).to(x_dtype).requires_grad_()
    result = module(x)
    assert result.dtype == x_dtype
    tolerance = 4 * max(torch.finfo(result.dtype).eps, torch.finfo(torch.float32).eps)
    torch.testing.assert_close(result.double(), exact(module, x), rtol=tolerance, atol=tolerance)
    result.float().sum().backward()
    assert x.grad.dtype == x_dtype and module.weight.grad.dtype == dtype


@pytest.mark.parametrize("kind", KINDS, **by_name)
def test_grads_are_those_of_float64(kind, device):
    module = randomize(kind(8)).to(device)
    x = torch.randn(5, 8, device=device, requires_grad=True)
    grad = torch.randn(5, 8, device=device)
    got = torch.autograd.grad(module(x), [x, *module.parameters()], grad)
    wanted = torch.autograd.grad(exact(module, x), [x, *module.parameters()], grad.double())
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS, **by_name)
def test_without_parameters(kind, device):
    module = kind(8, elementwise_affine=False)
    x = torch.randn(5, 8, device=device)
    assert list(module.parameters()) == [] and module.weight is None
    torch.testing.assert_close(module(x).double(), exact(module, x), rtol=1e-5, atol=1e-5)
    module.reset_parameters()


@pytest.mark.parametrize("kind", KINDS, **by_name)
def test_statistics_of_float16_do_not_overflow(kind, device):
    x = torch.full((2, 512), 300.0, device=device).half()
    x[:, ::2] = -300.0
    result = kind(512).to(device).half()(x)
    torch.testing.assert_close(result.abs(), torch.ones_like(result), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", KINDS, **by_name)
def test_o1_leaves_them_alone(kind, dtype, device):
    """As in apex, whose functions are in no list: float32 stays float32."""
    module = kind(8).to(device)
    x = torch.randn(5, 8, device=device, dtype=dtype)
    with Amp(module, opt_level="O1", verbosity=0):
        result = module(x)
        assert result.dtype == dtype and torch.is_autocast_enabled(device.type)
    with torch.no_grad():
        assert torch.equal(result, module(x))


@pytest.mark.parametrize("kind", KINDS, **by_name)
def test_autocast_of_the_program_casts_their_arguments(kind, device):
    module = randomize(kind(8)).to(device)
    x = torch.randn(5, 8, device=device, requires_grad=True)
    with torch.autocast(device.type, torch.bfloat16):
        result = module(x)
        assert module.double()(x.double()).dtype == torch.float64
    module.float()
    low = copy.deepcopy(module).bfloat16()
    assert result.dtype == torch.bfloat16 and torch.equal(result, low(x.bfloat16()))
    result.float().sum().backward()
    assert x.grad.dtype == torch.float32
    with torch.autocast(device.type, torch.bfloat16, enabled=False):
        assert module(x).dtype == torch.float32


def test_they_are_no_kind_of_torch_s_or_of_each_other():
    assert not issubclass(FusedLayerNorm, (nn.LayerNorm, FusedRMSNorm))
    assert not issubclass(FusedRMSNorm, (nn.RMSNorm, FusedLayerNorm))


def test_parameters_have_apexs_names():
    assert list(FusedLayerNorm(4).state_dict()) == ["weight", "bias"]
    assert list(FusedRMSNorm(4).state_dict()) == ["weight"]
    module = FusedLayerNorm([3, 4], 1e-3)
    assert module.normalized_shape == torch.Size([3, 4]) and module.weight.shape == (3, 4)
    assert repr(module) == "FusedLayerNorm(torch.Size([3, 4]), eps=0.001, elementwise_affine=True)"
    randomize(module).reset_parameters()
    assert bool((module.weight == 1).all()) and bool((module.bias == 0).all())
    assert type(pickle.loads(pickle.dumps(module))) is FusedLayerNorm


# The functions.


def functions_of(device):
    """By name: a function without its last arguments, and tensors for it."""
    x, weight, bias = (
        torch.randn(size, device=device, dtype=torch.float64, requires_grad=True)
        for size in ((5, 8), (8,), (8,))
    )
    return {
        "fused_layer_norm": (fused_layer_norm.fused_layer_norm, [x]),
        "fused_layer_norm_affine": (fused_layer_norm.fused_layer_norm_affine, [x, weight, bias]),
        "fused_rms_norm": (fused_layer_norm.fused_rms_norm, [x]),
        "fused_rms_norm_affine": (fused_layer_norm.fused_rms_norm_affine, [x, weight]),
    }


NAMES = list(functions_of("cpu"))


@pytest.mark.parametrize("name", NAMES)
def test_grads_are_those_of_finite_differences_twice(name, device):
    function, tensors = functions_of(device)[name]
    assert torch.autograd.gradcheck(lambda *each: function(*each, (8,), 1e-5), tensors)
    assert torch.autograd.gradgradcheck(lambda *each: function(*each, (8,), 1e-5), tensors)


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_graph_has_them_whole(name, device):
    function, tensors = functions_of(device)[name]

    def sines(*tensors):
        return function(*tensors, (8,), 1e-5).sin()

    torch._dynamo.reset()
    whole = torch.compile(sines, backend="aot_eager", fullgraph=True)
    upstream = torch.randn(5, 8, device=device, dtype=torch.float64)
    got = torch.autograd.grad(whole(*tensors), tensors, upstream)
    wanted = torch.autograd.grad(sines(*tensors), tensors, upstream)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("form", ["", "Affine"])
def test_functions_of_autograd_say_what_to_use_instead(form):
    name, affine = f"FusedLayerNorm{form}Function", f"_{form.lower()}" * bool(form)
    with pytest.raises(AttributeError) as raised:
        getattr(fused_layer_norm, name)
    module = "apex.normalization.fused_layer_norm"
    message = f"torchamp has no {module}.{name}: use {module}.fused_layer_norm{affine}"
    assert str(raised.value) == message
