"""The ops on random lists: any mix of sizes, dtypes, layouts, None and non-finite values."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ops as reference
from tensors import (
    DEVICES,
    DTYPES,
    LAYOUTS,
    assert_near,
    assert_same,
    copies,
    flag,
    flags,
    make,
    plant,
)

from torchamp import ops

pytestmark = pytest.mark.card

positions = st.tuples(
    st.sampled_from([name for name in LAYOUTS if name != "large"]),
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
    st.sampled_from(["both", "both", "both", "no input", "no output"]),
    st.sampled_from([None, None, None, math.inf, -math.inf, math.nan, 60000.0]),
)
devices = st.sampled_from(DEVICES)
lists = st.lists(positions, max_size=12)
factors = st.sampled_from([1.0, 2.0**-12, 3.0, 1e4, 1e-30])


def _tensors(rows, device) -> tuple[list, list]:
    inputs, outputs = [], []
    for layout, in_dtype, out_dtype, present, planted in rows:
        tensor = make(layout, in_dtype, device)
        if planted is not None and tensor.numel():
            plant(tensor, planted)
        inputs.append(None if present == "no input" else tensor)
        outputs.append(None if present == "no output" else make(layout, out_dtype, device))
    return inputs, outputs


@settings(max_examples=60, deadline=None)
@given(devices, lists, factors)
def test_scale(device, rows, factor):
    inputs, outputs = _tensors(rows, device)
    expected = copies(outputs)
    factor = torch.tensor(factor).item()
    found_inf, per_tensor = flag(device), flags(inputs, device)
    ops.scale(inputs, outputs, factor, found_inf, per_tensor)
    bad = reference.scale(inputs, expected, factor)
    assert_same(outputs, expected)
    assert per_tensor.tolist() == bad and found_inf.item() == any(bad)


@settings(max_examples=60, deadline=None)
@given(devices, lists, factors, st.booleans())
def test_unscale(device, rows, factor, accumulate):
    scaled, master = _tensors(rows, device)
    expected, inv_scale = copies(master), torch.tensor(factor, device=device)
    found_inf, per_tensor = flag(device), flags(scaled, device)
    ops.unscale(scaled, master, inv_scale, found_inf, accumulate, per_tensor)
    bad = reference.unscale(scaled, expected, inv_scale, accumulate)
    assert_near(master, expected, magnitude=10 * factor)
    assert per_tensor.tolist() == bad and found_inf.item() == any(bad)


@settings(max_examples=40, deadline=None)
@given(devices, lists)
def test_copy_cast(device, rows):
    masters, models = _tensors(rows, device)
    expected = [
        p if m is None or p is None else m.to(p.dtype) for m, p in zip(masters, copies(models))
    ]
    ops.copy_cast(masters, models)
    assert_same(models, expected)


@settings(max_examples=40, deadline=None)
@given(devices, lists)
def test_norms_and_checks_agree(device, rows):
    tensors, _ = _tensors(rows, device)
    found_inf, per_tensor = flag(device), flags(tensors, device)
    norm = ops.check_l2norm(tensors, found_inf, per_tensor)
    bad = [t is not None and reference.is_bad(t) for t in tensors]
    assert per_tensor.tolist() == bad and found_inf.item() == any(bad)
    expected = reference.norm(tensors)
    torch.testing.assert_close(norm.item(), expected, rtol=1e-5, atol=0, equal_nan=True)
