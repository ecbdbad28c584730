"""Programs of both languages that chance makes, also where the rule determines nothing."""

from __future__ import annotations

from typing import Any

import torch
from fuzz.draw import FLAGS, TAKES_WIDE_GRADS, Draw, one_of
from fuzz.events import Event, Program, Recipe, Setup
from mirror.rule import Mirror
from mirror.state import CASTS, keeps_masters, require

#: What C++ has not, or notices later.
ONLY_PYTHON = {
    *("snapshot", "restore", "copy", "module", "steal", "write_masters", "assign"),
    *("group", "pop_group", "push_group", "bind", "own", "stranger"),
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
#: How grads are edited; not all of Python can replace those of another dtype.
EDITS = ["negate", "data", *["replace"] * TAKES_WIDE_GRADS]
#: Options that choose an algorithm.
CHANGES = {
    "FusedSGD": ("momentum", [0.0, 0.5]),
    "SGD": ("momentum", [0.0, 0.5]),
}


class Shape(Mirror):
    """What both languages do alike. It follows groups and phases alone: all else is determined."""

    has_saved = False

    def follow(self, event: Event) -> None:
        name, args, overrides = event.name, event.args, self.setup.overrides
        is_amps = self.setup.level != "O0" or overrides.get("loss_scale", 1.0) != 1.0
        require(name != "clip_norm" or is_amps, "the language's own clipping")
        is_counted = "data" not in (args.get("by"), args.get("how"))
        is_lazy = overrides.get("materialize_master_grads") is False
        require(is_counted or not is_lazy, "scaled grads")
        require(name != "scale" or self.is_dynamic, "a fixed scale")
        require(name != "load" or self.has_saved, "nothing saved")
        self.has_saved |= name == "save"
        if name == "add_group":
            kind = self.optimizers[args["of"]].recipe.kind
            require(kind != "Adagrad", "a state that is not made")
        if name in ("add_group", "phase"):
            event.by(self)

    def check_going_on(self, setup: Setup) -> None:
        """At another level too."""
        is_narrow = setup.level in CASTS and not keeps_masters(setup)
        kinds = {stepped.recipe.kind for stepped in self.optimizers}
        require(not (is_narrow and kinds & set(LIBTORCH)), "states of 16 bits")
        is_shared = any(len(param.users) > 1 for param in self.params)
        require(not (is_shared and setup.level in CASTS), "masters of several")


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
    lrs = (0.05, 0.01)
    flags = {
        **FLAGS,
        **dict.fromkeys(("batch", "island", "writes"), (0, [None])),
        "zero_inside": (0.06, ["optimizer"]),
        "layers": (0.5, ["entropy", "entropy", "square", "inner"]),
        "is_tiny": (0.04, [True]),
    }

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
        if "layers" in args:
            args["reach"] = self.some(args["reach"], 0.2)
            if self.chance.random() < 0.06:
                args.pop("ends", None), args.update(self.chance.choice(ENDS))
        if self.storms and args["reach"] and self.chance.random() < 0.5:
            args["inf_in"] = self.chance.choice(args["reach"])
        if "closure_of" in args:
            args.pop("ends", None), args.pop("late", None)
        if "masters_of" in args:
            args["masters_of"] = self.chance.choice(args["of"])
            args.pop("delayed", None)
        kinds = {stepped.recipe.kind for stepped in self.mirror.optimizers}
        if not self.mirror.is_dynamic and {"Adam", "AdamW"} & kinds:
            args.pop("inf_in", None), args.pop("is_nan", None)
        return args

    def every_param(self) -> list[int]:
        return list(range(len(self.mirror.params)))

    def set(self) -> dict[str, Any]:
        args = super().set()
        name, values = CHANGES.get(self.kind(args["of"]), ("lr", [0.01, 0.03]))
        return {**args, "name": name, "value": self.chance.choice(values)}

    def state(self) -> dict[str, Any]:
        args = super().state()
        is_made_first = self.kind(args["of"]) in ("Adagrad", *FUSED)
        return {**args, "how": "halve" if is_made_first else self.chance.choice(["halve", "clear"])}

    def phase(self) -> dict[str, Any]:
        args = super().phase()
        if args["optimizers"]:
            return args
        level = self.level()
        return {**args, "level": level, "overrides": self.overrides(level)}

    grammar = {
        **{name: drawn for name, drawn in Draw.grammar.items() if name not in ONLY_PYTHON},
        "backward": (12, backward),
        "step": (8, {"of": Draw.of}),
        "swap_back": (0, {}),
        "zero_model": (1, {}),
        #: By LibTorch's function, whose writes PyTorch does not count.
        "clip_model": (1.0, {"params": every_param, "by": one_of("data"), "limit": one_of(1 / 64)}),
        "write_data": (1, Draw.grammar["write_data"][1]),
        "set": (0.6, set),
        "edit_grad": (0.9, {"param": Draw.param, "how": one_of(*EDITS)}),
        "state": (1.0, state),
        "load": (0.4, {}),
        "phase": (0.3, phase),
    }


class OverflowingDraw(LanguagesDraw):
    """Draws programs with a dynamic scale, which skips whatever is not finite. Losses overflow that
    reach parameters of optimizers that their scale_loss is not given, and steps, clipping and
    zeroing follow in any order."""

    def overrides(self, level: str) -> dict[str, Any]:
        return {**super().overrides(level), "loss_scale": "dynamic"}

    def backward(self) -> dict[str, Any]:
        args = super().backward()
        if self.chance.random() < 0.3:
            args["of"] = [self.of()]
        if self.chance.random() < 0.5:
            args["reach"] = self.some(self.every_param(), 0.3)
        if self.chance.random() < 0.3 and args["reach"]:
            args["inf_in"] = self.chance.choice(args["reach"])
        return args

    grammar = {
        **LanguagesDraw.grammar,
        "backward": (12, backward),
        "clip_norm": (3, Draw.grammar["clip_norm"][1]),
        "clip_value": (2, Draw.grammar["clip_value"][1]),
        **dict.fromkeys(("edit", "edit_grad", "clip_model"), (0, {})),
    }
