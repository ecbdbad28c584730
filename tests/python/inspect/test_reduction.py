"""Products that are summed in float16: the trace and preflight name the switch of cuBLAS."""

from __future__ import annotations

import pytest
import torch
from nets import Planted, initialized
from torch.nn import functional as F

from torchamp import amp

REMEDY = (
    "; float32 sums avoid it: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = "
    "False, in C++ at::globalContext().setAllowFP16ReductionCuBLAS(false)"
)


def summed_in_halves(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product as the sum of two halves, each of which is rounded to the dtype."""
    products = a.unsqueeze(-1).float() * b.unsqueeze(-3).float()
    first, second = (half.sum(-2).to(a.dtype) for half in products.tensor_split(2, -2))
    return first + second


@pytest.fixture
def wide_products(device):
    """Products are summed in halves, as cuBLAS may sum them. Gives those in float32."""
    seen: list[str] = []

    def product(name):
        def product_of(*args, beta=1, alpha=1):
            a, b = args[-2:]
            seen.extend([name] * (a.dtype == torch.float32))
            product = summed_in_halves(a, b)
            return product if len(args) == 2 else args[0] * beta + product * alpha

        return product_of

    library = torch.library.Library("aten", "IMPL")
    for name in ("mm", "addmm", "bmm", "baddbmm"):
        library.impl(name, product(name), device.type.upper())
    yield seen
    library._destroy()


pytestmark = pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel")


def operands(second: float, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first half of their product is 90000, the second so many times that."""
    a = torch.tensor([[1.0, second]], device=x.device) * 300
    return a.to(x.dtype), torch.full((2, 1), 300.0, device=x.device, dtype=x.dtype)


def added(product):
    return lambda x: x + product(*operands(-0.5, x)).flatten().to(x.dtype)


PRODUCTS = {
    "mm": torch.mm,
    "matmul": lambda a, b: a @ b,
    "linear": lambda a, b: F.linear(a, b.t(), b[0]),
    "addmm": lambda a, b: torch.addmm(a[:, :1], a, b),
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "baddbmm": lambda a, b: torch.baddbmm(a[None, :, :1], a[None], b[None]),
}


def traced(function, device, opt_level="O2"):
    model, optimizer = initialized(opt_level, Planted(function), device=device, loss_scale=1.0)
    with amp.trace_overflow(model) as trace:
        x = torch.ones(2, 4, device=device)
        amp.scale_loss(model(x).float().mean(), optimizer).backward()
    amp.release(model)
    return trace


@pytest.mark.parametrize("opt_level", ["O1", "O2"])
@pytest.mark.parametrize("product", PRODUCTS)
def test_the_trace_names_the_switch(product, opt_level, wide_products, device):
    trace = traced(added(PRODUCTS[product]), device, opt_level)
    (origin,) = trace.origins
    assert (origin.module, origin.is_nan, origin.is_reduced) == ("middle", False, True)
    op = {"matmul": "mm", "linear": "addmm"}.get(product, product)
    assert wide_products == [op] == [origin.op]
    assert str(origin).endswith(f"; grads not finite: after.weight{REMEDY}")


def test_what_float16_does_not_hold_has_no_switch(wide_products, device):
    trace = traced(lambda x: x + torch.mm(*operands(0.0, x)), device)
    assert wide_products == ["mm"]
    assert trace.origins[0].op == "mm" and str(trace.origins[0]).endswith(": after.weight")


def test_a_switch_that_is_off_is_not_named(wide_products, monkeypatch, device):
    switch = "allow_fp16_reduced_precision_reduction"
    monkeypatch.setattr(torch.backends.cuda.matmul, switch, False)
    trace = traced(added(torch.mm), device)
    assert trace.origins[0].op == "mm" and str(trace.origins[0]).endswith(": after.weight")
    assert wide_products == []


def test_products_in_float32_are_computed_once(wide_products, device):
    def huge(x):
        a, b = operands(0.0, x)
        return x + torch.mm(a * 1e30, b * 1e30)

    trace = traced(huge, device, "O0")
    assert wide_products[:3] == ["addmm", "mm", "addmm"] and not trace.origins[0].is_reduced


def test_finite_products_are_computed_once(wide_products, device):
    def finite(x):
        a, b = operands(-0.5, x)
        return x + torch.mm(a / 300, b)

    trace = traced(finite, device)
    assert trace.origins == [] and wide_products == []


def test_preflight_names_the_switch(wide_products, device):
    x = torch.ones(2, 4, device=device)
    model = Planted(added(torch.mm)).to(device)
    report = amp.preflight(model, x, lambda y: y.float().mean())
    for level in ("O1", "O2", "O3"):
        reason = "mm of 'middle' gives inf: not finite in the forward" + REMEDY
        assert report.verdict(level).reason == reason
    assert report.verdict("O4").fits and report.verdict("O5").fits


def test_preflight_names_the_switch_for_a_backward(wide_products, device):
    def opposite(x):
        return x @ torch.tensor([[300.0, -300.0]], device=x.device, dtype=x.dtype).expand(4, 2)

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Module()).to(device)
    model[1].forward = opposite
    x = torch.ones(2, 4, device=device)
    report = amp.preflight(model, x, lambda y: y.float().sum() * 4e6)
    when = "in the backward, at every loss scale down to 2**-10"
    assert report.verdict("O2").reason == f"mm of '1' gives nan: not finite {when}{REMEDY}"
