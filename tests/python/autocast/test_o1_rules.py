"""Edge cases of O1's casts: 0-dim tensors, in-place ops, explicit dtypes, and O1 off."""

import pytest
import torch
from nets import linear_net

from torchamp import Amp, amp

REFUSED_IN_PLACE = "acos asin cosh erfinv exp expm1 log log10 log2 reciprocal rsqrt sinh tan"


@pytest.fixture
def o1(device):
    """O1 in this thread, on `device`."""
    with Amp(linear_net().to(device), opt_level="O1", verbosity=0):
        yield


def half(*sizes: int, device="cpu") -> torch.Tensor:
    return (0.1 + 0.8 * torch.rand(sizes, device=device)).half()


def test_a_0_dim_tensor_counts(o1, device):
    x, factor = half(3, device=device), torch.tensor(2.0, device=device)
    for result in (x * factor, factor * x, x + factor, x / factor, x - factor):
        assert result.dtype == torch.float32


def test_numbers_do_not_count(o1, device):
    x = half(3, device=device)
    for result in (x * 2.0, 2.0 * x, x + 1, 1 - x, x / 3):
        assert result.dtype == torch.float16


def test_float64_and_integers_are_left_alone(o1, device):
    x = torch.rand(3, 3, dtype=torch.float64, device=device)
    assert (x @ x).dtype == torch.exp(x).dtype == torch.cat([x, x]).dtype == torch.float64
    assert (x * half(3, device=device)).dtype == torch.float64
    counts = torch.ones(3, dtype=torch.long, device=device)
    assert counts.sum().dtype == (counts + counts).dtype == torch.int64


def test_a_chosen_dtype_is_respected(o1, device):
    x = half(3, 3, device=device)
    assert torch.softmax(x, 0, dtype=torch.float16).dtype == torch.float16
    assert torch.linalg.vector_norm(x, dtype=torch.float16).dtype == torch.float16


def test_cat_and_stack_take_the_widest(o1, device):
    x, y = half(2, device=device), torch.rand(2, device=device)
    assert torch.cat([x, x, y]).dtype == torch.stack([y, x]).dtype == torch.float32
    assert torch.cat(tensors=[x, y]).dtype == torch.float32
    assert torch.cat((x, x)).dtype == torch.float16


def test_sums_of_16_bit_numbers_do_not_overflow(o1, device):
    x = torch.full((1000,), 1000.0, device=device).half()
    assert x.sum().item() == x.cumsum(0)[-1].item() == 1_000_000


@pytest.mark.parametrize("name", REFUSED_IN_PLACE.split())
def test_float32_functions_refuse_to_write_16_bit_tensors(name, o1, device):
    x = half(3, device=device)
    before = x.clone()
    with pytest.raises(NotImplementedError, match=f"^{name}_: .*float32.*Half.*call {name},"):
        getattr(x, f"{name}_")()
    assert torch.equal(x, before)
    getattr(x.float(), f"{name}_")()
    with amp.disable_casts():
        getattr(x, f"{name}_")()


def test_derivatives_of_torchs_own_may_write_them(o1, device):
    x = half(2, 4, 3, device=device).requires_grad_()
    out, _, _ = torch.native_group_norm(x, None, None, 2, 4, 3, 2, 1e-5)
    out.float().pow(2).sum().backward()
    assert x.grad.dtype == torch.float16


def test_operators_in_place_keep_tensor_and_type(o1, device):
    x = view = half(3, device=device)
    other = torch.rand(3, device=device)
    x += other
    x *= other
    x -= other
    x /= other
    x **= 2
    assert x is view and x.dtype == torch.float16


@pytest.mark.parametrize("self_dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    "write",
    [
        lambda x, rows, values: x.index_add_(0, rows, values),
        lambda x, rows, values: x.index_copy_(0, rows, values),
        lambda x, rows, values: x.index_put_((rows,), values),
        lambda x, rows, values: x.scatter_add_(0, rows[:, None], values),
        lambda x, rows, values: x.index_reduce_(0, rows, values, "amax"),
        lambda x, rows, values: x.scatter_(0, rows[:, None], values),
        lambda x, rows, values: x.scatter_(0, rows[:, None], values, reduce="add"),
        lambda x, rows, values: x.scatter_reduce_(0, rows[:, None], values, "sum"),
        lambda x, rows, values: x.put_(rows, values[:, 0]),
        lambda x, rows, values: x.masked_scatter_(x < 2, values[0].repeat(3)),
        lambda x, rows, values: x.lerp_(values[0].expand(3, 3), 1.0),
        lambda x, rows, values: x.lerp_(values[0], torch.ones_like(values[0])),
        lambda x, rows, values: x.__setitem__(rows, values),
        lambda x, rows, values: x.__setitem__(x < 2, values[0, 0]),
    ],
)
def test_elements_are_written_in_the_type_of_the_tensor(write, self_dtype, o1, device):
    x = torch.zeros(3, 3, dtype=self_dtype, device=device)
    other = torch.float32 if self_dtype == torch.float16 else torch.float16
    write(x, torch.tensor([0, 2], device=device), torch.full((2, 3), 0.5, device=device).to(other))
    assert x.dtype == self_dtype and x[0, 0] == 0.5


@pytest.mark.parametrize("self_dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", ["addmm_", "addbmm_", "addcmul_", "addcdiv_", "atan2_", "addr_"])
def test_products_in_place_take_the_type_of_what_they_write(name, self_dtype, o1, device):
    sizes = {"addmm_": [(3, 3)] * 2, "addbmm_": [(2, 3, 3)] * 2, "addr_": [(3,)] * 2}
    others = [
        half(*size, device=device).to(dtype)
        for size, dtype in zip(sizes.get(name, [(3, 3)] * 2), [torch.float32, torch.float16])
    ]
    x = half(3, 3, device=device).to(self_dtype)
    pointer = x.data_ptr()
    getattr(x, name)(*others[: 1 if name == "atan2_" else 2])
    assert x.dtype == self_dtype and x.data_ptr() == pointer


def test_out_is_written(o1, device):
    a = torch.rand(3, 3, device=device)
    out = torch.empty(3, 3, device=device)
    torch.mm(a, a, out=out)
    assert out.abs().sum() > 0


def test_gradients_have_their_leafs_type(o1, device):
    weight = torch.rand(3, 3, device=device, requires_grad=True)
    x = half(2, 3, device=device).requires_grad_()
    torch.exp(x @ weight).std().backward()
    assert weight.grad.dtype == torch.float32 and x.grad.dtype == torch.float16
