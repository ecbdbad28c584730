"""The arguments of events that change the structure around the grads."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from fuzz_events import PARTS, Recipe
from mirror import Mirror
from mirror_state import CASTS, Param

#: Whether Python can assign a grad of another dtype than the parameter's.
TAKES_WIDE_GRADS = hasattr(torch.Tensor, "grad_dtype")


class StructureDraw:
    chance: random.Random
    mirror: Mirror
    of: Callable[[], int]
    param: Callable[[], int]
    seed: Callable[[], int]
    some: Callable[[list[int], float], list[int]]
    level: Callable[[], str]
    overrides: Callable[[str], dict[str, Any]]
    recipes_at: Callable[[str, dict, list[int]], tuple[Recipe, ...]]

    def assign(self) -> dict[str, Any]:
        args = {"param": self.param(), "seed": self.seed()}
        is_wide = self.chance.random() < 0.3 and TAKES_WIDE_GRADS
        return {**args, "wide": True} if is_wide else args

    def edit_grad(self) -> dict[str, Any]:
        return {"param": self.param(), "how": self.chance.choice(["negate", "fill", "data"])}

    def state(self) -> dict[str, Any]:
        of = self.of()
        param = self.chance.choice(self.numbers(self.mirror.optimizers[of].params) or [0])
        how = self.chance.choice(["look", "halve", "halve", "delete", "clear"])
        return {"of": of, "param": param, "how": how}

    def some_group(self, of: int) -> int:
        return self.chance.randrange(len(self.mirror.optimizers[of].groups))

    def free(self) -> list[int]:
        """What no optimizer steps."""
        params = enumerate(self.mirror.params)
        return [i for i, param in params if param.is_in_model and not param.users]

    def numbers(self, params: list[Param]) -> list[int]:
        return [self.mirror.params.index(param) for param in params]

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

    def steal(self) -> dict[str, Any]:
        return {"of": self.of(), "param": self.param()}

    def add_group(self) -> dict[str, Any]:
        chosen = self.some(self.free(), 0.6)
        return {"of": self.of(), "params": chosen if self.chance.random() < 0.9 else [self.param()]}

    def pop_group(self) -> dict[str, Any]:
        of = self.of()
        return {"of": of, "group": self.some_group(of)}

    def push_group(self) -> dict[str, Any]:
        return {"of": self.of()}

    def write_masters(self) -> dict[str, Any]:
        return {"of": self.of()}

    def save(self) -> dict[str, Any]:
        return {}

    load = snapshot = restore = copy = swap_back = save

    def module(self) -> dict[str, Any]:
        part = self.chance.choice([part for part in PARTS if part != "sliced"])
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
