"""Nothing that training keeps becomes infinite or NaN, whatever overflows and whichever optimizers
a scale_loss is given."""

from __future__ import annotations

from typing import Any

import pytest
from fuzz.events import Event, Program, Recipe, Setup
from fuzz.properties import check
from languages.by_hand import backward, clip_norm, step, zero
from languages.runs import not_finite, not_finite_in

FEW, MANY = 50, 2_000


@pytest.mark.parametrize("first", range(0, 250, FEW))
def test_drawn_programs(first):
    check("finite", first, FEW)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(250, 8_250, MANY))
def test_many_drawn_programs(first):
    check("finite", first, MANY)


PARTS = ("scalar", "strided", "sliced", "layer_norm", "norm", "linear", "extra")
SCALAR, STRIDED, SLICED, FIRST, BIAS, NORM, LAST, EXTRA = (
    (0,),
    (1,),
    (2,),
    (3,),
    (4,),
    (5, 6),
    (7, 8),
    9,
)


def program(level: str, *optimizers: tuple[str, tuple[int, ...]], events: list[Event]) -> Program:
    recipes = tuple(Recipe(kind, (params,), {"lr": 0.05}) for kind, params in optimizers)
    overrides = {"loss_scale": "dynamic", "num_losses": 2}
    return Program(Setup(level, PARTS, recipes, overrides, (EXTRA,)), tuple(events))


def overflow(seed: int, of: int, *reach: int, loss: int = 0, **flags: Any) -> Event:
    """An overflow of the layers too, and of all parameters that it reaches."""
    flags = {"reach": [*reach], "layers": "entropy", "is_nan": True, **flags}
    return backward(seed, of, loss=loss, **flags)


def clip_value(of: int) -> Event:
    return Event("clip_value", {"of": [of], "value": 1.0})


#: Programs that were wrong once.
MENDED = {
    "an_optimizer_that_shares_with_a_refused_one": program(
        *["O1", ("SGD", BIAS + LAST[1:]), ("SGD", LAST)],
        events=[overflow(3, 0, LAST[1]), step(0), step(1)],
    ),
    "clipping_of_stray_grads": program(
        *["O1", ("FusedSGD", LAST), ("Adam", NORM)],
        events=[overflow(49, 1), clip_norm(0, 1, max_norm=1.0), step(0)],
    ),
    "clipping_of_the_values_of_stray_grads": program(
        *["O1", ("FusedSGD", LAST), ("Adam", NORM)],
        events=[overflow(49, 1), clip_value(0), step(0)],
    ),
    "a_group_that_is_added_after_an_overflow": program(
        *["O1", ("SGD", SLICED), ("Adam", STRIDED), ("Adam", FIRST + SLICED)],
        events=[
            overflow(17, 1, NORM[1], *FIRST),
            Event("add_group", {"of": 0, "params": [EXTRA]}),
            *[step(1), step(2)],
        ],
    ),
    "delayed_grads_with_stray_ones": program(
        *["O0", ("FusedNovoGrad", SCALAR), ("FusedSGD", NORM)],
        events=[
            *[overflow(25, 0, loss=1), backward(68, 0, 1, loss=1, delayed=True)],
            *[backward(48, 0), backward(4, 0, 1), step(1)],
        ],
    ),
    "stray_grads_that_a_sharer_sets_aside": program(
        *["O1", ("RMSprop", NORM), ("SGD", SCALAR), ("RMSprop", NORM)],
        events=[overflow(69, 1), backward(93, 2), step(2)],
    ),
    "stray_grads_after_zeroed_ones": program(
        *["O2", ("Adam", STRIDED), ("FusedAdam", SLICED)],
        events=[
            backward(42, 0, 1, loss=1, reach=[*SLICED]),
            Event("zero_model"),
            overflow(82, 0, *SLICED, loss=1, layers=None),
            step(1),
        ],
    ),
    "a_delayed_overflow_of_a_sharer": program(
        *["O0", ("RMSprop", LAST), ("Adagrad", LAST)],
        events=[overflow(6, 1, delayed=True), backward(63, 1, loss=1), step(0)],
    ),
    "grads_that_clipping_made_infinite": program(
        *["O0", ("RMSprop", LAST[1:] + SLICED)],
        events=[
            *[backward(93, 0, loss=1, reach=[*SLICED]), zero(0, to_none=False)],
            *[overflow(99, 0, loss=1)],
            *[clip_norm(0, max_norm=0.0), clip_norm(0, max_norm=0.0), step(0), step(0)],
        ],
    ),
    "clipping_of_what_a_refused_optimizer_shares": program(
        *["O4", ("RMSprop", SCALAR + STRIDED + NORM), ("SGD", SCALAR + FIRST + BIAS + LAST)],
        events=[
            overflow(84, 1, LAST[1], loss=1, layers=None, late=True),
            backward(26, 1, loss=1, reach=[*FIRST, *SCALAR, LAST[0]]),
            *[clip_norm(1, max_norm=10.0), step(0)],
        ],
    ),
}


@pytest.mark.parametrize("name", MENDED)
def test_mended(name):
    assert list(not_finite([MENDED[name]])) == [""]


def test_what_is_not_finite_is_found():
    seen = {"params.first.weight": " 1 nan", "optimizers.0.telemetry": " 1 nan"}
    assert not_finite_in(seen) == "params.first.weight is 1 nan"
    assert not_finite_in({"params.first.weight": " 1 2", "grads.first.weight": " inf"}) == ""
    assert not_finite_in({"crashed": " -11"}) == " -11"
