"""Mistakes that C++ and Python share: programs of both languages, and what they must tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union

import torch
from fuzz.events import Event, Program, Recipe, Setup

from languages.by_hand import (
    INNER,
    LAST,
    PARTS,
    backward,
    clip_norm,
    overflow,
    program,
    scale,
    step,
    zero,
)

INF, NAN = float("inf"), float("nan")
LEVELS, MASTERS = ("O0", "O1", "O2", "O5"), ("O2", "O5")
#: The parameters of two optimizers, which all have masters where any has.
FIRST, ALL = INNER[:2], (*INNER[:2], *LAST)

#: Events, each followed by what it must tell. The words are Python's: runs.py has those that
#: are others in C++.
Told = Sequence[Union[Event, str]]


@dataclass(frozen=True)
class Mistake:
    program: Program
    #: By the setup, and by each event.
    told: list[list[str]]
    #: What changes as much, in silence.
    like: Program | None = None


LATE = (
    "RuntimeError: scale_loss: expected the backward of the scaled loss before the end of its "
    "scale_loss, which unscales the grads, got one after it; call scaled_loss.backward() inside"
)
ANOTHER_LOSS = (
    "RuntimeError: scale_loss: expected the backward of the scaled loss, got grads of another "
    "loss, which must not be unscaled; call scaled_loss.backward()"
)
NO_GRADS = (
    "step: expected grads, got none, so nothing changes; run the backward, of a loss that reaches "
    "the optimizer's parameters, in scale_loss"
)


def not_floating(got: str) -> str:
    return f"TypeError: scale_loss: expected loss to be a floating-point tensor, got {got}"


def no_loss(loss: int) -> str:
    return f"IndexError: scale_loss: expected loss_id to be below num_losses, 2, got {loss}"


def inside(function: str, remedy: str) -> str:
    return (
        f"RuntimeError: {function}: expected the optimizer not to be inside an open scale_loss, "
        f"but it is; {remedy}"
    )


def scaled(function: str) -> str:
    return (
        f"RuntimeError: {function}: expected unscaled grads, got grads still scaled by a "
        "scale_loss that is open or has delay_unscale, as in no_sync(); clip after the last "
        "scale_loss of the step"
    )


def not_given(function: str, sizes: list[int]) -> str:
    return (
        f"RuntimeError: {function}: expected grads of backwards in scale_loss's that were given "
        f"this optimizer, got one, of sizes {sizes}, of a scale_loss that was not; give it all "
        "optimizers whose parameters its loss reaches, or zero their grads before their own "
        "backward"
    )


def no_bound(clip: Event) -> str:
    name = {"clip_norm": "max_norm", "clip_value": "clip_value"}[clip.name]
    (got,) = (value for key, value in clip.args.items() if key != "of")
    return f"ValueError: clip_grad_{clip.name[5:]}_: expected {name} to be at least 0, got {got}"


def no_state(scale: float, clean: int) -> str:
    return (
        "ValueError: load_state: expected loss_scale to be positive and finite, and growth_tracker "
        f"to have 32 bits, got {scale} and {clean}"
    )


def exact(seed: int, *of: int, reach: Sequence[int] = ALL, **flags: Any) -> Event:
    """A backward whose grads no scale rounds."""
    return backward(seed, *of, reach=[*reach], layers=None, **flags)


def clip_value(*of: int, value: float = 1.0) -> Event:
    return Event("clip_value", {"of": [*of], "value": value})


ANOTHER, ZERO_MODEL = Event("another"), Event("zero_model")

OF_ONE: dict[str, Told] = {
    "an_integer_loss": [exact(1, dtype=torch.int64), not_floating("CPULongType")],
    "an_integer_loss_of_no_scale": [exact(1, dtype=torch.int64), not_floating("CPULongType")],
    "a_boolean_loss": [exact(1, dtype=torch.bool), not_floating("CPUBoolType")],
    "a_complex_loss": [exact(1, dtype=torch.complex64), not_floating("CPUComplexFloatType")],
    "a_loss_of_constants": [
        exact(1, reach=()),
        "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
    ],
    "a_loss_per_element": [
        backward(1, layers="outputs"),
        "RuntimeError: grad can be implicitly created only for scalar outputs",
    ],
    "a_loss_id_too_large": [exact(1, loss=2), no_loss(2)],
    "a_negative_loss_id": [exact(1, loss=-1), no_loss(-1)],
    "optimizers_of_two_initializes": [
        *[ANOTHER, exact(1, 0, 1)],
        "RuntimeError: scale_loss: expected optimizers[1] to come from the same initialize as the "
        "others, got one from another",
    ],
    "one_inside_another": [
        exact(1, ends="scale_loss"),
        inside("scale_loss", "close that scale_loss first, or scale the sum of the losses"),
    ],
    "the_unscaled_loss": [exact(1, ends="unscaled"), ANOTHER_LOSS],
    "the_backward_of_another_loss": [exact(1, ends="another"), ANOTHER_LOSS],
    "a_part_of_the_scaled_loss": [exact(1, ends="part"), step()],
    "grads_without_a_backward": [exact(1, ends="grad"), step()],
    "a_backward_outside": [exact(1, ends="outside"), step()],
    "a_backward_after_the_end": [exact(1, ends="empty", late=True), LATE],
    "a_backward_inside_and_after": [exact(1, late=True), LATE],
    "a_backward_after_an_exception": [exact(1, ends="raise", late=True), LATE],
    "two_backwards_inside": [
        exact(1, ends="freed", twice=True),
        "RuntimeError: Trying to backward through the graph a second time (or directly access "
        "saved tensors after they have already been freed). Saved intermediate values of the graph "
        "are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if you "
        "need to backward through the graph a second time or if you need to access saved tensors "
        "after calling backward.",
    ],
    "no_backward_inside": [exact(1, ends="empty"), step(), NO_GRADS],
    "a_step_inside": [
        exact(1, ends="step"),
        inside("step", "step after it, where the grads are unscaled"),
    ],
    "clipping_inside": [exact(1, ends="clip_norm"), scaled("clip_grad_norm_")],
    "clipping_by_value_inside": [exact(1, ends="clip_value"), scaled("clip_grad_value_")],
    "a_release_inside": [
        exact(1, ends="release"),
        "RuntimeError: release: expected no scale_loss to be open, but one is; release after it",
    ],
    "a_step_on_delayed_grads": [
        *[exact(1, delayed=True), step()],
        "RuntimeError: step: expected unscaled grads, got grads still scaled by a scale_loss with "
        "delay_unscale, as in no_sync(); run one without it before the step",
    ],
    "steps_without_a_backward": [step(), NO_GRADS, step(), step()],
    "zero_grad_before_the_step": [exact(1), zero(), step(), NO_GRADS],
    "the_models_zero_grad_before_the_step": [exact(1), ZERO_MODEL, step(), NO_GRADS],
    "writing_data_of_the_masters_grads": [
        *[exact(1), Event("edit", {"of": 0, "how": "data"}), step()],
    ],
    "too_many_overflows": [
        *[overflow(1), step(), overflow(2), step()],
        "RuntimeError: expected fewer than max_consecutive_skips = 2 skipped steps in a row, got "
        "2, loss scale from 256 to 128: the loss itself is not finite, whatever the loss scale; "
        "check the data and the learning rate, or resume from an earlier checkpoint",
    ],
    "a_group_with_a_known_parameter": [
        Event("add_group", {"of": 0, "params": [LAST[0]]}),
        "ValueError: some parameters appear in more than one parameter group",
    ],
    **{
        f"clipping_to_{number}": [clip, no_bound(clip)]
        for number, clip in {
            "a_negative_norm": clip_norm(0, max_norm=-0.5),
            "a_norm_of_nan": clip_norm(0, max_norm=NAN),
            "a_norm_of_minus_infinity": clip_norm(0, max_norm=-INF),
            "a_negative_value": clip_value(0, value=-0.5),
            "a_value_of_nan": clip_value(0, value=NAN),
        }.items()
    },
    "clipping_before_any_backward": [clip_norm(0)],
    "clipping_one_twice": [exact(1), clip_norm(0, 0)],
    "a_scale_of_nan": [scale(0, NAN, 0), no_state(NAN, 0)],
    "a_scale_of_0": [scale(0, 0.0, 0), no_state(0, 0)],
    "a_growth_tracker_of_64_bits": [scale(0, 1.0, 2**40), no_state(1, 2**40)],
    "no_folder_to_save_in": [
        Event("save", {"file": "/missing/run.pt"}),
        'RuntimeError: amp.save: expected "/missing/run.pt" to be a path that can be written, got '
        'the error "No such file or directory"',
    ],
    "the_optimizer_of_another_initialize": [
        *[ANOTHER, exact(1, 1), step(), not_given("step", [3])],
    ],
    "zero_grad_after_that_of_another_initialize": [
        *[ANOTHER, exact(1, 1), zero(), exact(2), step()],
    ],
    "the_models_zero_grad_after_that_of_another_initialize": [
        *[ANOTHER, exact(1, 1), ZERO_MODEL, exact(2), step()],
    ],
}

OF_ONE_WITHOUT_MASTERS: dict[str, Told] = {
    "grads_added_to_those_of_another_initialize": [
        *[ANOTHER, exact(1, 1), exact(2), step(), not_given("step", [3])],
    ],
    "grads_added_to_those_of_another_initialize_by_no_scale": [
        *[ANOTHER, exact(1, 1), exact(2), step()],
    ],
}

OF_ONE_WITH_MASTERS: dict[str, Told] = {
    "two_steps_after_a_backward": [exact(1), step(), step(), NO_GRADS],
}

OF_TWO: dict[str, Told] = {
    "an_optimizer_not_given": [exact(1, 0), step(0), step(1), not_given("step", [2, 3])],
    "an_optimizer_that_the_loss_does_not_reach": [
        *[exact(1, 0, 1, reach=FIRST), step(0), step(1), NO_GRADS],
    ],
    "zero_grad_after_grads_of_another": [
        *[exact(1, 0), step(0), zero(1), exact(2, 1, reach=LAST), step(1)],
    ],
    "the_models_zero_grad_after_grads_of_another": [
        *[exact(1, 0), step(0), ZERO_MODEL, exact(2, 1, reach=LAST), step(1)],
    ],
}

OF_TWO_WITHOUT_MASTERS: dict[str, Told] = {
    "an_optimizer_not_given_by_no_scale": [exact(1, 0), step(0), step(1)],
    "clip_for_an_optimizer_not_given": [
        *[exact(1, 0), clip_norm(0, 1), not_given("clip_grad_norm_", [2, 3])],
    ],
    "clip_by_value_for_an_optimizer_not_given": [
        *[exact(1, 0), clip_value(0, 1), not_given("clip_grad_value_", [2, 3])],
    ],
    "grads_added_to_those_of_another": [
        *[exact(1, 0), step(0), exact(2, 1, reach=LAST), step(1), not_given("step", [2, 3])],
    ],
    "grads_added_to_those_of_another_that_the_program_has_written": [
        *[exact(1, 0), step(0)],
        *[Event("edit_grad", {"param": i, "how": "fill"}) for i in LAST],
        *[exact(2, 1, reach=LAST), step(1)],
    ],
    "grads_added_to_delayed_ones": [
        *[exact(1, 0, 1, loss=1, delayed=True), exact(2, 0), exact(3, 0, 1), step(1)],
        not_given("step", [2, 3]),
    ],
}

OF_TWO_WITH_MASTERS: dict[str, Told] = {
    "clip_for_a_master_not_given": [exact(1, 0), clip_norm(0, 1), step(0)],
    "grads_added_to_a_master_not_given": [
        *[exact(1, 0), step(0), exact(2, 1, reach=LAST), step(1)],
    ],
}

SECOND_ALONE = [exact(1, 0, reach=FIRST), step(0), exact(2, 1, reach=LAST), step(1)]
#: What leads to the same, and tells nothing.
LIKE: dict[str, list[Event]] = {
    **dict.fromkeys(
        ("a_part_of_the_scaled_loss", "grads_without_a_backward", "a_backward_outside"),
        [exact(1), step()],
    ),
    "writing_data_of_the_masters_grads": [
        *[exact(1), Event("edit", {"of": 0, "how": "negate"}), step()],
    ],
    "clipping_one_twice": [exact(1), clip_norm(0)],
    **dict.fromkeys(
        (
            "zero_grad_after_that_of_another_initialize",
            "the_models_zero_grad_after_that_of_another_initialize",
        ),
        [ANOTHER, exact(2), step()],
    ),
    "grads_added_to_those_of_another_initialize_by_no_scale": [
        *[ANOTHER, exact(1), exact(2), step()],
    ],
    "zero_grad_after_grads_of_another": SECOND_ALONE,
    "the_models_zero_grad_after_grads_of_another": [
        *[*SECOND_ALONE[:2], ZERO_MODEL, *SECOND_ALONE[2:]],
    ],
    "an_optimizer_not_given_by_no_scale": [exact(1, 0, 1), step(0), step(1)],
    "grads_added_to_a_master_not_given": SECOND_ALONE,
}
#: Tells scaled grads from others.
FIXED = {"loss_scale": 1024.0}
OVERRIDES: dict[str, dict[str, Any]] = {
    "an_integer_loss_of_no_scale": {"loss_scale": 1.0},
    "too_many_overflows": {"loss_scale": "dynamic", "max_consecutive_skips": 2},
    "grads_added_to_those_of_another_initialize_by_no_scale": {"loss_scale": 1.0},
    "an_optimizer_not_given_by_no_scale": {"loss_scale": 1.0},
}


def range_of_scales(least: str, most: str = "1.67772e+07") -> str:
    return (
        "ValueError: initialize: expected min_loss_scale to be between 0 and max_loss_scale, got "
        f"{least} and {most}"
    )


def initial_scale(got: float) -> str:
    expected = "expected the initial scale to be positive and finite"
    return f"ValueError: LossScaler: {expected}, got {got}"


def model_type(got: str) -> str:
    return (
        "TypeError: initialize: expected cast_model_type to be a floating dtype of 16 bits or "
        f"more, got {got}"
    )


A_LEVEL = (
    'RuntimeError: initialize: expected opt_level to be one of "O0", "O1", "O2", "O3", "O4", "O5", '
    "got "
)
A_SCALE = "ValueError: initialize: expected loss_scale to be "
A_FLOAT64_MODEL = (
    'initialize: expected models[0] to be in float32, got parameter "parts.0.value" in float64; '
)
NO_FLOAT8 = "RuntimeError: initialize: float8 cannot be set at opt_level "
HALF = ": float16 has 5 exponent bits, as e5m2 has: use O4 or O5"
NO_MODULE = "ValueError: initialize: expected float8 to name modules"
#: What initialize is given, and tells.
SETUPS: dict[str, tuple[dict[str, Any], str]] = {
    "an_unknown_level": ({"level": "O7"}, f'{A_LEVEL}"O7"'),
    "a_level_without_its_letter": ({"level": "2"}, f'{A_LEVEL}"2"'),
    "a_level_in_lower_case": (
        {"level": "o1"},
        f'{A_LEVEL}"o1"; did you mean "O1" (letter O, digit)?',
    ),
    "a_scale_with_a_unit": ({"loss_scale": "128x"}, f'{A_SCALE}"dynamic" or a number, got "128x"'),
    "a_negative_scale": ({"loss_scale": -1.0}, f"{A_SCALE}positive and finite, got -1"),
    "a_scale_of_0": ({"loss_scale": 0.0}, f"{A_SCALE}positive and finite, got 0"),
    "a_scale_of_nan": ({"loss_scale": NAN}, f"{A_SCALE}positive and finite, got nan"),
    "an_infinite_scale": ({"loss_scale": INF}, f"{A_SCALE}positive and finite, got inf"),
    "a_scale_that_float32_lacks": ({"loss_scale": 1e39}, initial_scale(1e39)),
    "a_scale_that_float32_rounds_to_0": ({"loss_scale": 1e-50}, initial_scale(1e-50)),
    "negative_losses": (
        {"num_losses": -2},
        "ValueError: initialize: expected num_losses to be at least 1, got -2",
    ),
    "no_skips": (
        {"max_consecutive_skips": 0},
        "ValueError: initialize: expected max_consecutive_skips to be at least 1, got 0",
    ),
    "a_min_scale_of_nan": ({"min_loss_scale": NAN}, range_of_scales("nan")),
    "a_negative_min_scale": ({"min_loss_scale": -1.0}, range_of_scales("-1")),
    "a_min_scale_above_the_max": ({"min_loss_scale": 2.0**25}, range_of_scales("3.35544e+07")),
    "a_max_scale_of_0": ({"max_loss_scale": 0.0}, range_of_scales("0.000976562", "0")),
    "a_max_scale_of_nan": ({"max_loss_scale": NAN}, range_of_scales("0.000976562", "nan")),
    "an_integer_model": ({"cast_model_type": torch.int64}, model_type("Long")),
    "a_complex_model": ({"cast_model_type": torch.complex64}, model_type("ComplexFloat")),
    "a_model_of_8_bits": ({"cast_model_type": torch.float8_e4m3fn}, model_type("Float8_e4m3fn")),
    "an_optimizer_of_another_model": (
        {"optimizers": [-1]},
        "ValueError: initialize: expected optimizers to have parameters of models, got none that "
        "has any; make the optimizer after everything that replaces the model's parameters",
    ),
    "one_of_two_optimizers_of_another_model": (
        {"optimizers": [0, -1]},
        "initialize: expected optimizers[1] to have parameters of models, got one that has none; "
        "pass all models that it trains",
    ),
    "autocast_at_O2": (
        {"patch_torch_functions": True},
        "RuntimeError: initialize: patch_torch_functions cannot be set at opt_level O2: only O1 "
        "and O4 cast op by op",
    ),
    **{
        f"float8_at_{level}": ({"level": level, "float8": True}, NO_FLOAT8 + level + why)
        for level, why in {
            "O0": ": its products are in float32: use O4 or O5",
            **dict.fromkeys(("O1", "O2", "O3"), HALF),
        }.items()
    },
    "float8_without_casts": (
        {"level": "O4", "float8": True, "patch_torch_functions": False},
        f"{NO_FLOAT8}O4: only products in bfloat16 are computed in it, and others are chosen",
    ),
    "float8_of_no_module": (
        {"level": "O5", "float8": ("part",)},
        f'{NO_MODULE} in the model, got "part"',
    ),
    "float8_of_odd_linears": (
        {"level": "O4", "parts": ("scalar", "linear"), "float8": ("parts",)},
        f'{NO_MODULE} with linears whose dimensions are multiples of 16, got "parts" with '
        '"parts.1" [2, 3]',
    ),
    "float8_of_small_linears": (
        {"level": "O5", "parts": ("linear",), "float8": True},
        "ValueError: initialize: expected linears for float8, of 1024 by 1024 or more in multiples "
        'of 16, neither the last of a model nor shared with an embedding, got "parts.0" [2, 3]; '
        "name the modules whose linears are to be in float8 at any size",
    ),
    **{
        f"a_float64_model_at_{level}": (
            {"level": level, "parts": ("wide", "linear")},
            A_FLOAT64_MODEL + what,
        )
        for level, what in {
            "O0": "it is rounded to float32, and a master of it to float32",
            "O1": "its ops are not cast to float16",
            "O2": "it is rounded to float16, and a master of it to float32",
        }.items()
    },
}

#: Options of fused optimizers, and what is expected instead; nothing is, if they are right.
OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    *(
        (kind, {option: value}, f"{option} to be at least 0, got {value:g}")
        for kind, options in {
            "FusedAdam": ("lr", "eps", "weight_decay"),
            "FusedAdamW": ("lr", "eps", "weight_decay"),
            "FusedSGD": ("lr", "momentum", "weight_decay"),
            "FusedNovoGrad": ("lr", "eps", "weight_decay"),
            "FusedLAMB": ("lr", "eps", "weight_decay", "max_grad_norm"),
        }.items()
        for option in options
        for value in (-1.0, NAN)
    ),
    *(
        (kind, {"betas": betas}, f"betas[{i}] to be in [0, 1), got {betas[i]:g}")
        for kind in ("FusedAdam", "FusedAdamW", "FusedNovoGrad", "FusedLAMB")
        for betas, i in (
            *[((-0.1, 0.9), 0), ((NAN, 0.9), 0), ((1.0, 0.9), 0)],
            *[((0.9, 1.0), 1), ((0.9, 99.9), 1), ((0.9, -1.0), 1)],
        )
    ),
    ("FusedSGD", {"dampening": NAN}, "dampening to be at least -inf, got nan"),
    *(
        (
            "FusedSGD",
            {"nesterov": True, "momentum": momentum, "dampening": dampening},
            "a positive momentum and no dampening with nesterov, got momentum "
            f"{momentum:g} and dampening {dampening:g}",
        )
        for momentum, dampening in ((0.0, 0.0), (0.9, 0.5))
    ),
    ("FusedSGD", {"momentum": 0.9, "dampening": -0.5}, ""),
]


def mistakes() -> Iterator[tuple[str, Mistake]]:
    """Every mistake above, by its name."""
    for level in LEVELS:
        for kind in ("SGD", "FusedAdam"):
            for name, mistake in in_training(level, kind):
                yield f"{name}-{level}-{kind}", mistake
    for name, (given, sentence) in SETUPS.items():
        yield f"initialize-{name}", in_setup(sentence, **given)
    for kind, options, words in OPTIONS:
        name = "-".join([kind, *map(str, options.items())])
        sentence = f"ValueError: {kind}: expected {words}" if words else ""
        yield name, in_setup(sentence, kind=kind, options=options)


def in_training(level: str, kind: str) -> Iterator[tuple[str, Mistake]]:
    one, two = [(kind, ALL)], [(kind, FIRST), (kind, LAST)]
    if level in MASTERS:
        tables = (one, OF_ONE_WITH_MASTERS), (two, OF_TWO_WITH_MASTERS)
    else:
        tables = (one, OF_ONE_WITHOUT_MASTERS), (two, OF_TWO_WITHOUT_MASTERS)
    for optimizers, table in ((one, OF_ONE), (two, OF_TWO), *tables):
        for name, told in table.items():
            events = [each for each in told if isinstance(each, Event)]
            done, like = (
                program(level, *optimizers, events=given, **OVERRIDES.get(name, FIXED))
                for given in (events, LIKE.get(name, []))
            )
            yield name, Mistake(done, by_event(told), like if name in LIKE else None)


def by_event(told: Told) -> list[list[str]]:
    """What is told of the setup, and of each event."""
    sentences: list[list[str]] = [[]]
    for each in told:
        if isinstance(each, Event):
            sentences.append([])
        else:
            sentences[-1].append(each)
    return sentences


def in_setup(
    sentence: str,
    level: str = "O2",
    parts: Sequence[str] = PARTS,
    kind: str = "SGD",
    options: dict[str, Any] | None = None,
    optimizers: Sequence[int] = (0,),
    **overrides: Any,
) -> Mistake:
    """optimizers: the parameter that each of them has."""
    given = {"lr": 0.05, **(options or {})}
    recipes = tuple(Recipe(kind, ((param,),), given) for param in optimizers)
    setup = Setup(level, tuple(parts), recipes, overrides)
    return Mistake(Program(setup, ()), [[sentence] if sentence else []])
