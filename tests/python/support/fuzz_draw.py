"""Programs that chance makes: a setup, and events that the mirror's rule determines."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from draw_structure import StructureDraw
from fuzz_calls import BATCHES, ISLANDS
from fuzz_events import Event, Net, Program, Recipe, Setup
from mirror import Mirror
from mirror_state import CASTS, Refused, Undetermined

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
#: How often an event is drawn.
WEIGHTS = {
    "backward": 12,
    "step": 8,
    "zero": 3,
    "zero_model": 1,
    "drop_grads": 0.3,
    "clip_norm": 0.7,
    "clip_value": 0.7,
    "clip_model": 1.0,
    "edit": 0.7,
    "look": 0.4,
    "write": 0.4,
    "halve": 0.3,
    "swap": 0.6,
    "swap_back": 0.5,
    "write_data": 0.3,
    "freeze": 0.4,
    "thaw": 0.5,
    "set": 0.6,
    "scale": 0.6,
    "assign": 0.6,
    "edit_grad": 0.9,
    "state": 1.0,
    "group": 1.0,
    "steal": 0.2,
    "add_group": 0.5,
    "pop_group": 0.6,
    "push_group": 1.0,
    "write_masters": 0.4,
    "save": 0.4,
    "load": 2.0,
    "snapshot": 0.3,
    "restore": 2.0,
    "copy": 0.1,
    "module": 0.4,
    "phase": 0.2,
}
FLAGS = {"delayed": 0.15, "deferred": 0.1, "is_nan": 0.02, "twice": 0.05, "writes": 0.1}
LENGTH = 30


class Draw(StructureDraw):
    mirror_of: Callable[[Setup], Mirror] = Mirror
    weights = WEIGHTS
    lrs = (0.5, 0.1, 0.03)

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def program(self) -> Program:
        self.setup = self.draw_setup()
        self.mirror = type(self).mirror_of(self.setup)
        names = self.chance.choices(list(self.weights), list(self.weights.values()), k=LENGTH)
        return Program(self.setup, tuple(event for name in names for event in self.events(name)))

    def events(self, name: str) -> list[Event]:
        """One that the rule determines; none where three are not. Swapped weights are often swapped
        back at once."""
        for _ in range(3):
            try:
                event = Event(name, getattr(self, name)())
                self.mirror.follow(event)
            except Undetermined:
                continue
            except Refused:
                pass
            ends = name == "swap" and self.chance.random() < 0.6
            return [event, *(self.events("swap_back") if ends else [])]
        return []

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
        kind = self.chance.choice(["FusedSGD", *kinds] if "FusedSGD" in kinds else ["SGD", *kinds])
        options = {name: self.chance.choice(values) for name, values in kinds[kind].items()}
        options = {name: value for name, value in options.items() if value}
        if self.is_plain or "momentum" in options:
            options.pop("fused", None)
        options["lr"] = self.chance.choice(self.lrs)
        cut = self.chance.randrange(len(params))
        groups = (params[:cut], params[cut:]) if self.chance.random() < 0.3 else (params,)
        return Recipe(kind, tuple(tuple(group) for group in groups if group), options)

    # ---- the arguments of events

    def of(self) -> int:
        return self.chance.randrange(len(self.mirror.optimizers))

    def some_of(self) -> list[int]:
        """Mostly all optimizers."""
        everyone = list(range(len(self.mirror.optimizers)))
        if self.chance.random() < 0.5:
            return everyone
        return sorted(self.chance.sample(everyone, self.chance.randint(1, len(everyone))))

    def some(self, params: list[int], share: float) -> list[int]:
        return [i for i in params if self.chance.random() < share]

    def param(self) -> int:
        return self.chance.randrange(len(self.mirror.params))

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
        args.update({flag: True for flag, share in FLAGS.items() if self.chance.random() < share})
        if self.chance.random() < 0.12 and reach:
            args["inf_in"] = self.chance.choice(reach)
        if self.chance.random() < 0.06:
            args["zero_inside"] = self.chance.choice(["optimizer", "model"])
        if self.chance.random() < 0.1:
            args["batch"] = self.chance.choice(list(BATCHES))
        if self.chance.random() < 0.15:
            args["island"] = self.chance.choice(list(ISLANDS))
        if self.chance.random() < 0.12:
            args["ends"] = self.chance.choice(["empty", "raise", "scale_loss", "step"])
        if self.chance.random() < 0.08:
            args["closure_of"] = self.chance.choice(of)
        if self.chance.random() < 0.08:
            args["masters_of"] = self.chance.choice([*of, self.of()])
            args["reach"] = reach if self.chance.random() < 0.7 else []
        return args

    def loss(self) -> int:
        return self.chance.randrange(self.mirror.setup.overrides["num_losses"])

    def seed(self) -> int:
        return self.chance.randrange(100)

    def step(self) -> dict[str, Any]:
        of = self.of()
        if self.chance.random() < 0.8:
            return {"of": of}
        params = self.numbers(self.mirror.optimizers[of].params)
        return {"of": of, "halves": self.some(self.shown(params), 0.5)}

    def shown(self, params: list[int]) -> list[int]:
        return [i for i in params if self.mirror.params[i].is_shown]

    def zero(self) -> dict[str, Any]:
        return {"of": self.of(), "to_none": self.chance.random() < 0.7}

    def zero_model(self) -> dict[str, Any]:
        return {"to_none": self.chance.random() < 0.7}

    def drop_grads(self) -> dict[str, Any]:
        return {"params": self.some(list(range(len(self.mirror.params))), 0.5)}

    def clip_norm(self) -> dict[str, Any]:
        return {"of": self.some_of(), "max_norm": self.chance.choice([0.05, 0.05, 100.0])}

    def clip_value(self) -> dict[str, Any]:
        return {"of": self.some_of(), "value": self.chance.choice([2, 4]) / 64}

    def clip_model(self) -> dict[str, Any]:
        params = self.numbers(self.mirror.in_model())
        chosen = params if self.chance.random() < 0.5 else self.shown(params)
        by, limit = self.chance.choice([("norm", 0.05), ("norm", 100.0), ("value", 2 / 64)])
        return {"params": chosen, "by": by, "limit": limit}

    def edit(self) -> dict[str, Any]:
        return {"of": self.of(), "how": self.chance.choice(["negate", "fill"])}

    def look(self) -> dict[str, Any]:
        return {"of": self.of()}

    def write(self) -> dict[str, Any]:
        return {"param": self.param(), "seed": self.seed()}

    def write_data(self) -> dict[str, Any]:
        return {"param": self.param(), "seed": self.seed()}

    def swap(self) -> dict[str, Any]:
        return {"params": self.some(list(range(len(self.mirror.params))), 0.7), "seed": self.seed()}

    def halve(self) -> dict[str, Any]:
        return {"param": self.param()}

    def freeze(self) -> dict[str, Any]:
        return {"param": self.param()}

    def thaw(self) -> dict[str, Any]:
        return {"param": self.param()}

    def set(self) -> dict[str, Any]:
        of = self.of()
        group = self.chance.randrange(len(self.mirror.optimizers[of].optimizer.param_groups))
        name, value = self.chance.choice([("lr", 0.25), ("lr", 0.0625), ("weight_decay", 0.25)])
        if self.mirror.optimizers[of].recipe.kind == "Rprop":
            name, value = "maximize", True
        return {"of": of, "group": group, "name": name, "value": value}

    def scale(self) -> dict[str, Any]:
        value = 2.0 ** self.chance.randint(4, 10)
        return {"loss": self.loss(), "value": value, "clean": self.chance.choice([0, 1998, 1999])}
