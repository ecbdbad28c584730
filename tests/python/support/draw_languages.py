"""Programs of both languages that chance makes, also where the rule determines nothing."""

from __future__ import annotations

from typing import Any

import torch
from draw_structure import TAKES_WIDE_GRADS
from fuzz_draw import WEIGHTS, Draw
from fuzz_events import Event, Program, Recipe, Setup
from mirror import Mirror
from mirror_state import CASTS, initialize, keeps_masters, require

#: What C++ has not, or notices later.
ONLY_PYTHON = ("snapshot", "restore", "copy", "module", "steal", "write_masters", "assign")
GROUPS = ("group", "pop_group", "push_group")
#: How often an event is drawn.
LANGUAGES = {
    **WEIGHTS,
    **dict.fromkeys((*ONLY_PYTHON, *GROUPS, "swap_back"), 0),
    "load": 0.4,
    "write_data": 1,
    "phase": 0.3,
}
#: How a backward ends, beside what the mirror follows.
ENDS = ({"ends": "hook"}, {"late": True}, {"ends": "unscaled"})
LIBTORCH: dict[str, dict[str, list]] = {
    "SGD": {"momentum": [0.0, 0.875]},
    #: LibTorch rounds beta1's average in another order than torch does, unless beta1 is 0.
    "Adam": {"betas": [(0.0, 0.75)], "amsgrad": [False, True]},
    "AdamW": {"betas": [(0.0, 0.75)]},
    "Adagrad": {"lr_decay": [0.0, 0.125]},
    "RMSprop": {"momentum": [0.0, 0.5]},
}
STORAGE = {"state_dtype": [None] * 9 + [torch.bfloat16]}
FUSED: dict[str, dict[str, list]] = {
    "FusedSGD": {**STORAGE, "momentum": [0.0, 0.875]},
    **dict.fromkeys(("FusedAdam", "FusedAdamW", "FusedNovoGrad", "FusedLAMB"), STORAGE),
}
#: Options that choose an algorithm.
CHANGES = {
    "FusedSGD": ("momentum", [0.0, 0.5]),
    "SGD": ("momentum", [0.0, 0.5]),
}


class Shape(Mirror):
    """Follows groups and phases alone: all else is determined."""

    def follow(self, event: Event) -> None:
        if event.name in ("add_group", "phase"):
            getattr(self, event.name)(**event.args)

    def kinds(self) -> set[str]:
        return {stepped.recipe.kind for stepped in self.optimizers}

    def go_on(self, setup: Setup) -> None:
        """At another level too."""
        is_narrow = setup.level in CASTS and not keeps_masters(setup)
        require(not (is_narrow and self.kinds() & set(LIBTORCH)), "states of 16 bits")
        is_shared = any(len(param.users) > 1 for param in self.params)
        require(not (is_shared and setup.level in CASTS), "masters of several")
        for param in self.params:
            param.release()
            initialize(setup, param, [stepped.recipe for stepped in param.users])
        self.begin(setup)


class LanguagesDraw(Draw):
    """None of these, by which LibTorch's optimizers differ from torch's:

    - They step 16-bit parameters without masters by states in float32, torch's by 16-bit ones, and
      round otherwise. Only SGD does the same, unless it has stepped in float32 before.
    - Adam's averages of infinities are others than torch's.
    - Adagrad cannot step what is added to it, and makes states before the first step, as fused ones
      do.
    - LibTorch's clipping by norm, which is amp's at O0 without a loss scale, rounds otherwise.
    """

    mirror_of = Shape
    weights = LANGUAGES
    lrs = (0.05, 0.01)
    has_saved = False

    def program(self) -> Program:
        self.storms = self.chance.random() < 0.15
        return super().program()

    def events(self, name: str) -> list[Event]:
        """Weights are swapped back at once: the first backward in C++ takes over what was written
        before, and a look at what was zeroed. Closures find nothing that Python refuses before
        them, and C++ after."""
        events = super().events(name)
        if events and name == "zero_model":
            return events + [Event("look", {"of": i}) for i in range(len(self.mirror.optimizers))]
        if events and name == "swap":
            return [events[0], Event("swap_back")]
        of = events[0].args.get("closure_of") if events else None
        return events if of is None else [Event("zero", {"of": of}), *events]

    # ---- the setup

    def draw_parts(self) -> tuple[str, ...]:
        others = ["scalar", "empty", "strided", "sliced"]
        chosen = self.chance.sample(others, self.chance.randint(0, 3))
        return (*chosen, "layer_norm", "norm", "linear", "extra")

    def overrides(self, level: str) -> dict[str, Any]:
        chosen = super().overrides(level)
        limits = {"max_consecutive_skips": 2, "min_loss_scale": 64.0, "max_loss_scale": 2048.0}
        drawn = {name: value for name, value in limits.items() if self.chance.random() < 0.1}
        return {**chosen, **drawn, **({"max_consecutive_skips": 2} if self.storms else {})}

    def recipes_at(self, level: str, overrides: dict, params: list[int]) -> tuple[Recipe, ...]:
        self.is_narrow = level in CASTS and not overrides.get("master_weights", level != "O3")
        return super().recipes_at(level, overrides, params)

    def recipes(self, params: list[int], may_share: bool = True) -> tuple[Recipe, ...]:
        libtorch = {"SGD": LIBTORCH["SGD"]} if self.is_narrow else LIBTORCH
        kinds = self.chance.choice([libtorch, FUSED, {**libtorch, **FUSED}])
        split = self.distributed(params, may_share and len(kinds) <= len(FUSED))
        return tuple(self.recipe(kinds, part) for part in split if part)

    # ---- the arguments of events

    def kind(self, of: int) -> str:
        return self.mirror.optimizers[of].recipe.kind

    def backward(self) -> dict[str, Any]:
        args = super().backward()
        if args.get("zero_inside") == "model":
            args["zero_inside"] = "optimizer"
        for name in ("batch", "island", "writes"):
            args.pop(name, None)
        if self.chance.random() < 0.5:
            args["layers"] = self.chance.choice(["entropy", "entropy", "square", "inner"])
            args["reach"] = self.some(args["reach"], 0.2)
        if self.storms and args["reach"] and self.chance.random() < 0.5:
            args["inf_in"] = self.chance.choice(args["reach"])
        if self.chance.random() < 0.04:
            args["is_tiny"] = True
        if self.chance.random() < 0.06 and "layers" in args:
            args.pop("ends", None), args.update(self.chance.choice(ENDS))
        if "closure_of" in args:
            args.pop("ends", None), args.pop("late", None)
        if "masters_of" in args:
            args["masters_of"] = self.chance.choice(args["of"])
            args.pop("delayed", None)
        if not self.mirror.is_dynamic and {"Adam", "AdamW"} & {
            *map(self.kind, range(len(self.mirror.optimizers)))
        }:
            args.pop("inf_in", None), args.pop("is_nan", None)
        return args

    def step(self) -> dict[str, Any]:
        return {"of": self.of()}

    def zero_model(self) -> dict[str, Any]:
        return {}

    def clip_norm(self) -> dict[str, Any]:
        setup = self.mirror.setup
        is_scaled = setup.overrides.get("loss_scale", 1.0) != 1.0
        require(setup.level != "O0" or is_scaled, "the language's own clipping")
        return super().clip_norm()

    def clip_model(self) -> dict[str, Any]:
        """By LibTorch's function, whose writes PyTorch does not count."""
        require(not self.is_lazy(), "scaled grads")
        params = self.numbers(self.mirror.params)
        return {"params": params, "by": "data", "limit": 1 / 64}

    def edit_grad(self) -> dict[str, Any]:
        args = {**super().edit_grad(), "how": self.chance.choice(["negate", "data", "replace"])}
        require(args["how"] != "data" or not self.is_lazy(), "scaled grads")
        require(args["how"] != "replace" or TAKES_WIDE_GRADS, "a grad of another dtype")
        return args

    def is_lazy(self) -> bool:
        return self.mirror.setup.overrides.get("materialize_master_grads") is False

    def scale(self) -> dict[str, Any]:
        require(self.mirror.is_dynamic, "a fixed scale")
        return super().scale()

    def set(self) -> dict[str, Any]:
        args = super().set()
        name, values = CHANGES.get(self.kind(args["of"]), ("lr", [0.01, 0.03]))
        return {**args, "name": name, "value": self.chance.choice(values)}

    def state(self) -> dict[str, Any]:
        args = super().state()
        is_made_first = self.kind(args["of"]) in ("Adagrad", *FUSED)
        how = "halve" if is_made_first else self.chance.choice(["halve", "clear"])
        return {**args, "how": how}

    def add_group(self) -> dict[str, Any]:
        args = super().add_group()
        require(self.kind(args["of"]) != "Adagrad", "a state that is not made")
        return args

    def save(self) -> dict[str, Any]:
        self.has_saved = True
        return {}

    def load(self) -> dict[str, Any]:
        require(self.has_saved, "nothing saved")
        return {}

    def phase(self) -> dict[str, Any]:
        args = super().phase()
        level = self.level()
        return (
            args
            if args["optimizers"]
            else {**args, "level": level, "overrides": self.overrides(level)}
        )
