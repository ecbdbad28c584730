"""amp_C over long lists of tensors around apex's chunk sizes, of every type, layout and place."""

import math

import amp_C
import pytest
import torch
from apex.multi_tensor_apply import MultiTensorApply

HALF, FLOAT = torch.float16, torch.float32
TYPES = [FLOAT, HALF, torch.bfloat16]
#: Sums of a million squares in float32.
NEAR = {"rtol": 1e-5, "atol": 0}
CHUNKS = [333, 33333, 2048 * 32]
#: (sizes of the two tensors of a list, how often they are repeated)
LISTS = [
    ((777, 555), 55),
    ((4096, 333), 55),
    ((555, 2048 * 32 + 1), 1),
    ((2048 * 32 + 1, 555), 3),
    ((555, 2048 * 32), 1),
    ((2048 * 32, 2048 * 32 - 1), 2),
    ((33333, 555), 7),
    ((7777 * 77, 555 * 555), 1),
]
IMAGES = [
    ((7, 17, 7, 17), (5, 15, 5, 15)),
    ((1, 1, 777, 1), (1, 1, 555, 1)),
    ((5, 7, 5, 55), (1, 1, 1, 2048 * 32 + 1)),
    ((555, 1, 1, 1), (8, 8, 8, 8)),
    ((1, 2048, 1, 1), (4, 4096, 2, 1)),
]
lists = pytest.mark.parametrize("sizes, repeats", LISTS)


@pytest.fixture
def flag(device):
    return torch.zeros(1, dtype=torch.int32, device=device)


def filled(sizes, repeats, value, dtype, device):
    return [torch.full((n,), value, dtype=dtype, device=device) for n in sizes * repeats]


def all_are(tensors, value):
    return all(bool((tensor == value).all()) for tensor in tensors)


@pytest.mark.parametrize("out_type", [None, *TYPES])
@pytest.mark.parametrize("in_type", TYPES)
@lists
def test_scale_writes_every_element(sizes, repeats, in_type, out_type, flag, device):
    for chunk in CHUNKS:
        inputs = filled(sizes, repeats, 4.0, in_type, device)
        outputs = inputs
        if out_type is not None:
            outputs = filled(sizes, repeats, 9.0, out_type, device)
        MultiTensorApply(chunk)(amp_C.multi_tensor_scale, flag, [inputs, outputs], 0.25)
        assert all_are(outputs, 1.0) and flag.item() == 0


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
@lists
def test_one_element_that_is_not_finite_is_found(
    sizes, repeats, dtype, in_place, value, flag, device
):
    inputs = filled(sizes, repeats, 4.0, dtype, device)
    outputs = inputs if in_place else [torch.empty_like(x, dtype=FLOAT) for x in inputs]
    functions = [
        (amp_C.multi_tensor_scale, [inputs, outputs], (1.0,)),
        (amp_C.multi_tensor_axpby, [inputs, inputs, outputs], (1.0, 0.0, -1)),
        (amp_C.multi_tensor_l2norm, [inputs], (False,)),
    ]
    last = len(inputs) - 1
    for place in sorted({0, 2 * (repeats // 2), last}):
        for index in (0, inputs[place].numel() // 2, inputs[place].numel() - 1):
            for function, tensors, arguments in functions:
                flag.zero_()
                inputs[place][index] = value
                MultiTensorApply(33333)(function, flag, tensors, *arguments)
                assert flag.item() == 1, (function, place, index)
                for tensor in inputs:
                    tensor.fill_(4.0)
    flag.zero_()
    for function, tensors, arguments in functions:
        MultiTensorApply(33333)(function, flag, tensors, *arguments)
    assert flag.item() == 0


@pytest.mark.parametrize("out_type", [None, HALF, FLOAT])
@pytest.mark.parametrize("y_type", [HALF, FLOAT])
@pytest.mark.parametrize("x_type", [HALF, FLOAT])
@lists
def test_axpby_writes_every_element(sizes, repeats, x_type, y_type, out_type, flag, device):
    for chunk in CHUNKS:
        x, y = (
            filled(sizes, repeats, value, dtype, device)
            for value, dtype in ((4.0, x_type), (16.0, y_type))
        )
        out = y if out_type is None else filled(sizes, repeats, 9.0, out_type, device)
        MultiTensorApply(chunk)(amp_C.multi_tensor_axpby, flag, [x, y, out], 2.0, 8.0, -1)
        assert all_are(out, 136.0) and flag.item() == 0


def last(x):
    return x.to(memory_format=torch.channels_last)


def first(x):
    return x.contiguous()


def transposed(x):
    return x.transpose(0, 3).contiguous().transpose(0, 3)


def strided(x):
    return torch.stack([x, x + 1], -1)[..., 0]


ARRANGED = {
    "all last": (last, last, last),
    "x last": (last, first, first),
    "out last": (first, first, last),
    "y transposed": (first, transposed, first),
    "x strided": (strided, first, last),
    "all different": (transposed, last, strided),
}


@pytest.mark.parametrize("arranged", ARRANGED)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sizes", IMAGES)
def test_elements_meet_by_their_place_in_any_layout(sizes, dtype, arranged, flag, device):
    def make(arrange):
        return [arrange(torch.randn(size, device=device).to(dtype)) for size in sizes * 3]

    x, y, out = map(make, ARRANGED[arranged])
    layouts = [tensor.stride() for tensor in out]
    wanted = [2.0 * a.float() - 0.5 * b.float() for a, b in zip(x, y)]
    MultiTensorApply(33333)(amp_C.multi_tensor_axpby, flag, [x, y, out], 2.0, -0.5, -1)
    assert [tensor.stride() for tensor in out] == layouts
    for got, w in zip(out, wanted):
        torch.testing.assert_close(got, w.to(dtype))
    MultiTensorApply(33333)(amp_C.multi_tensor_scale, flag, [x, out], 0.5)
    assert all(torch.equal(got, a * 0.5) for got, a in zip(out, x))
    _, norms = MultiTensorApply(33333)(amp_C.multi_tensor_l2norm, flag, [x], True)
    wanted = torch.stack([a.double().norm() for a in x])
    torch.testing.assert_close(norms.double(), wanted, **NEAR)
    assert flag.item() == 0


@pytest.mark.parametrize("per_tensor", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@lists
def test_norms_of_every_kind(sizes, repeats, dtype, per_tensor, flag, device):
    inputs = filled(sizes, repeats, 4.0, dtype, device)
    each = torch.tensor([4.0 * math.sqrt(n) for n in sizes * repeats], device=device)
    halving = torch.tensor([0.5], device=device)
    calls = [
        (1.0, amp_C.multi_tensor_l2norm, ()),
        (0.5, amp_C.multi_tensor_unscale_l2norm, (halving,)),
    ]
    for chunk in CHUNKS:
        for factor, function, arguments in calls:
            norm, norms = MultiTensorApply(chunk)(function, flag, [inputs], *arguments, per_tensor)
            torch.testing.assert_close(norm, factor * each.norm().view(1), **NEAR)
            assert norms.numel() == len(inputs) * per_tensor
            if per_tensor:
                torch.testing.assert_close(norms, factor * each, **NEAR)
    assert flag.item() == 0


@pytest.mark.parametrize("factors", [(1.0, 0.5), (2.0, 0.5), (4.0, 0.25)])
@pytest.mark.parametrize("interval", [10, 100])
@pytest.mark.parametrize("budget", [1, 10, 100])
@pytest.mark.parametrize("start", [1.0, 1024.0, 65536.0])
def test_a_scale_with_hysteresis(start, budget, interval, factors, device):
    growth, backoff = factors
    scale = torch.tensor([start], device=device)
    clean = torch.zeros(1, dtype=torch.int32, device=device)
    left = torch.full((1,), budget, dtype=torch.int32, device=device)

    def after(found_inf, times):
        for _ in range(times):
            found = torch.tensor([found_inf], device=device)
            amp_C.update_scale_hysteresis(
                scale, clean, left, found, growth, backoff, interval, budget
            )
        return scale.item()

    assert after(1.0, budget - 1) == start, "the budget bears these"
    assert after(0.0, interval - 1) == start, "one clean step too few, and a new budget"
    assert after(1.0, budget - 1) == start
    backed_off = start * backoff**5
    assert after(1.0, 5) == backed_off, "the budget is spent until a clean step"
    assert after(0.0, 3 * interval + 1) == backed_off * growth**3
