"""The numbers of products in float8: output, grads of input, weight and bias."""

import pytest
import torch
from products import LEVELS, counted, in_float8, linear, relative_error, rounded
from torch import nn

E5M2 = torch.float8_e5m2
ROWS = [1, 5, 16, 17, 61]


def of_level(level: str, x: torch.Tensor) -> torch.Tensor:
    """As programs call a model of that level."""
    return (x if level == "O4" else x.bfloat16()).detach().requires_grad_()


def through(module, x: torch.Tensor, g: torch.Tensor):
    """y, dx, dW and db."""
    module.zero_grad()
    y = module(x)
    y.backward(g.to(y.dtype))
    return y, x.grad, module.weight.grad, module.bias.grad


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", ROWS)
def test_products_are_those_of_the_rounded_numbers(level, rows):
    module, model = linear(level)
    x, g = of_level(level, torch.randn(rows, 64)), torch.randn(rows, 32).bfloat16()
    (y, dx, dw, db), count = counted(lambda: through(module, x, g))
    assert count == 3
    weight, q = rounded(module.weight), rounded(x)
    sums = q @ weight.T + module.bias.double()
    assert y.dtype == torch.bfloat16 and torch.equal(y, sums.float().bfloat16())
    assert dx.dtype == x.dtype and relative_error(dx, rounded(g, E5M2) @ weight) < 2**-8
    assert dw.dtype == module.weight.dtype
    assert relative_error(dw, rounded(g, E5M2).T @ q) < (1e-6 if level == "O4" else 2**-8)
    assert relative_error(db, g.double().sum(0)) < (1e-6 if level == "O4" else 2**-8)


def outliers(factor: float):
    """Two channels of x that are larger, by columns of W that are smaller."""
    x, w = torch.randn(256, 512), torch.randn(256, 512) / 16
    x[:, :2] *= factor
    w[:, :2] /= factor
    return x, w, torch.randn(256, 256)


def log_normal(by_token: bool):
    spread = torch.randn(256, 1 if by_token else 256)
    return torch.randn(256, 512), torch.randn(256, 512), torch.randn(256, 256) * (4 * spread).exp()


def activations(function):
    x, w, g = gaussian()
    return function(x), w, g


def gaussian(inputs: int = 512, scale: float = 1.0):
    shapes = (256, inputs), (256, inputs), (256, 256)
    return tuple(torch.randn(shape) * scale for shape in shapes)


#: x, W and the grad of the output.
DISTRIBUTIONS = {
    "gaussian": gaussian,
    "tiny": lambda: gaussian(scale=2.0**-40),
    "huge": lambda: gaussian(scale=2.0**40),
    "of 16 inputs": lambda: gaussian(16),
    "of 4096 inputs": lambda: gaussian(4096),
    "RMS-normed": lambda: activations(lambda x: x / x.pow(2).mean(1, keepdim=True).sqrt()),
    "GELU": lambda: activations(nn.functional.gelu),
    "SwiGLU": lambda: activations(lambda x: nn.functional.silu(x) * torch.randn_like(x)),
    "ReLU squared": lambda: activations(lambda x: x.relu() ** 2),
    "uniform": lambda: tuple(2 * torch.rand_like(t) - 1 for t in gaussian()),
    "channels 1000 times the others": lambda: outliers(1000.0),
    "grads log-normal by number": lambda: log_normal(False),
    "grads log-normal by token": lambda: log_normal(True),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_errors_are_within_the_bounds_of_the_docs(level, distribution):
    x, w, g = (t.bfloat16().float() for t in DISTRIBUTIONS[distribution]())
    module, model = linear(level, w.shape[1], 256)
    with torch.no_grad():
        module.weight.copy_(w)
        module.bias.zero_()
    y, dx, dw, _ = through(module, of_level(level, x), g)
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
@pytest.mark.parametrize("shape", [(64,), (3, 64), (2, 3, 64)])
@pytest.mark.parametrize("bias", [True, False])
def test_inputs_of_any_shape(level, shape, bias):
    module, model = linear(level, bias=bias)
    x = of_level(level, torch.randn(shape))
    y, count = counted(lambda: module(x))
    assert count == 1 and y.shape == (*shape[:-1], 32)
    y.sum().backward()
    assert x.grad.shape == shape


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
