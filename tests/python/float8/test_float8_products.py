"""The numbers of products in float8: output, grads of input, weight and bias."""

import pytest
import torch
import torch.nn.functional as F
from products import LEVELS, counted, in_float8, linear, relative_error
from torch import nn


def of_level(level: str, x: torch.Tensor) -> torch.Tensor:
    """As programs call a model of that level."""
    return (x if level == "O4" else x.bfloat16()).detach().requires_grad_()


def through(module, x: torch.Tensor, g: torch.Tensor):
    """y, dx, dW and db."""
    module.zero_grad()
    y = module(x)
    y.backward(g.to(y.dtype))
    return y, x.grad, module.weight.grad, module.bias.grad


def with_outliers(x, w, g):
    """Two channels of x are larger, and those columns of W smaller."""
    factor = torch.ones(x.shape[1]).index_fill(0, torch.tensor([0, 1]), 1000.0)
    return x * factor, w / factor, g


#: What is made of Gaussian inputs [M, K], weights [N, K] and grads [M, N]. test_float8.cpp has
#: the same.
DISTRIBUTIONS = {
    "gaussian": lambda x, w, g: (x, w, g),
    "tiny": lambda *given: [t * 2.0**-40 for t in given],
    "huge": lambda *given: [t * 2.0**40 for t in given],
    "uniform": lambda *given: [t.erf() for t in given],
    "RMS-normed": lambda x, w, g: (x / x.pow(2).mean(1, keepdim=True).sqrt(), w, g),
    "GELU": lambda x, w, g: (F.gelu(x), w, g),
    "SwiGLU": lambda x, w, g: (F.silu(x) * torch.randn_like(x), w, g),
    "ReLU squared": lambda x, w, g: (x.relu() ** 2, w, g),
    "channels 1000 times the others": with_outliers,
    "grads log-normal by number": lambda x, w, g: (x, w, g * torch.randn_like(g).exp()),
    "grads log-normal by token": lambda x, w, g: (x, w, g * torch.randn(len(g), 1).exp()),
    "grads of 40 octaves by number": lambda x, w, g: (x, w, g * (40 * torch.rand_like(g)).exp2()),
    "grads of 40 octaves by token": lambda x, w, g: (x, w, g * (40 * torch.rand(len(g), 1)).exp2()),
}
#: M, N and K.
SHAPES = [(256, 256, 512), (512, 32, 16), (61, 512, 1008), (128, 64, 4096)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("m, n, k", SHAPES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_errors_are_within_the_bounds_of_the_docs(level, distribution, m, n, k):
    drawn = [torch.randn(sizes) for sizes in ((m, k), (n, k), (m, n))]
    x, w, g = (t.bfloat16().float() for t in DISTRIBUTIONS[distribution](*drawn))
    module, model = linear(level, k, n)
    with torch.no_grad():
        module.weight.copy_(w)
        module.bias.zero_()
    given = of_level(level, x)
    y, dx, dw, _ = through(module, given, g)
    assert [t.dtype for t in (y, dx, dw)] == [torch.bfloat16, given.dtype, module.weight.dtype]
    x, w, g = x.double(), w.double(), g.double()
    assert relative_error(y, x @ w.T) < 0.045
    assert relative_error(dx, g @ w) < 0.07
    assert relative_error(dw, g.T @ x) < 0.07


@pytest.mark.parametrize("level", LEVELS)
def test_zeros_stay_zeros(level):
    module, model = linear(level)
    y, dx, dw, db = through(module, of_level(level, torch.zeros(4, 64)), torch.zeros(4, 32))
    assert torch.equal(y.float(), module.bias.bfloat16().float().expand(4, 32))
    assert not any(t.any() for t in (dx, dw, db))


@pytest.mark.parametrize("where", ["input", "grad"])
def test_one_infinity_makes_the_whole_product_nan(where):
    module, model = linear("O4")
    x, g = torch.randn(4, 64), torch.randn(4, 32)
    (x if where == "input" else g)[1, 2] = float("inf")
    y, dx, dw, _ = through(module, x.requires_grad_(), g)
    assert y.isnan().all() == (where == "input")
    assert dx.isnan().all() == (where == "grad")
    assert dw.isnan().all()


@pytest.mark.parametrize("level", LEVELS)
def test_outputs_may_be_written_in_place(level):
    module, model = linear(level)
    x = of_level(level, torch.randn(2, 3, 64))
    module(x).relu_().sum().backward()
    grad, x.grad = x.grad, None
    module(x).relu().sum().backward()
    assert torch.equal(x.grad, grad)


@pytest.mark.parametrize("level", LEVELS)
def test_what_needs_no_grad_costs_no_product(level):
    module, model = linear(level)
    x = of_level(level, torch.randn(4, 64))
    module.weight.requires_grad_(False)
    _, count = counted(lambda: module(x).sum().backward())
    assert count == 2 and module.weight.grad is None and x.grad.any()
    module.weight.requires_grad_(True)
    module.zero_grad()
    _, count = counted(lambda: module(x.detach()).sum().backward())
    assert count == 2 and module.weight.grad.any()
    module.requires_grad_(False)
    y, count = counted(lambda: module(x.detach()))
    assert count == 1 and not y.requires_grad


class Conv1D(nn.Module):
    """Hugging Face's: weights of inputs by outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(64, 32)), nn.Parameter(torch.randn(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sizes = (*x.shape[:-1], 32)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(sizes)


@pytest.mark.parametrize("level", LEVELS)
def test_weights_of_inputs_by_outputs_give_the_same(level):
    module, model = linear(level)
    other, _ = in_float8(level, nn.Sequential(Conv1D()), ["0"])
    with torch.no_grad():
        other[0].weight.copy_(module.weight.t())
        other[0].bias.copy_(module.bias)
    x, g = of_level(level, torch.randn(5, 64)), torch.randn(5, 32)
    right = [t.clone() for t in through(module, x, g)]
    x.grad = None
    with torch.inference_mode():  # whose copies no grad may use
        other[0](x)
    found, count = counted(lambda: through(other[0], x, g))
    assert count == 3
    for one, other in zip(found, (right[0], right[1], right[2].t(), right[3])):
        assert torch.equal(one, other)


@pytest.mark.parametrize("level", LEVELS)
def test_other_products_stay_what_they_are(level):
    module, model = linear(level)
    x, w = of_level(level, torch.randn(3, 5, 64)), module.weight
    cases = [
        lambda: torch.einsum("bik,nk->bin", x, w),
        lambda: torch.bmm(x, w.t().expand(3, -1, -1)),
        lambda: torch.addmm(module.bias, x[0], w.t(), beta=2),
        lambda: torch.addmm(torch.zeros(5, 32, dtype=w.dtype), x[0], w.t()),
        lambda: x[0, :0] @ w.t(),
        lambda: x[0] @ w[:16].t(),
        lambda: w @ x[0].t(),
        lambda: x.double() @ w.double().t(),
    ]
    assert [counted(case)[1] for case in cases] == [0] * len(cases)
