"""What fuzzed programs do to the structure around the grads, by torchamp."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from fuzz_events import PARTS, Net, Recipe, Setup, drawn, drawn_value, use_state
from mirror_state import CASTS

import torchamp
from torchamp import amp

#: Loss scales before the events.
SCALES = (512.0, 64.0, 128.0)


class StructureRun:
    """Its methods are events."""

    amp: torchamp.Amp | None = None

    def __init__(self, setup: Setup) -> None:
        self.setup, self.optimizers = setup, []
        self.model = Net(setup.parts)
        self.params = list(self.model.parameters())
        self.shapes = [param.shape for param in self.params]
        for i in setup.frozen:
            self.params[i].requires_grad_(False)

    def begin(self) -> None:
        self.optimizers = self.made(self.setup.optimizers)
        self.initialize(self.setup.level, self.setup.overrides)

    def made(self, recipes: tuple[Recipe, ...]) -> list[torch.optim.Optimizer]:
        return [recipe.make(recipe.type, self.params) for recipe in recipes]

    def initialize(self, level: str, overrides: dict) -> None:
        self.level, self.popped, self.swapped = level, {}, {}
        self.adopts = bool(overrides.get("adopt_data_writes"))
        self.amp = torchamp.Amp(self.model, self.optimizers, level, verbosity=0, **overrides)
        if self.amp.loss_scalers[0].dynamic:
            for scaler, value in zip(self.amp.loss_scalers, SCALES):
                scaler.set_loss_scale(value)

    def names(self) -> dict[int, str]:
        """Those that the model has now, by the parameters' numbers."""
        named = {id(param): name for name, param in self.model.named_parameters()}
        return {i: named[id(p)] for i, p in enumerate(self.params) if id(p) in named}

    # ---- grads

    def assign(self, param: int, seed: int, wide: bool = False) -> None:
        """wide: in the dtype of the grad that is shown, where torch takes none but that."""
        found = self.params[param]
        shown = found.dtype if found.grad is None else found.grad.dtype
        grad = torch.empty_like(found, dtype=shown if wide else None)
        found.grad = grad.detach().copy_(drawn(self.shapes[param], seed))

    def edit_grad(self, param: int, how: str) -> None:
        grad = self.params[param].grad
        if grad is None:
            return
        if how == "replace":
            self.params[param].grad = grad * 0.5
        elif how == "fill":
            grad.fill_(3 / 64)
        else:
            (grad.data if how == "data" else grad).neg_()

    # ---- states and groups

    def state(self, of: int, param: int, how: str) -> dict[int, torch.Tensor]:
        found = use_state(self.optimizers[of].state, self.params[param], how)
        self.optimizers[of].state_dict()
        return {param: found}

    def group(
        self, of: int, group: int, params: list[int], how: str, forgets: bool = False
    ) -> None:
        edited = self.optimizers[of].param_groups[group]
        wanted = [self.params[i] for i in dict.fromkeys(params)]
        held = list(edited["params"])
        new = [param for param in wanted if not _is_in(param, held)]
        self.drop_free(new)
        for param in held if forgets else []:
            if not _is_in(param, wanted):
                self.optimizers[of].state.pop(param, None)
        if how == "assign":
            edited["params"] = wanted
        elif how == "filter":
            edited["params"] = [param for param in held if _is_in(param, wanted)] + new
        else:
            for i in reversed(range(len(held))):
                if not _is_in(held[i], wanted):
                    edited["params"].pop(i)
            edited["params"].extend(new)

    def steal(self, of: int, param: int) -> None:
        group = self.optimizers[of].param_groups[-1]
        group["params"].append(self.params[param])
        try:
            self.optimizers[of]._torchamp.follow(self.optimizers[of], "steal")
        finally:
            group["params"].pop()

    def add_group(self, of: int, params: list[int]) -> None:
        new = [self.params[i] for i in dict.fromkeys(params)]
        self.drop_free(new)
        needed = [param.requires_grad for param in new]
        for param in new:
            param.requires_grad_(True)
        try:
            self.optimizers[of].add_param_group({"params": new})
        except (RuntimeError, ValueError):
            for param, needs in zip(new, needed):
                param.requires_grad_(needs)
            raise

    def drop_free(self, params: list[torch.Tensor]) -> None:
        """Drops the grads of those that nothing steps."""
        stepped = [p for o in self.optimizers for g in o.param_groups for p in g["params"]]
        for param in params:
            if not _is_in(param, stepped):
                param.grad = None

    def pop_group(self, of: int, group: int) -> None:
        self.popped[of] = self.optimizers[of].param_groups.pop(group)

    def push_group(self, of: int) -> None:
        group = self.popped[of]
        self.drop_free(group["params"])
        self.optimizers[of].add_param_group(group)

    # ---- masters, and what programs keep of the model

    def write_masters(self, of: int) -> None:
        with torch.no_grad():
            for param in amp.master_params(self.optimizers[of]):
                param.copy_(param * 0.75 + 2.0**-13)

    def save(self, file: str | None = None) -> None:
        if file is None:
            self.saved = io.BytesIO()
        self.amp.save(file or self.saved)

    def load(self, file: str | None = None) -> None:
        if file is None:
            self.saved.seek(0)
        self.amp.load(file or self.saved)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.model.zero_grad()

    def snapshot(self) -> None:
        self.copied = copy.deepcopy(self.model.state_dict())

    def restore(self) -> None:
        self.model.load_state_dict(self.copied)

    def copy(self) -> dict[int, torch.Tensor]:
        """Of a copy that has been through an initialize of its own."""
        copied = copy.deepcopy(self.model)
        sgd = torch.optim.SGD(copied.parameters(), 0.5)
        level = "O2" if self.level == "O3" else self.level  # which would round it
        torchamp.Amp(copied, sgd, level, verbosity=0).release()
        params = dict(copied.named_parameters())
        return {i: params[name] for i, name in self.names().items()}

    # ---- modules and phases

    def module(self, part: str, seed: int, narrow: bool = False, at: int | None = None) -> None:
        made = PARTS[part]()
        with torch.no_grad():
            for param in made.parameters():
                param.copy_(drawn_value(param.shape, seed))
        if narrow:
            made.to(CASTS[self.level])
        if at is None:
            self.model.parts.append(made)
        else:
            self.model.parts[at] = made
        self.params += made.parameters()
        self.shapes += [param.shape for param in made.parameters()]

    def phase(self, level: str, optimizers: tuple[Recipe, ...], overrides: dict) -> None:
        amp.release(self.model)
        if optimizers:
            self.optimizers = self.made(optimizers)
        self.initialize(level, overrides)


def _is_in(tensor: torch.Tensor, tensors: list[Any]) -> bool:
    """By identity."""
    return any(each is tensor for each in tensors)
