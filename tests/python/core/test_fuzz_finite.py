"""Nothing that training keeps becomes infinite or NaN, whatever overflows and whichever optimizers
a scale_loss is given."""

from __future__ import annotations

import pytest
from fuzz_finite import failures, found, not_finite

FEW, MANY = 100, 2_000


def assert_all_are_finite(first: int, count: int) -> None:
    for seed, what in found(range(first, first + count)):
        pytest.fail(
            f"seed {seed}: {what}\n"
            f"run `python tests/python/support/fuzz_finite.py --seed {seed} --shrink`"
        )


@pytest.mark.parametrize("first", range(0, 500, FEW))
def test_drawn_scripts(first):
    assert_all_are_finite(first, FEW)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(500, 20_500, MANY))
def test_many_drawn_scripts(first):
    assert_all_are_finite(first, MANY)


#: Scripts that were wrong once, after the initialize that each begins with.
MENDED = {
    "an_optimizer_that_shares_with_a_refused_one": """
        optimizer SGD first.bias last.bias
        optimizer SGD last.bias last.weight
        initialize O1 dynamic
        backward 0 3 overflow of=0
        step 0
        step 1
    """,
    "clipping_of_stray_grads": """
        optimizer FusedAdagrad last
        optimizer Adam norm
        initialize O1 dynamic
        backward 0 49 overflow of=1
        clip_norm 1
        step 0
    """,
    "clipping_of_the_values_of_stray_grads": """
        optimizer FusedAdagrad last
        optimizer Adam norm
        initialize O1 dynamic
        backward 0 49 nan of=1
        clip_value 1
        step 0
    """,
    "a_group_that_is_added_after_an_overflow": """
        optimizer SGD sliced
        optimizer Adam strided
        optimizer Adam first sliced
        initialize O1 dynamic
        backward 0 17 reach=norm.bias,first.weight of=1
        add_group 0
        step 1
        step 2
    """,
    "delayed_grads_with_stray_ones": """
        optimizer FusedNovoGrad scalar
        optimizer FusedSGD norm
        initialize O0 dynamic
        backward 1 25 nan of=0
        backward 1 68 delayed
        backward 0 48 of=0
        backward 0 4
        step 1
    """,
    "stray_grads_that_a_sharer_sets_aside": """
        optimizer RMSprop norm
        optimizer SGD scalar
        optimizer RMSprop norm
        initialize O1 dynamic
        backward 0 69 nan of=1
        backward 0 93 of=2
        step 2
    """,
    "stray_grads_after_zeroed_ones": """
        optimizer Adam strided
        optimizer FusedAdam sliced
        initialize O2 dynamic materialize_master_grads=1
        backward 1 42 reach=sliced
        zero_model none
        backward 1 82 reach=sliced overflow of=0
        step 1
    """,
    "a_delayed_overflow_of_a_sharer": """
        optimizer RMSprop last
        optimizer Adagrad last
        initialize O0 dynamic
        backward 0 6 delayed overflow of=1
        backward 1 63 of=1
        step 0
    """,
    "grads_that_clipping_made_infinite": """
        optimizer RMSprop last.bias sliced
        initialize O0 dynamic
        backward 1 93 reach=sliced
        zero 0 zeros
        backward 1 99 overflow
        clip_norm 0
        clip_norm 0
        step 0
        step 0
    """,
    "clipping_of_what_a_refused_optimizer_shares": """
        optimizer RMSprop norm scalar strided
        optimizer SGD first last scalar
        initialize O4 dynamic
        backward 1 84 reach=last.bias nan late of=1
        backward 1 26 reach=first.weight,empty,scalar,last.weight of=1
        clip_norm 10 1
        step 0
    """,
}


@pytest.mark.parametrize("name", MENDED)
def test_mended(name):
    script = [line.strip() for line in MENDED[name].strip().splitlines()]
    assert list(failures([script])) == [""]


def test_what_is_not_finite_is_found():
    seen = {"params.first.weight": " 1 nan", "optimizers.0.telemetry": " 1 nan"}
    assert not_finite(seen) == "params.first.weight is 1 nan"
    assert not_finite({"params.first.weight": " 1 2", "grads.first.weight": " inf"}) == ""
    assert not_finite({"crashed": " -11"}) == " -11"
