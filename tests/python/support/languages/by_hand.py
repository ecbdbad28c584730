"""Programs that both languages run, at every level and for several optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuzz.events import Event, Program, Recipe, Setup

LEVELS = ("O0", "O1", "O2", "O3", "O4", "O5")
#: The last parameter is frozen, and the last two before it are the linear layer's.
PARTS = ("scalar", "sliced", "layer_norm", "norm", "linear", "extra")
INNER, LAST, EXTRA = (2, 3, 4, 5), (6, 7), 8
OPTIONS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.875},
    "FusedSGD": {"momentum": 0.875},
    "AdamW": {"betas": (0.0, 0.75)},
}


def program(
    level: str, *optimizers: tuple[str, tuple[int, ...]], events: list[Event], **overrides: Any
) -> Program:
    recipes = tuple(
        Recipe(kind, (params,), {**OPTIONS.get(kind, {}), "lr": 0.05})
        for kind, params in optimizers
    )
    given = {"loss_scale": "dynamic", "num_losses": 2, **overrides}
    return Program(Setup(level, PARTS, recipes, given, frozen=(EXTRA,)), tuple(events))


def backward(seed: int, *of: int, loss: int = 0, **flags: Any) -> Event:
    """Of the layers, unless it reaches parameters alone; of the first optimizer, unless it is given
    others."""
    layers = None if "reach" in flags else ("entropy", "square")[loss]
    reached = {"reach": [], "layers": layers, **flags}
    return Event("backward", {"loss": loss, "of": list(of or [0]), "coefs": seed, **reached})


def overflow(seed: int, *of: int, at: int = LAST[1], **flags: Any) -> Event:
    return backward(seed, *of, **{"reach": [at], "inf_in": at, "layers": "entropy", **flags})


def step(of: int = 0) -> Event:
    return Event("step", {"of": of})


def zero(of: int = 0, to_none: bool = True) -> Event:
    return Event("zero", {"of": of, "to_none": to_none})


def clip_norm(*of: int, max_norm: float = 0.5) -> Event:
    return Event("clip_norm", {"of": list(of), "max_norm": max_norm})


def scale(loss: int, value: float, clean: int) -> Event:
    return Event("scale", {"loss": loss, "value": value, "clean": clean})


def change(name: str, value: Any, of: int = 0) -> Event:
    return Event("set", {"of": of, "group": 0, "name": name, "value": value})


CLIP_VALUE = Event("clip_value", {"of": [0], "value": 1.0})
LOOK = Event("look", {"of": 0})
SAVE, LOAD = Event("save"), Event("load")

#: What one optimizer, of all layers, goes through at any level.
OF_ONE = {
    "a_look_after_a_skip": [overflow(1), step(), LOOK, step()],
    "a_look_at_delayed_grads": [
        *[backward(1), backward(2, delayed=True), LOOK],
        *[backward(3), step()],
    ],
    "zeros_of_nothing": [
        *[backward(1), step(), zero()],
        *[overflow(2), zero(), zero(to_none=False), step()],
    ],
    "zeros_after_an_overflow": [
        *[backward(1), step(), zero()],
        *[overflow(2), zero(to_none=False), step()],
    ],
    "delays": [
        *[backward(1, delayed=True), backward(2, delayed=True)],
        *[step(), clip_norm(0), CLIP_VALUE],
        *[backward(3), step()],
        *[backward(4, loss=1, delayed=True), backward(5, delayed=True)],
        *[backward(6, loss=1), step()],
        *[backward(7, delayed=True), zero(), step()],
    ],
    "overflows": [
        *[backward(1), step(), zero(), overflow(2), step()],
        *[backward(3), step(), zero()],
        *[overflow(4, delayed=True), backward(5, delayed=True), backward(6), step(), zero()],
        *[overflow(7, deferred=True), step(), zero(), backward(8), step()],
    ],
    "two_losses": [
        *[scale(0, 1024.0, 1999), scale(1, 64.0, 1998)],
        *[backward(1), backward(2, loss=1), step(), zero()],
        *[overflow(3, loss=1), step(), zero()],
        *[backward(4, loss=1), backward(5), step(), zero()],
    ],
    "back_to_a_file": [
        *[backward(1), step(), SAVE, zero()],
        *[overflow(2), step(), zero(), backward(3), step()],
        *[LOAD, zero(), backward(2), step()],
    ],
}

#: What two optimizers go through that share the last layer, where it has no master.
OF_TWO_THAT_SHARE = {
    "shared_in_one": [backward(1, 0, 1), step()],
    "skipped_beside_a_delay": [
        overflow(1, 1, layers=None),
        backward(2, 0, reach=[2, 3], delayed=True),
        *[step(1), step(0)],
        *[backward(3, 0, reach=[2, 3]), step(0)],
    ],
    "the_second_goes_on": [
        *[overflow(1, 0), step(1), zero(1)],
        *[backward(2, 1, reach=[*LAST]), step(1)],
    ],
}

#: Two optimizers of different layers, one of which is to skip.
OF_TWO = {
    "a_model_zeroed_after_an_overflow_elsewhere": [
        overflow(1, 0, 1, layers=None),
        *[Event("zero_model"), step(0), step(1)],
    ],
    "zeroed_without_grads_after_an_overflow": [
        *[overflow(1, 0, 1, layers=None), zero(0), backward(2, 0), step(0)],
    ],
    "clipped_beside_an_overflowed_one": [
        *[overflow(1, 0, 1), clip_norm(0), step(0), step(1)],
    ],
    "clipped_with_an_overflowed_one": [
        *[overflow(1, 0, 1), step(0), backward(2, 0, 1)],
        *[clip_norm(0, 1, max_norm=0.1), step(0), step(1)],
    ],
}

#: The events that must raise, by the program's name.
REFUSED = {"delays": [2, 3, 4], "shared_in_one": [0], "skipped_beside_a_delay": [3]}
REFUSED["deferral_after_a_load"] = [7]

#: An option that chooses an optimizer's algorithm, and its values in turn.
CHANGES: dict[str, tuple[str, list]] = {
    "FusedSGD": ("momentum", [0.0, 0.5, 0.0, 0.875]),
    "SGD": ("momentum", [0.0, 0.5, 0.0, 0.875]),
}


def changed_algorithm(kind: str) -> list[Event]:
    """A step and a skipped one by each of the values."""
    option, values = CHANGES[kind]
    steps = [
        [change(option, value), zero(), backward(i), step(), zero(), overflow(i), step()]
        for i, value in enumerate(values)
    ]
    return sum(steps, [])


def simple_loop(is_scaled: bool) -> list[Event]:
    """Steps by accumulated, clipped grads, at first by a loss scale too high for float16."""
    events = [scale(0, 2.0**17, 0)] * is_scaled
    for seed in range(3):
        events += [zero(), backward(seed), backward(10 + seed), clip_norm(0), step()]
    return events


def nan_at_a_fixed_scale(level: str, kind: str, *events: Event, **overrides: Any) -> Program:
    """NaNs reach the states, also of a parameter without dimensions."""
    first = [backward(1, reach=[0, 1], layers="entropy", is_nan=True), step()]
    recipe = (kind, (0, 1, *INNER, *LAST))
    return program(level, recipe, events=[*first, *events], loss_scale=1.0, **overrides)


def deferral_after_a_load(level: str) -> Program:
    """Grads that wait for the step in the model must not be written meanwhile."""
    events = [backward(1), step(), SAVE, LOAD, zero(), backward(2)]
    events += [Event("edit_grad", {"param": INNER[0], "how": "negate"}), step()]
    recipe = ("FusedSGD", INNER + LAST)
    return program(level, recipe, events=events, materialize_master_grads=False)


def programs() -> Iterator[tuple[str, Program]]:
    """Every program above, by its name."""
    for kind in ("SGD", "AdamW", "FusedSGD", "FusedAdamW"):
        yield f"loaded_after_nan-O0-{kind}", nan_at_a_fixed_scale("O0", kind, SAVE, LOAD)
    for level in ("O2", "O5"):
        yield f"deferral_after_a_load-{level}", deferral_after_a_load(level)
    for level in ("O2", "O3", "O5"):
        again = {"level": level, "optimizers": (), "overrides": {}}
        yield (
            f"released_after_nan-{level}",
            nan_at_a_fixed_scale(
                level, "FusedNovoGrad", Event("phase", again), master_weights=False
            ),
        )
    for level in LEVELS:
        yield from programs_at(level)


def programs_at(level: str) -> Iterator[tuple[str, Program]]:
    is_scaled = level in ("O1", "O2")
    fused = ("SGD", "Adam", "AdamW", "NovoGrad", "LAMB")
    for kind in ("SGD", *(f"Fused{kind}" for kind in fused)):
        loss_scale = "dynamic" if is_scaled else 1.0
        events = simple_loop(is_scaled)
        loop = program(level, (kind, INNER + LAST), events=events, loss_scale=loss_scale)
        yield f"simple_loop-{level}-{kind}", loop
    for kind in ("SGD", "FusedSGD"):
        for name, events in {"changed_algorithm": changed_algorithm(kind), **OF_ONE}.items():
            yield f"{name}-{level}-{kind}", program(level, (kind, INNER + LAST), events=events)
    for one, other in (("SGD", "SGD"), ("FusedSGD", "FusedAdam")):
        for name, events in (
            OF_TWO if level in ("O2", "O5") else {**OF_TWO, **OF_TWO_THAT_SHARE}
        ).items():
            params = INNER + LAST if name in OF_TWO_THAT_SHARE else INNER
            both = (one, params), (other, LAST)
            yield f"{name}-{level}-{one}-{other}", program(level, *both, events=events)
