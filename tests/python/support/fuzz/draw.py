"""Programs that chance makes: a setup, and events that the mirror's rule determines."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from mirror.rule import Mirror
from mirror.state import CASTS, Param, Refused, Undetermined

from fuzz.calls import BATCHES, ISLANDS
from fuzz.events import Event, Program, Recipe, Setup
from fuzz.net import PARTS, Net

#: Options by optimizer, and their values; every optimizer has an lr.
COMMON = {"weight_decay": [0.0, 0.125], "maximize": [False, True]}
BETAS = {"betas": [(0.5, 0.75), (0.9, 0.99)]}
EPS = {"eps": [1e-3]}
MOMENTUM = {"momentum": [0.0, 0.5, 0.875]}
TENSOR_LR = {"tensor_lr": [False, False, True]}
LOOP = {"foreach": [None, True, False]}
IN_TORCH: dict[str, dict[str, list]] = {
    "SGD": {**COMMON, **MOMENTUM, "fused": [None, True]},
    "Adam": {**COMMON, **BETAS, **EPS, "amsgrad": [False, True], "fused": [None, True]},
    "AdamW": {**COMMON, **BETAS, **EPS, **LOOP, "amsgrad": [False, True]},
    "Adagrad": {**COMMON, **EPS, "lr_decay": [0.0, 0.125]},
    "Adadelta": {**COMMON, **EPS, **LOOP},
    "Adamax": {**COMMON, **BETAS, **EPS},
    "NAdam": {**COMMON, **BETAS, **EPS},
    "RAdam": {**COMMON, **BETAS, **EPS, **LOOP},
    "RMSprop": {**COMMON, **MOMENTUM, **EPS, "centered": [False, True]},
    "ASGD": {**COMMON},
    "OwnList": {},
    "Rprop": {"maximize": [False, True]},
}


def _adagrad_steps_added_params() -> bool:
    """Not in torch 2.10: it has no state of theirs."""
    first, added = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    optimizer = torch.optim.Adagrad([first])
    optimizer.add_param_group({"params": [added]})
    added.grad = torch.ones(1)
    try:
        optimizer.step()
    except KeyError:
        return False
    return True


IN_TORCHAMP: dict[str, dict[str, list]] = {
    "FusedSGD": {**COMMON, **MOMENTUM, **TENSOR_LR},
    "FusedAdam": {**COMMON, **BETAS, **EPS, **TENSOR_LR},
    "FusedAdamW": {**COMMON, **BETAS, **EPS, **TENSOR_LR},
    "FusedNovoGrad": {**COMMON, **BETAS, **EPS},
    "FusedLAMB": {**COMMON, **BETAS, **EPS},
}
if not _adagrad_steps_added_params():
    del IN_TORCH["Adagrad"]
#: What a backward may be told, how often, and the values.
FLAGS: dict[str, tuple[float, list]] = {
    "delayed": (0.15, [True]),
    "deferred": (0.1, [True]),
    "is_nan": (0.02, [True]),
    "twice": (0.05, [True]),
    "writes": (0.1, [True]),
    "zero_inside": (0.06, ["optimizer", "model"]),
    "batch": (0.1, [*BATCHES]),
    "island": (0.15, [*ISLANDS]),
    "ends": (0.12, ["empty", "raise", "scale_loss", "step"]),
}
#: Whether Python can assign a grad of another dtype than the parameter's.
TAKES_WIDE_GRADS = hasattr(torch.Tensor, "grad_dtype")
LENGTH = 30


def one_of(*values: Any) -> Callable[[Draw], Any]:
    return lambda draw: draw.chance.choice(values)


def mostly(draw: Draw) -> bool:
    return draw.chance.random() < 0.7


def some_params(share: float) -> Callable[[Draw], list[int]]:
    return lambda draw: draw.some(range(len(draw.mirror.params)), share)


class Draw:
    mirror_of: Callable[[Setup], Mirror] = Mirror
    flags = FLAGS
    lrs = (0.5, 0.1, 0.03)

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def program(self) -> Program:
        self.setup = self.draw_setup()
        self.mirror = type(self).mirror_of(self.setup)
        weights = [weight for weight, _ in self.grammar.values()]
        names = self.chance.choices(list(self.grammar), weights, k=LENGTH)
        return Program(self.setup, tuple(event for name in names for event in self.events(name)))

    def events(self, name: str) -> list[Event]:
        """One that the rule determines; none where three are not. Swapped weights are often swapped
        back at once."""
        for _ in range(3):
            try:
                event = Event(name, self.args(name))
                self.mirror.follow(event)
            except Undetermined:
                continue
            except Refused:
                pass
            ends = name == "swap" and self.chance.random() < 0.6
            return [event, *(self.events("swap_back") if ends else [])]
        return []

    def args(self, name: str) -> dict[str, Any]:
        drawn = self.grammar[name][1]
        return drawn(self) if callable(drawn) else {key: of(self) for key, of in drawn.items()}

    # ---- the setup

    def draw_setup(self) -> Setup:
        level = self.level()
        self.parts = self.draw_parts()
        self.count = len(list(Net(self.parts).parameters()))
        kept = range(self.count - 1)
        overrides = self.overrides(level)
        recipes = self.recipes_at(level, overrides, list(kept))
        frozen = [i for i in kept if self.chance.random() < 0.08]
        return Setup(level, self.parts, recipes, overrides, (*frozen, self.count - 1))

    def level(self) -> str:
        return self.chance.choice(["O0", "O1", "O2", "O2", "O2", "O3", "O4", "O5", "O5"])

    def recipes_at(self, level: str, overrides: dict, params: list[int]) -> tuple[Recipe, ...]:
        keeps_masters = overrides.get("master_weights", level != "O3")
        #: torch's own fused steps misread grads of another layout than the parameter, round 16 bits
        #: otherwise, and with momentum fail where a parameter's first grad comes late.
        self.is_plain = "sliced" in self.parts or not keeps_masters
        return self.recipes(params, may_share=not keeps_masters or level not in CASTS)

    def draw_parts(self) -> tuple[str, ...]:
        others = ["linear", "norm", "layer_norm", "scalar", "empty", "strided", "sliced"]
        return (*self.chance.sample(others, self.chance.randint(1, 4)), "extra")

    def overrides(self, level: str) -> dict[str, Any]:
        chosen: dict[str, Any] = {"num_losses": self.chance.randint(1, 3)}
        if self.chance.random() < 0.5:
            chosen["loss_scale"] = self.chance.choice(["dynamic", "dynamic", 128.0, 1.0])
        if self.chance.random() < 0.2 and level in ("O2", "O3", "O5"):
            chosen["keep_batchnorm_fp32"] = self.chance.choice([True, False])
        if self.chance.random() < 0.2 and level in ("O2", "O3", "O5"):
            chosen["master_weights"] = self.chance.choice([True, False])
        if self.chance.random() < 0.2:
            chosen["adopt_data_writes"] = True
        if self.chance.random() < 0.2:
            chosen["materialize_master_grads"] = False
        return chosen

    def recipes(self, params: list[int], may_share: bool = True) -> tuple[Recipe, ...]:
        """All of one make: fused and torch's step 16-bit parameters in other dtypes."""
        kinds = self.chance.choice([IN_TORCH, IN_TORCHAMP])
        split = self.distributed(params, may_share)
        return tuple(self.recipe(kinds, part) for part in split if part)

    def distributed(self, params: list[int], may_share: bool) -> list[list[int]]:
        """Which optimizer steps which; some are stepped by several, some by none."""
        count = self.chance.choice([1, 1, 2, 2, 3])
        shares = may_share and self.chance.random() < 0.4
        split: list[list[int]] = [[] for _ in range(count)]
        for i in params:
            users = (
                0 if self.chance.random() < 0.05 else 1 + (shares and self.chance.random() < 0.5)
            )
            for index in self.chance.sample(range(count), min(users, count)):
                split[index].append(i)
        return split if any(split) else [params]

    def recipe(self, kinds: dict[str, dict[str, list]], params: list[int]) -> Recipe:
        more = (
            ["FusedSGD"]
            if "FusedSGD" in kinds
            else ["SGD", *["OwnList"] * 3 * ("OwnList" in kinds)]
        )
        kind = self.chance.choice([*more, *kinds])
        options = {name: self.chance.choice(values) for name, values in kinds[kind].items()}
        options = {name: value for name, value in options.items() if value}
        if self.is_plain or "momentum" in options:
            options.pop("fused", None)
        options["lr"] = self.chance.choice(self.lrs)
        cut = self.chance.randrange(len(params))
        groups = (params[:cut], params[cut:]) if self.chance.random() < 0.3 else (params,)
        return Recipe(kind, tuple(tuple(group) for group in groups if group), options)

    # ---- what the arguments of events are drawn from

    def of(self) -> int:
        return self.chance.randrange(len(self.mirror.optimizers))

    def some_of(self) -> list[int]:
        """Mostly all optimizers."""
        everyone = list(range(len(self.mirror.optimizers)))
        if self.chance.random() < 0.5:
            return everyone
        return sorted(self.chance.sample(everyone, self.chance.randint(1, len(everyone))))

    def some_group(self, of: int) -> int:
        return self.chance.randrange(len(self.mirror.optimizers[of].groups))

    def param(self) -> int:
        return self.chance.randrange(len(self.mirror.params))

    def some(self, params: Sequence[int], share: float) -> list[int]:
        return [i for i in params if self.chance.random() < share]

    def numbers(self, params: list[Param]) -> list[int]:
        return [self.mirror.params.index(param) for param in params]

    def shown(self, params: list[int]) -> list[int]:
        return [i for i in params if self.mirror.params[i].is_shown]

    def free(self) -> list[int]:
        """What no optimizer steps."""
        params = enumerate(self.mirror.params)
        return [i for i, param in params if param.is_in_model and not param.users]

    def loss(self) -> int:
        return self.chance.randrange(self.mirror.setup.overrides["num_losses"])

    def seed(self) -> int:
        return self.chance.randrange(100)

    # ---- the arguments that depend on each other

    def backward(self) -> dict[str, Any]:
        of = self.some_of()
        given = {param for i in of for param in self.mirror.optimizers[i].params}
        strays = self.chance.random() < 0.03
        known = [
            i
            for i, param in enumerate(self.mirror.params)
            if param.is_in_model and (strays or param in given or not param.users)
        ]
        reach = self.some(known, self.chance.choice([1.0, 1.0, 0.5]))
        args = {"loss": self.loss(), "of": of, "reach": reach, "coefs": self.seed()}
        for flag, (share, values) in self.flags.items():
            if self.chance.random() < share:
                args[flag] = self.chance.choice(values)
        if self.chance.random() < 0.12 and reach:
            args["inf_in"] = self.chance.choice(reach)
        if self.chance.random() < 0.08:
            args["closure_of"] = self.chance.choice(of)
        if self.chance.random() < 0.08:
            args["masters_of"] = self.chance.choice([*of, self.of()])
            args["reach"] = reach if self.chance.random() < 0.7 else []
        return args

    def step(self) -> dict[str, Any]:
        of = self.of()
        if self.mirror.optimizers[of].is_bound and self.chance.random() < 0.5:
            return {"of": of, "given": (3, "x")}
        if self.chance.random() < 0.8:
            return {"of": of}
        params = self.numbers(self.mirror.optimizers[of].params)
        return {"of": of, "halves": self.some(self.shown(params), 0.5)}

    def clip_model(self) -> dict[str, Any]:
        params = self.numbers(self.mirror.in_model())
        chosen = params if self.chance.random() < 0.5 else self.shown(params)
        by, limit = self.chance.choice([("norm", 0.05), ("norm", 100.0), ("value", 2 / 64)])
        return {"params": chosen, "by": by, "limit": limit}

    def set(self) -> dict[str, Any]:
        of = self.of()
        name, value = self.chance.choice([("lr", 0.25), ("lr", 0.0625), ("weight_decay", 0.25)])
        if self.mirror.optimizers[of].recipe.kind == "Rprop":
            name, value = "maximize", True
        return {"of": of, "group": self.some_group(of), "name": name, "value": value}

    def state(self) -> dict[str, Any]:
        of = self.of()
        param = self.chance.choice(self.numbers(self.mirror.optimizers[of].params) or [0])
        how = self.chance.choice(["look", "halve", "halve", "delete", "clear"])
        return {"of": of, "param": param, "how": how}

    def group(self) -> dict[str, Any]:
        of = self.of()
        group = self.some_group(of)
        stepped = self.mirror.optimizers[of]
        kept = self.some(self.numbers(stepped.groups[group]), self.chance.choice([1.0, 0.7]))
        if self.chance.random() < 0.5:
            kept = [i for i in kept if self.mirror.params[i] not in stepped.overflow]
        how = self.chance.choice(["assign", "filter", "in_place"])
        params = kept + self.some(self.free(), 0.5)
        args: dict[str, Any] = {"of": of, "group": group, "params": params, "how": how}
        return {**args, "forgets": True} if self.chance.random() < 0.4 else args

    def added(self) -> list[int]:
        chosen = self.some(self.free(), 0.6)
        return chosen if self.chance.random() < 0.9 else [self.param()]

    def pop_group(self) -> dict[str, Any]:
        of = self.of()
        return {"of": of, "group": self.some_group(of)}

    def module(self) -> dict[str, Any]:
        part = self.chance.choice([part for part in PARTS if part not in ("sliced", "wide")])
        args: dict[str, Any] = {"part": part, "seed": self.seed()}
        if self.mirror.setup.level in CASTS and self.chance.random() < 0.7:
            args["narrow"] = True
        if len(self.mirror.parts) > 1 and self.chance.random() < 0.5:
            args["at"] = self.chance.randrange(1, len(self.mirror.parts))
        return args

    def phase(self) -> dict[str, Any]:
        """Often with the same optimizers."""
        if self.chance.random() < 0.4:
            overrides = {**self.mirror.setup.overrides, "num_losses": self.chance.randint(1, 3)}
            return {"level": self.mirror.setup.level, "optimizers": (), "overrides": overrides}
        level = self.level()
        overrides = self.overrides(level)
        params = self.numbers(self.mirror.in_model())
        recipes = self.recipes_at(level, overrides, params)
        return {"level": level, "optimizers": recipes, "overrides": overrides}

    param_and_seed = {"param": param, "seed": seed}
    #: By event: how often it is drawn, and its arguments, each by itself or all by a function.
    grammar: dict[str, tuple[float, Any]] = {
        "backward": (12, backward),
        "step": (8, step),
        "bind": (0.3, {"of": of, "how": one_of("method", "partial")}),
        "own": (2.0, {"of": of, "how": one_of("shrink", "damp", "count")}),
        "stranger": (0.3, {"of": of}),
        "zero": (3, {"of": of, "to_none": mostly}),
        "zero_model": (1, {"to_none": mostly}),
        "drop_grads": (0.3, {"params": some_params(0.5)}),
        "clip_norm": (0.7, {"of": some_of, "max_norm": one_of(0.05, 0.05, 100.0)}),
        "clip_value": (0.7, {"of": some_of, "value": one_of(2 / 64, 4 / 64)}),
        "clip_model": (1.0, clip_model),
        "edit": (0.7, {"of": of, "how": one_of("negate", "fill")}),
        "look": (0.4, {"of": of}),
        "write": (0.4, param_and_seed),
        "halve": (0.3, {"param": param}),
        "swap": (0.6, {"params": some_params(0.7), "seed": seed}),
        "swap_back": (0.5, {}),
        "write_data": (0.3, param_and_seed),
        "write_float32": (0.5, {"params": some_params(0.7)}),
        "freeze": (0.4, {"param": param}),
        "thaw": (0.5, {"param": param}),
        "set": (0.6, set),
        "scale": (
            0.6,
            {
                "loss": loss,
                "value": one_of(*(2.0**i for i in range(4, 11))),
                "clean": one_of(0, 1998, 1999),
            },
        ),
        "assign": (0.6, {**param_and_seed, "wide": one_of(TAKES_WIDE_GRADS, False, False)}),
        "edit_grad": (0.9, {"param": param, "how": one_of("negate", "fill", "data")}),
        "state": (1.0, state),
        "group": (1.0, group),
        "steal": (0.2, {"of": of, "param": param}),
        "add_group": (0.5, {"of": of, "params": added}),
        "pop_group": (0.6, pop_group),
        "push_group": (1.0, {"of": of}),
        "write_masters": (0.4, {"of": of}),
        "save": (0.4, {}),
        "load": (2.0, {}),
        "snapshot": (0.3, {}),
        "restore": (2.0, {}),
        "copy": (0.1, {}),
        "module": (0.4, module),
        "phase": (0.2, phase),
    }
