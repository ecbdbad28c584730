"""The ops on views that chance lays over each other."""

import pytest
import torch
from fuzz.ops import Call, View
from fuzz.properties import check
from reference import ops as reference

from torchamp import ops

pytestmark = pytest.mark.usefixtures("one_thread")

FEW, MANY = 500, 5_000


@pytest.mark.parametrize("first", range(0, 4 * FEW, FEW))
def test_calls(first):
    check("ops", first, FEW)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(4 * FEW, 50_000, MANY))
def test_many_calls(first):
    check("ops", first, MANY)


@pytest.mark.parametrize("seed", [103_242, 111_507, 127_920, 134_525, 272_205, 3_863])
def test_mended_calls(seed):
    """Single elements of other strides, and views of other types at one offset."""
    check("ops", seed, 1)


def test_norms_and_checks_agree():
    """The lists are those that calls are drawn with. Squares are float32's, which may overflow."""
    for seed in range(FEW):
        tensors = Call(seed).lists()[0]
        found_inf, each = torch.zeros(()), torch.zeros(len(tensors), dtype=torch.uint8)
        norm = ops.check_l2norm(tensors, found_inf, each)
        bad = [tensor is not None and reference.is_bad(tensor) for tensor in tensors]
        assert each.tolist() == bad and bool(found_inf) == any(bad)
        expected = torch.tensor(reference.norm(tensors)).square().sqrt()
        torch.testing.assert_close(norm, expected, rtol=1e-5, atol=0, equal_nan=True)


def test_hazards_are_drawn():
    """Else the calls would show nothing."""
    calls = [Call(seed) for seed in range(500)]
    hazards = sum(any(call.hazards()) for call in calls)
    assert 25 < hazards < 250


def test_views_in_the_way_are_known():
    whole = View(torch.float32, (4,), (1,), 0)
    later = View(torch.float32, (4,), (1,), 1)
    even, odd = (View(torch.float32, (4,), (2,), offset) for offset in (0, 1))
    sliding = View(torch.float32, (2, 2), (1, 1), 0)
    assert later.is_in_the_way_of(whole) and not whole.is_in_the_way_of(whole)
    assert not even.is_in_the_way_of(odd)
    assert sliding.overlaps_itself() and not even.overlaps_itself()
