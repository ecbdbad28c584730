"""apex's autograd functions: programs inspect them, apply them and differentiate them."""

import inspect

import pytest
import torch
from apex.contrib.xentropy import SoftmaxCrossEntropyLoss
from apex.normalization import FusedLayerNorm, fused_layer_norm
from torch import nn
from torch.overrides import TorchFunctionMode

#: Of each function: the one that does the same, and how many parameters it has.
NORMS = {
    "FusedLayerNormFunction": ("fused_layer_norm", 0),
    "FusedLayerNormAffineFunction": ("fused_layer_norm_affine", 2),
    "FusedLayerNormAffineMixedDtypesFunction": ("mixed_dtype_fused_layer_norm_affine", 2),
    "FusedRMSNormFunction": ("fused_rms_norm", 0),
    "FusedRMSNormAffineFunction": ("fused_rms_norm_affine", 1),
    "FusedRMSNormAffineMixedDtypesFunction": ("mixed_dtype_fused_rms_norm_affine", 1),
}
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def tensors_for(name, device, dtype=torch.float64, param_dtype=None):
    """An input and the parameters of the function."""
    shapes = [(5, 8)] + [(8,)] * NORMS[name][1]
    dtypes = [dtype] + [param_dtype or dtype] * NORMS[name][1]
    made = [torch.randn(s, device=device).to(d) for s, d in zip(shapes, dtypes)]
    return [each.requires_grad_() for each in made]


class InspectingLayerNorm(nn.Module):
    """Looks at the function's arguments in every forward, as Megatron-LM's layer norm does."""

    def __init__(self, size):
        super().__init__()
        self.size = torch.Size([size])
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, input):
        function = fused_layer_norm.FusedLayerNormAffineFunction
        arguments = [input, self.weight, self.bias, self.size, 1e-5]
        if "memory_efficient" in inspect.getfullargspec(function.forward).args:
            arguments.append(True)
        assert len(arguments) == 6
        return function.apply(*arguments)


def test_a_program_that_inspects_the_function_trains_as_with_the_module(device):
    def train(norm):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), norm, nn.Linear(8, 1)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses, x = [], torch.randn(16, 4, device=device)
        for _ in range(20):
            optimizer.zero_grad()
            loss = (model(x)[:, 0] - x[:, 0]).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    inspecting = train(InspectingLayerNorm(8))
    assert inspecting == train(FusedLayerNorm(8)) and inspecting[-1] < inspecting[0]


def test_subclasses_and_isinstance_work():
    for function in [getattr(fused_layer_norm, name) for name in NORMS]:
        assert issubclass(function, torch.autograd.Function)
    x = torch.randn(2, 8, requires_grad=True)
    result = fused_layer_norm.FusedLayerNormFunction.apply(x, (8,), 1e-5)
    assert type(result.grad_fn).__name__ == "FusedLayerNormFunctionBackward"

    class Doubled(fused_layer_norm.FusedLayerNormFunction):
        @staticmethod
        def backward(ctx, grad):
            return tuple(
                None if each is None else 2 * each
                for each in fused_layer_norm.FusedLayerNormFunction.backward(ctx, grad)
            )

    upstream = torch.randn(2, 8)
    (plain,) = torch.autograd.grad(result, x, upstream)
    (doubled,) = torch.autograd.grad(Doubled.apply(x, (8,), 1e-5), x, upstream)
    assert torch.equal(doubled, 2 * plain)


@pytest.mark.parametrize("param_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NORMS)
def test_norms_give_the_values_and_grads_of_their_functions(name, dtype, param_dtype, device):
    tensors = tensors_for(name, device, dtype, param_dtype)
    applied = getattr(fused_layer_norm, name).apply(*tensors, (8,), 1e-5)
    called = getattr(fused_layer_norm, NORMS[name][0])(*tensors, (8,), 1e-5)
    assert torch.equal(applied, called) and applied.dtype == called.dtype
    upstream = torch.randn(5, 8, device=device).to(applied.dtype)
    got, wanted = (torch.autograd.grad(each, tensors, upstream) for each in (applied, called))
    for a, b, tensor in zip(got, wanted, tensors):
        assert a.dtype == tensor.dtype
        torch.testing.assert_close(a, b, rtol=1e-5, atol=0)


def applied(name, *tensors):
    if name == "SoftmaxCrossEntropyLoss":
        labels = torch.tensor([0, 1, 2, 7, 3], device=tensors[0].device)
        return SoftmaxCrossEntropyLoss.apply(*tensors, labels, 0.1)
    return getattr(fused_layer_norm, name).apply(*tensors, (8,), 1e-5)


FUNCTIONS = [*NORMS, "SoftmaxCrossEntropyLoss"]


def inputs_of(name, device):
    return tensors_for(name if name in NORMS else "FusedLayerNormFunction", device)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_grads_are_those_of_finite_differences_twice(name, device):
    tensors = inputs_of(name, device)
    assert torch.autograd.gradcheck(lambda *each: applied(name, *each), tensors)
    assert torch.autograd.gradgradcheck(lambda *each: applied(name, *each), tensors)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_compiled_graph_has_them_whole(name, device):
    tensors = inputs_of(name, device)
    torch._dynamo.reset()
    whole = torch.compile(
        lambda *each: applied(name, *each).sin(), backend="aot_eager", fullgraph=True
    )
    upstream = torch.randn_like(applied(name, *tensors))
    got = torch.autograd.grad(whole(*tensors), tensors, upstream)
    wanted = torch.autograd.grad(applied(name, *tensors).sin(), tensors, upstream)
    for a, b in zip(got, wanted):
        torch.testing.assert_close(a, b)


class Returned(TorchFunctionMode):
    """Collects what methods return as they got it, as a cast to the same dtype does."""

    def __init__(self):
        super().__init__()
        self.tensors = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if args and result is args[0]:
            self.tensors.append(result)
        return result


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_forward_ends_in_a_cast_to_the_same_dtype(name, device):
    """In compiled graphs of torch 2.11 a function with such a forward has grads of zero."""
    with Returned() as returned:
        result = applied(name, *inputs_of(name, device))
    assert all(each is not result for each in returned.tensors)


@pytest.mark.parametrize("name", NORMS)
def test_autocast_casts_for_the_functions_alone(name, device):
    """As in apex, which casts before it applies the autograd functions."""
    tensors = tensors_for(name, device, torch.float32)
    with torch.autocast(device.type, torch.bfloat16):
        applied = getattr(fused_layer_norm, name).apply(*tensors, (8,), 1e-5)
        called = getattr(fused_layer_norm, NORMS[name][0])(*tensors, (8,), 1e-5)
    assert (applied.dtype, called.dtype) == (torch.float32, torch.bfloat16)
    applied.sum().backward()
    assert tensors[0].grad.dtype == torch.float32


def test_a_frozen_weight_gets_no_grad(device):
    for name, (_, count) in NORMS.items():
        x, *params = tensors_for(name, device)
        for param in params:
            param.requires_grad_(False)
        getattr(fused_layer_norm, name).apply(x, *params, (8,), 1e-5).sum().backward()
        assert x.grad is not None and [p.grad for p in params] == [None] * count
