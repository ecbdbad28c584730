"""Random training programs do what docs/grads.md says: the mirror follows them in plain PyTorch."""

from __future__ import annotations

import pytest
from fuzz.events import Event, Program, Recipe, Setup
from fuzz.properties import check
from fuzz.shrink import shrunk
from languages.by_hand import clip_norm, step, zero
from mirror.compare import failure

pytestmark = pytest.mark.usefixtures("one_thread")

FEW, MANY = 25, 500


@pytest.mark.parametrize("first", range(0, 250, FEW))
def test_programs(first):
    check("mirror", first, FEW)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(250, 3_250, MANY))
def test_many_programs(first):
    check("mirror", first, MANY)


@pytest.mark.parametrize("first", range(0, 100, FEW))
def test_programs_of_grad_scaler(first):
    check("grad_scaler", first, FEW)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(100, 1_100, MANY))
def test_many_programs_of_grad_scaler(first):
    check("grad_scaler", first, MANY)


def sgd(*params: int, kind: str = "SGD", **options: object) -> Recipe:
    return Recipe(kind, (params,), {"lr": 0.5, **options})


def program(level: str, *optimizers: Recipe, events: list[Event], **overrides: object) -> Program:
    parts = ("layer_norm", "scalar", "norm", "extra")
    return Program(Setup(level, parts, optimizers, overrides, frozen=(5,)), tuple(events))


def sharing(*events: Event, **overrides: object) -> Program:
    """A program of two optimizers that share the second parameter."""
    return program("O1", sgd(0, 1), sgd(1, 2), events=list(events), **overrides)


def backward(of: list[int], reach: list[int], **flags: object) -> Event:
    return Event("backward", {"loss": 0, "of": of, "reach": reach, "coefs": 7, **flags})


ZERO_MODEL = Event("zero_model")


def group(of: int, *params: int, how: str = "in_place") -> Event:
    return Event(
        "group", {"of": of, "group": 0, "params": list(params), "how": how, "forgets": True}
    )


def phase(*optimizers: Recipe) -> Event:
    return Event("phase", {"level": "O2", "optimizers": optimizers, "overrides": {"num_losses": 1}})


#: Programs that were wrong once.
MENDED = {
    "clipping_after_a_zeroing_of_the_model": program(
        "O2", sgd(0), events=[backward([0], [0]), ZERO_MODEL, clip_norm(0)]
    ),
    "clipping_after_the_zeroing_of_delayed_grads": program(
        "O1", sgd(0), events=[backward([0], [0], delayed=True), ZERO_MODEL, clip_norm(0)]
    ),
    "clipping_after_a_skipped_step": program(
        "O1", sgd(0), events=[backward([0], [0], inf_in=0), step(0), clip_norm(0)]
    ),
    "clipping_two_of_which_the_second_waits": program(
        "O2",
        sgd(0, kind="FusedSGD"),
        sgd(1, kind="FusedSGD"),
        events=[
            backward([0], [0]),
            backward([1], [1], delayed=True),
            Event("clip_value", {"of": [0, 1], "value": 0.05}),
            Event("edit_grad", {"param": 0, "how": "negate"}),
            step(0),
        ],
    ),
    "clipping_one_of_two_that_share": sharing(
        backward([0], [0, 1]), backward([1], [2]), clip_norm(0)
    ),
    "a_delayed_overflow_of_another_optimizer": sharing(
        backward([1], [2], delayed=True, inf_in=2),
        zero(0),
        backward([1], [1], loss=1),
        step(0),
        num_losses=2,
    ),
    "zeroing_beside_a_delay": sharing(
        backward([1], [2], delayed=True), zero(0), backward([1], [2]), step(1)
    ),
    "zeroing_beside_a_zeroing": sharing(backward([1], [2]), ZERO_MODEL, zero(0), step(1)),
    "zeroing_after_a_zeroing_beside_it": sharing(backward([1], [2]), zero(0), ZERO_MODEL, step(1)),
    "zeroing_in_a_block_beside_others": program(
        "O1",
        sgd(0, 1),
        sgd(1, 3),
        events=[backward([1], [3]), backward([0], [0], zero_inside="optimizer"), step(1)],
    ),
    "a_step_beside_a_zeroing_of_the_model": sharing(
        backward([1], [2], inf_in=2), ZERO_MODEL, step(0), backward([1], [2]), step(1)
    ),
    "a_skip_beside_a_step": sharing(
        backward([0], [0], inf_in=0), backward([1], [1]), step(0), step(1)
    ),
    "an_overflow_before_two_zeroings": program(
        "O1",
        sgd(0),
        sgd(0),
        events=[backward([1], [0], inf_in=0), ZERO_MODEL, zero(0), backward([0], [0]), step(1)],
    ),
    "clipping_after_a_grad_was_dropped": program(
        "O2",
        sgd(0, 1, kind="FusedSGD"),
        events=[
            backward([0], [0, 1]),
            clip_norm(0),
            step(0),
            backward([0], [0, 1]),
            Event("drop_grads", {"params": [1]}),
            clip_norm(0),
        ],
        materialize_master_grads=False,
    ),
    "clipping_of_nothing": program("O2", sgd(0), events=[clip_norm()]),
    "an_overflow_beside_a_step_of_nothing": program(
        "O1", sgd(0), sgd(0, 1), sgd(2), events=[backward([1], [0], inf_in=0), step(2), step(0)]
    ),
    "an_old_overflow": program(
        "O3",
        sgd(0),
        sgd(1),
        events=[backward([0], [0], inf_in=0), backward([0, 1], [0, 1]), step(1)],
        loss_scale="dynamic",
    ),
    "zeros_in_a_model_without_masters": program(
        "O1",
        sgd(0),
        events=[
            backward([0], [0], inf_in=0),
            Event("zero_model", {"to_none": False}),
            backward([0], [0]),
            step(0),
        ],
    ),
    "zeroing_of_the_model_in_a_block": program(
        "O1", sgd(0), events=[backward([0], [0]), backward([0], [0], zero_inside="model"), step(0)]
    ),
    "zeroing_of_the_model_in_a_block_of_one_of_two": program(
        "O1",
        sgd(0),
        sgd(0),
        events=[backward([0], [0], inf_in=0), backward([1], [0], zero_inside="model"), step(1)],
    ),
    "an_overflow_after_a_zeroing_of_the_model_in_its_block": program(
        "O2",
        sgd(0),
        sgd(1),
        events=[
            backward([1], [1]),
            backward([0, 1], [0], inf_in=0, zero_inside="model"),
            backward([1], [1]),
            step(1),
        ],
    ),
    "releasing_a_parameter_without_its_optimizer": program(
        "O2", sgd(0, 1), events=[group(0, 1), step(0), phase(sgd(0, 1))]
    ),
    "releasing_the_states_of_an_assigned_list": program(
        "O2",
        sgd(0, 1, momentum=0.5),
        events=[
            backward([0], [0, 1]),
            step(0),
            group(0, 0, 1, how="assign"),
            phase(),
            backward([0], [0, 1]),
            step(0),
        ],
        num_losses=1,
    ),
    "moving_a_parameter_to_another_optimizer": program(
        "O2",
        sgd(0, 1),
        sgd(2),
        events=[
            group(0, 0),
            Event("add_group", {"of": 1, "params": [1]}),
            backward([1], [1]),
            step(1),
        ],
    ),
    "removing_a_parameter_after_anothers_overflow": program(
        "O2",
        sgd(0, 1),
        sgd(2),
        events=[backward([0, 1], [0, 1, 2], inf_in=2), group(0, 0), step(0)],
    ),
    "removing_a_shared_parameter_with_delayed_grads": sharing(
        backward([1], [1], delayed=True), group(0, 0), Event("save"), backward([1], [2]), step(1)
    ),
}

#: Programs that chance draws rarely.
RARE = {
    "clipping_beside_grads_that_a_skipped_step_would_use": program(
        "O2",
        sgd(0),
        sgd(1),
        events=[
            *[backward([0], [0]), backward([1], [1], inf_in=1)],
            *[clip_norm(0, 1, max_norm=0.05), step(0), step(1)],
        ],
    ),
    "an_overflow_in_a_shared_parameter": sharing(
        *[backward([0], [0, 1], inf_in=1), step(1), zero(0), zero(1)],
        *[backward([0], [0, 1], inf_in=0), step(1), step(0)],
    ),
    "writes_to_grads_that_a_fused_step_unscales": program(
        "O2",
        sgd(0, 1, kind="FusedSGD"),
        events=[backward([0], [0, 1]), Event("edit_grad", {"param": 0, "how": "negate"}), step(0)],
        materialize_master_grads=False,
    ),
}


@pytest.mark.parametrize("name", [*MENDED, *RARE])
def test_chosen_programs(name):
    assert failure({**MENDED, **RARE}[name]) == ""


def has_skip_and_clip(candidate: Program) -> bool:
    names = [event.name for event in candidate.events]
    return "step" in names and any(event.args.get("inf_in") == 2 for event in candidate.events)


def test_programs_are_shrunk():
    long = MENDED["an_old_overflow"]
    events = (*long.events, backward([0, 1], [1, 2], inf_in=2, delayed=True), step(1), zero(0))
    small = shrunk(Program(long.setup, events), has_skip_and_clip)
    assert sorted(map(str, small.events)) == [
        "backward(loss=0, of=[], reach=[], coefs=7, inf_in=2)",
        "step(of=1)",
    ]
    assert small.setup.overrides == {}
