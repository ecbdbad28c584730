"""apex.normalization against float64, in every dtype and under autocast."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from apex.normalization import (
    FusedLayerNorm,
    FusedRMSNorm,
    MixedFusedLayerNorm,
    MixedFusedRMSNorm,
    fused_layer_norm,
)
from torch import nn

from torchamp import Amp

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
LAYERS = [FusedLayerNorm, MixedFusedLayerNorm]
RMS = [FusedRMSNorm, MixedFusedRMSNorm]
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
@pytest.mark.parametrize("kind", LAYERS + RMS, **by_name)
def test_any_dtypes_meet(kind, dtype, x_dtype, device):
    module = randomize(kind((3, 8))).to(device, dtype)
    x = torch.randn(5, 3, 8, device=device).to(x_dtype).requires_grad_()
    result = module(x)
    mixed = kind in (MixedFusedLayerNorm, MixedFusedRMSNorm)
    assert result.dtype == (dtype if mixed else x_dtype)
    tolerance = 4 * max(torch.finfo(result.dtype).eps, torch.finfo(torch.float32).eps)
    torch.testing.assert_close(result.double(), exact(module, x), rtol=tolerance, atol=tolerance)
    result.float().sum().backward()
    assert x.grad.dtype == x_dtype and module.weight.grad.dtype == dtype


@pytest.mark.parametrize("kind", [FusedLayerNorm, FusedRMSNorm], **by_name)
def test_grads_are_those_of_float64(kind, device):
    module = randomize(kind(8)).to(device)
    x = torch.randn(5, 8, device=device, requires_grad=True)
    grad = torch.randn(5, 8, device=device)
    got = torch.autograd.grad(module(x), [x, *module.parameters()], grad)
    wanted = torch.autograd.grad(exact(module, x), [x, *module.parameters()], grad.double())
    for a, b in zip(got, wanted):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [FusedLayerNorm, FusedRMSNorm], **by_name)
def test_without_parameters(kind, device):
    module = kind(8, elementwise_affine=False)
    x = torch.randn(5, 8, device=device)
    assert list(module.parameters()) == [] and module.weight is None
    torch.testing.assert_close(module(x).double(), exact(module, x), rtol=1e-5, atol=1e-5)
    module.reset_parameters()


@pytest.mark.parametrize("kind", LAYERS + RMS, **by_name)
def test_statistics_of_float16_do_not_overflow(kind, device):
    x = torch.full((2, 512), 300.0, device=device).half()
    x[:, ::2] = -300.0
    result = kind(512).to(device).half()(x)
    torch.testing.assert_close(result.abs(), torch.ones_like(result), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", [FusedLayerNorm, FusedRMSNorm], **by_name)
def test_o1_leaves_them_alone(kind, dtype, device):
    """As in apex, whose functions are in no list: float32 stays float32."""
    module = kind(8).to(device)
    x = torch.randn(5, 8, device=device, dtype=dtype)
    with Amp(module, opt_level="O1", verbosity=0):
        result = module(x)
        assert result.dtype == dtype and torch.is_autocast_enabled(device.type)
    with torch.no_grad():
        assert torch.equal(result, module(x))


@pytest.mark.parametrize("kind", LAYERS + RMS, **by_name)
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


@pytest.mark.parametrize("kind", LAYERS + RMS, **by_name)
def test_it_is_no_torch_layer_norm(kind):
    assert not issubclass(kind, nn.LayerNorm)
    assert issubclass(MixedFusedLayerNorm, FusedLayerNorm)
    assert not issubclass(FusedLayerNorm, FusedRMSNorm)


def test_parameters_have_apexs_names():
    assert list(FusedLayerNorm(4).state_dict()) == ["weight", "bias"]
    assert list(FusedRMSNorm(4).state_dict()) == ["weight"]
    module = FusedLayerNorm([3, 4], 1e-3)
    assert module.normalized_shape == torch.Size([3, 4]) and module.weight.shape == (3, 4)
    assert repr(module) == "FusedLayerNorm(torch.Size([3, 4]), eps=0.001, elementwise_affine=True)"
    randomize(module).reset_parameters()
    assert bool((module.weight == 1).all()) and bool((module.bias == 0).all())
    assert type(pickle.loads(pickle.dumps(module))) is FusedLayerNorm


@pytest.mark.parametrize("kind", [MixedFusedLayerNorm, MixedFusedRMSNorm], **by_name)
def test_the_mixed_forms_need_parameters(kind):
    with pytest.raises(RuntimeError, match=f"{kind.__name__}: expected elementwise_affine"):
        kind(8, elementwise_affine=False)


FUNCTIONS = {
    "FusedLayerNormFunction": "fused_layer_norm",
    "FusedLayerNormAffineFunction": "fused_layer_norm_affine",
    "FusedLayerNormAffineMixedDtypesFunction": "mixed_dtype_fused_layer_norm_affine",
    "FusedRMSNormFunction": "fused_rms_norm",
    "FusedRMSNormAffineFunction": "fused_rms_norm_affine",
    "FusedRMSNormAffineMixedDtypesFunction": "mixed_dtype_fused_rms_norm_affine",
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_their_apply_agree(name, device):
    x, weight, bias = torch.randn(3, 5, 8, device=device)
    affine = [weight[0], bias[0]][: 2 if "Layer" in name else 1] if "Affine" in name else []
    by_apply = getattr(fused_layer_norm, name).apply(x, *affine, (8,), 1e-5)
    direct = getattr(fused_layer_norm, FUNCTIONS[name])(x, *affine, (8,), 1e-5, True)
    assert torch.equal(by_apply, direct)
    if "RMS" in name:
        manual = fused_layer_norm.manual_rms_norm(x, (8,), affine[0] if affine else None, 1e-5)
        assert torch.equal(manual, direct)
