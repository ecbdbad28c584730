"""The ops against the reference, over dtypes × layouts × devices, aliased and not."""

import math
import os

import pytest
import torch
from reference import ops as reference
from tensors import (
    DTYPES,
    EXPANDED,
    LAYOUTS,
    assert_near,
    assert_same,
    copies,
    flag,
    flags,
    make,
    make_list,
    plant,
)

from torchamp import ops

ANY_DTYPES = [(a, b) for a in DTYPES for b in DTYPES]
IDS = [f"{a}-{b}".replace("torch.", "") for a, b in ANY_DTYPES]


@pytest.mark.parametrize("layout", [*LAYOUTS, *EXPANDED])
@pytest.mark.parametrize("factor", [1.0, 0.25, 1 / 3, 3e5])
def test_scale(device, layout, factor):
    inputs = make_list(layout, [a for a, _ in ANY_DTYPES], device)
    outputs = [torch.empty_like(make(layout, b, device)) for _, b in ANY_DTYPES] + [None]
    expected = copies(outputs)
    found_inf, per_tensor = flag(device), flags(inputs, device)
    factor = _as_float32(factor)
    ops.scale(inputs, outputs, factor, found_inf, per_tensor)
    bad = reference.scale(inputs, expected, factor)
    assert_same(outputs, expected)
    assert per_tensor.tolist() == bad
    assert found_inf.item() == any(bad)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scale_in_place(device, layout):
    tensors = make_list(layout, DTYPES, device)
    expected = copies(tensors)
    reference.scale(expected, expected, 0.5)
    ops.scale(tensors, tensors, 0.5, flag(device))
    assert_same(tensors, expected)


@pytest.mark.parametrize("layout", [*LAYOUTS, *EXPANDED])
@pytest.mark.parametrize("inv_scale", [1.0, 2.0**-16, 1 / 3])
def test_unscale_fresh(device, layout, inv_scale):
    scaled = make_list(layout, [a for a, _ in ANY_DTYPES], device)
    master = [torch.empty_like(make(layout, b, device)) for _, b in ANY_DTYPES] + [None]
    expected = copies(master)
    factor = torch.tensor(inv_scale, device=device)
    ops.unscale(scaled, master, factor, flag(device))
    reference.unscale(scaled, expected, factor, accumulate=False)
    assert_same(master, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unscale_onto_earlier_grads(device, layout):
    scaled = make_list(layout, [a for a, _ in ANY_DTYPES], device)
    master = make_list(layout, [b for _, b in ANY_DTYPES], device)
    expected = copies(master)
    factor = torch.tensor(0.125, device=device)
    ops.unscale(scaled, master, factor, flag(device), accumulate=True)
    reference.unscale(scaled, expected, factor, accumulate=True)
    assert_near(master, expected, magnitude=8.0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("a, b", [(1.0, 1.0), (-0.5, 2.0), (0.0, 1 / 3)])
def test_axpby(device, layout, a, b):
    x = make_list(layout, [first for first, _ in ANY_DTYPES], device)
    y = make_list(layout, [second for _, second in ANY_DTYPES], device)
    outputs = make_list(layout, [first for first, _ in ANY_DTYPES], device)
    expected = copies(outputs)
    a, b = _as_float32(a), _as_float32(b)
    ops.axpby(a, x, b, y, outputs, flag(device))
    reference.axpby(a, x, b, y, expected, True, True)
    assert_near(outputs, expected, magnitude=16.0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_axpby_onto_its_own_input(device, layout):
    x, y = make_list(layout, DTYPES, device), make_list(layout, DTYPES, device)
    expected = copies(y)
    reference.axpby(2.0, x, 1.0, y, expected, True, True)
    ops.axpby(2.0, x, 1.0, y, y, flag(device))
    assert_near(y, expected, magnitude=16.0)


@pytest.mark.parametrize(
    "checked, in_x, in_y, found",
    [
        (ops.Check.X, True, False, True),
        (ops.Check.X, False, True, False),
        (ops.Check.Y, True, False, False),
        (ops.Check.Y, False, True, True),
        (ops.Check.BOTH, False, True, True),
        (ops.Check.BOTH, True, False, True),
        (ops.Check.BOTH, False, False, False),
    ],
)
def test_axpby_checks_only_the_chosen_inputs(device, checked, in_x, in_y, found):
    x, y = torch.ones(9, device=device), torch.ones(9, device=device)
    plant(x, math.inf if in_x else 1.0)
    plant(y, math.nan if in_y else 1.0)
    found_inf = flag(device)
    ops.axpby(1.0, [x], 1.0, [y], [torch.empty_like(x)], found_inf, checked)
    assert found_inf.item() == found


LEAST_OVERFLOW = {torch.float16: 0x477FF000, torch.bfloat16: 0x7F7F8000}  # float32's bits


@pytest.mark.parametrize("elements", [1, 37, 5000])
@pytest.mark.parametrize("dtype", LEAST_OVERFLOW)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_result_overflows_from_half_a_unit_above_the_largest(device, sign, dtype, elements):
    bits = LEAST_OVERFLOW[dtype]
    for value_bits, overflows in [(bits, True), (bits - 1, False)]:
        x = torch.zeros(elements, device=device)
        plant(x, sign * torch.tensor(value_bits, dtype=torch.int32).view(torch.float32).item())
        out = torch.empty(elements, dtype=dtype, device=device)
        inv_scale = torch.ones((), device=device)
        for call in (
            lambda found, x=x, out=out: ops.scale([x], [out], 1.0, found),
            lambda found, x=x, out=out, inv=inv_scale: ops.unscale([x], [out], inv, found),
            lambda found, x=x, out=out: ops.axpby(1.0, [x], 0.0, [x], [out], found),
        ):
            found_inf = flag(device)
            call(found_inf)
            assert bool(found_inf) == overflows
            assert out.isinf().any() == overflows


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "empty"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_every_op_finds_what_is_not_finite(device, layout, dtype, value):
    clean, bad = make(layout, dtype, device), make(layout, dtype, device)
    plant(bad, value)
    one = torch.ones((), device=device)
    runs = {
        "scale": lambda t, f, p: ops.scale(t, copies(t), 0.5, f, p),
        "unscale": lambda t, f, p: ops.unscale(t, copies(t), one, f, False, p),
        "check": ops.check,
        "check_l2norm": ops.check_l2norm,
    }
    for name, run in runs.items():
        found_inf, per_tensor = flag(device), flags([0] * 3, device)
        run([clean, None, clean], found_inf, per_tensor)
        assert found_inf.item() == 0 and per_tensor.tolist() == [0, 0, 0], name
        run([clean, None, bad], found_inf, per_tensor)
        assert found_inf.item() == 1 and per_tensor.tolist() == [0, 0, 1], name


def test_flags_are_never_cleared(device):
    found_inf, per_tensor = torch.ones((), device=device), flags([0], device) + 1
    ops.check([torch.zeros(4, device=device)], found_inf, per_tensor)
    assert found_inf.item() == 1 and per_tensor.tolist() == [1]


@pytest.mark.parametrize("layout", [*LAYOUTS, *EXPANDED])
def test_l2norm(device, layout):
    tensors = make_list(layout, DTYPES, device)
    norm, norms = ops.l2norm(tensors, per_tensor=True)
    expected = reference.norms(tensors)
    torch.testing.assert_close(norms.tolist(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(norm.item(), reference.norm(tensors), rtol=1e-5, atol=0)
    assert ops.l2norm(tensors)[1] is None
    assert ops.check_l2norm(tensors, flag(device)).item() == norm.item()


def test_l2norm_of_nothing(device):
    norm, norms = ops.l2norm([None, None], per_tensor=True)
    assert norm.item() == 0 and norms.tolist() == [0, 0]


@pytest.mark.skipif(
    os.environ.get("TORCHAMP_KERNELS") == "aten", reason="ATen splits its sums among the threads"
)
def test_norms_do_not_depend_on_the_number_of_threads():
    tensors = [torch.randn(n) for n in (70_001, 3, 500_000)]
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            results.append([t.tolist() for t in ops.l2norm(tensors, per_tensor=True)])
    finally:
        torch.set_num_threads(before)
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copy_cast(device, layout):
    masters = make_list(layout, [a for a, _ in ANY_DTYPES], device)
    models = [torch.empty_like(make(layout, b, device)) for _, b in ANY_DTYPES] + [None]
    ops.copy_cast(masters, models)
    assert_same(models, [m.to(p.dtype) for m, p in zip(masters[:-1], models[:-1])])


@pytest.mark.parametrize("strides", ["input", "output"])
def test_positions_may_differ_in_strides(device, strides):
    plain, other = torch.randn(2, 3, 4, 4, device=device), torch.randn(2, 3, 4, 4, device=device)
    other = other.to(memory_format=torch.channels_last)
    source, result = (other, plain) if strides == "input" else (plain, other)
    expected = source * 2
    ops.scale([source], [result], 2.0, flag(device))
    assert torch.equal(result, expected)


def test_what_is_written_counts_as_written(device):
    x, out, found_inf = torch.ones(4, device=device), torch.ones(4, device=device), flag(device)
    before = x._version, out._version, found_inf._version
    ops.scale([x], [out], 1.0, found_inf)
    after = x._version, out._version, found_inf._version
    assert after == (before[0], before[1] + 1, before[2] + 1)


def _as_float32(value: float) -> float:
    return torch.tensor(value).item()
