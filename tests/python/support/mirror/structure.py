"""The part of the mirror that knows what is around the grads: groups, masters, modules, phases."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from fuzz.events import Recipe, Setup
from fuzz.net import PARTS, drawn, drawn_value, use_state
from reference.optimizers import Reference

from mirror.state import (
    CASTS,
    Param,
    Refused,
    Stepped,
    distinct,
    initialize,
    is_lazy,
    keeps_masters,
    loss_scale_of,
    made_optimizers,
    made_params,
    require,
)


class Structure:
    """Its methods are events."""

    def __init__(self, setup: Setup) -> None:
        self.params = made_params(setup)
        #: Of each part of the net, its parameters.
        self.parts = _split(setup.parts, self.params)
        self.optimizers = made_optimizers(setup, self.params)
        self.is_approximate = False
        self.begin(setup)

    def begin(self, setup: Setup) -> None:
        self.setup = setup
        self.keeps_masters = keeps_masters(setup)
        self.loss_scale = loss_scale_of(setup)
        self.is_dynamic = self.loss_scale == "dynamic"
        #: Whether numbers may differ in their last bits.
        self.is_approximate |= any(
            recipe.is_fused or "fused" in recipe.options for recipe in setup.optimizers
        )
        self.is_approximate |= any(param.is_narrow and param.users for param in self.params)
        self.saved: Any = None
        self.copied: Any = None
        #: What swap() has kept.
        self.swapped: dict[Param, torch.Tensor] = {}

    def notice_groups(self, given: Sequence[Stepped]) -> None:
        for stepped in given:
            stepped.unnoticed.clear()
            stepped.leaving.clear()

    def in_model(self) -> list[Param]:
        return [param for param in self.params if param.is_in_model]

    def access(self, stepped: Stepped) -> None:
        """The program uses the masters: the model's grads are unscaled from now on."""
        require(not stepped.is_edited, "masters that are not known yet")
        require(
            not any(p.is_spoilt or p.is_stray for p in stepped.params), "grads that are refused"
        )
        stepped.is_lazy = False
        for param in stepped.params:
            param.is_checked = False
            param.before_writes.clear()

    # ---- grads

    def assign(self, param: Param, seed: int, wide: bool = False) -> None:
        """The program gives the model's parameter another grad."""
        self.check_surgery(param)
        require(not wide or param.has_master, "a grad of another dtype")
        param.sum = drawn(param.value, seed).to(param.value.dtype)
        param.is_as_added()
        param.is_spoilt = param.is_checked

    def edit_grad(self, param: Param, how: str) -> None:
        """It writes the grad of the model's parameter in place, if by `.data`, uncounted."""
        self.check_edit(param)
        require(how != "data" or not param.is_checked, "what cannot be noticed")
        param.sum = torch.full_like(param.sum, 3 / 64) if how == "fill" else -param.sum
        param.is_spoilt = param.is_checked

    def check_edit(self, param: Param) -> None:
        self.check_surgery(param)
        is_whole = param.sum is not None and not (param.may_be_zeros or param.was_discarded)
        require(is_whole and not any(user.overflow for user in param.users), "edits of no grad")

    def check_surgery(self, param: Param) -> None:
        users = param.users
        require(users and not param.is_stray and not param.is_spoilt, "grads that are not used")
        is_known = all(user.delayed is False and not user.is_unclear for user in users)
        require(is_known and not any(param in u.unnoticed for u in users), "scaled, or unknown")
        is_lazy = param.has_master and users[0].is_lazy
        require(not is_lazy or param.is_checked, "scaled or not")

    # ---- states and groups

    def state(self, of: Stepped, param: Param, how: str) -> dict[int, torch.Tensor]:
        is_its = param in of.params and (how == "clear" or not of.left)
        require(is_its, "others' states")
        makes_anew = how in ("look", "halve") or "Adagrad" not in of.recipe.kind
        require(makes_anew, "a state that only add_param_group makes")
        held = use_state(of.optimizer.state, param.value, how)
        if how == "clear":
            of.left.clear()
        is_torchs = not isinstance(of.optimizer, Reference)
        return {self.params.index(param): held} if is_torchs and held.any() else {}

    def group(
        self, of: Stepped, group: int, params: list[Param], how: str, forgets: bool = False
    ) -> None:
        """The program edits a group, and drops the grads of what comes. how: "assign" a list of the
        model's, "filter" a new one with what the group has, "in_place". forgets: with the
        optimizer's states of what goes."""
        require(of.recipe.kind != "OwnList", "another list than its own")
        before = of.groups[group]
        new = [param for param in params if param not in before]
        kept = [param for param in before if param in params]
        is_known = not of.unnoticed.intersection(before)
        require(is_known or not forgets, "states of what it does not know")
        self.check_new(of, new, adds=False)
        self.leave(of, [param for param in before if param not in params], forgets)
        of.groups[group] = params if how == "assign" else kept + new
        self.join(of, new)
        if how == "assign":
            of.unnoticed.update(params)
        of.optimizer.param_groups[group]["params"] = [param.value for param in of.groups[group]]

    def check_new(self, stepped: Stepped, new: list[Param], adds: bool) -> None:
        """adds: by add_param_group, which alone makes Adagrad's states."""
        others = [each for each in self.optimizers if each is not stepped]
        for param in new:
            require(not param.users, "what another group has")
            is_leaving = any(param in other.leaving for other in others)
            require(not is_leaving or param.has_master, "a parameter that has not left another")
            require(adds or param not in stepped.leaving, "a parameter that has not left")
            is_made_anew = adds == (param.value in stepped.optimizer.state)
            require("Adagrad" not in stepped.recipe.kind or not is_made_anew, "a state made anew")

    def join(self, stepped: Stepped, new: list[Param]) -> None:
        for param in new:
            param.drop()
            param.is_as_added()
            param.has_master |= self.keeps_masters and param.dtype != torch.float32
            if param.has_master or stepped.recipe.is_fused:
                param.value = param.value.float()
            param.users.append(stepped)
            stepped.unnoticed.add(param)
            stepped.left.discard(param)
            self.is_approximate |= param.is_narrow

    def leave(self, stepped: Stepped, gone: list[Param], forgets: bool = False) -> None:
        for param in gone:
            stepped.left.add(param)
            if forgets:
                stepped.left.discard(param)
                stepped.optimizer.state.pop(param.value, None)
            param.users.remove(stepped)
            stepped.unnoticed.discard(param)
            stepped.leaving.add(param)
            stepped.delayed = stepped.delayed and None
            self.leave_overflow(stepped, param)
            if not param.users:
                param.is_dirty = param.has_grad
                param.forget()
                param.may_be_zeros = param.was_discarded = False

    def leave_overflow(self, stepped: Stepped, param: Param) -> None:
        """It skips nobody, as far as others have not been told of it."""
        for other in self.optimizers:
            if param in other.overflow:
                other.is_unclear |= other is not stepped or other.shares_overflow
        stepped.overflow.discard(param)
        has_any = any(each.sum is not None for each in stepped.params)
        stepped.is_unclear |= bool(stepped.overflow) and not has_any

    def steal(self, of: Stepped, param: Param) -> None:
        """Puts a parameter in a group that is in one already; the program takes it out again."""
        require(of in param.users or (param.users and param.has_master), "what it may have")
        require(not any(user.is_edited for user in [of, *param.users]), "other edits")
        raise Refused

    def add_group(self, of: Stepped, params: list[Param]) -> None:
        """Of those, which are thawed, and have no grads any more."""
        require(params, "an empty group")
        self.add(of, params, {})
        for param in params:
            param.is_trainable = True

    def add(self, stepped: Stepped, new: list[Param], options: dict) -> None:
        is_known = not any(param in user.unnoticed for param in new for user in param.users)
        require(is_known, "which of two has it")
        if any(stepped in param.users or (param.users and param.has_master) for param in new):
            require(stepped.recipe.kind != "OwnList", "a list that keeps what is refused")
            self.notice_groups([stepped])
            raise Refused
        self.check_new(stepped, new, adds=True)
        self.join(stepped, new)
        self.notice_groups([stepped])
        values = [param.value for param in new]
        stepped.optimizer.add_param_group({**options, "params": values})
        stepped.groups.append(new)

    def pop_group(self, of: Stepped, group: int) -> None:
        is_followed = len(of.groups) > 1 and of.recipe.kind != "OwnList"
        require(is_followed, "the last group, or one of its own")
        of.popped = of.optimizer.param_groups.pop(group), of.groups.pop(group)
        self.leave(of, of.popped[1])

    def push_group(self, of: Stepped) -> None:
        """Adds the group that was taken out last."""
        require(of.popped is not None, "nothing taken out")
        self.add(of, of.popped[1], of.popped[0])
        of.popped = None

    # ---- masters, and what programs keep of the model

    def write_masters(self, of: Stepped) -> None:
        """In place, as an optimizer of weights around the optimizer does."""
        params = distinct(of.params)
        is_written = any(param.before_writes or param.is_data_written for param in params)
        require(not is_written, "masters and model both written")
        self.access(of)
        for param in params:
            with torch.no_grad():
                param.value.copy_(param.rounded(param.value) * 0.75 + 2.0**-13)
            param.is_ahead = True

    def save(self) -> None:
        require(not any(stepped.left for stepped in self.optimizers), "others' states")
        self.notice_groups(self.optimizers)
        values = [param.value.clone() for param in self.params]
        states = [stepped.optimizer.state_dict() for stepped in self.optimizers]
        self.saved = copy.deepcopy((self.structure(), values, states))

    def structure(self) -> tuple:
        numbers = {param: i for i, param in enumerate(self.params)}
        return [numbers[param] for param in self.in_model()], [
            [[numbers[param] for param in group] for group in stepped.groups]
            for stepped in self.optimizers
        ]

    def load(self) -> None:
        """What was saved, and zeroes all grads."""
        require(self.saved and self.saved[0] == self.structure(), "nothing saved of these")
        require(not any(stepped.left for stepped in self.optimizers), "others' states")
        _, values, states = copy.deepcopy(self.saved)
        self.notice_groups(self.optimizers)
        self.set_values(values)
        for stepped, state in zip(self.optimizers, states):
            stepped.optimizer.load_state_dict(state)
            self.zero(stepped)
        self.zero_model()

    def set_values(self, values: list[torch.Tensor]) -> None:
        for param, value in zip(self.params, values):
            if param.is_in_model:
                with torch.no_grad():
                    param.value.copy_(param.rounded(value))
                param.before_writes.clear()

    def snapshot(self) -> None:
        """The program keeps a copy of the model's state dict, for restore()."""
        values = [param.value.detach().clone() for param in self.params]
        self.copied = self.structure()[0], values

    def restore(self) -> None:
        require(self.copied and self.copied[0] == self.structure()[0], "nothing kept of these")
        require(not any(stepped.unnoticed for stepped in self.optimizers), "masters to come")
        self.set_values(self.copied[1])

    def copy(self) -> dict[int, torch.Tensor]:
        """Copies the model, which is a plain one of these values."""
        return {
            i: param.value.detach().clone()
            for i, param in enumerate(self.params)
            if param.is_in_model
        }

    # ---- modules and phases

    def module(self, part: str, seed: int, narrow: bool = False, at: int | None = None) -> None:
        """A new part, at the end or in the place of another, of 16 bits if the model is."""
        require(at is None or 0 < at < len(self.parts), "no part, or one that is there twice")
        require(not narrow or self.setup.level in CASTS, "a model of 32 bits")
        dtype = CASTS[self.setup.level] if narrow else torch.float32
        made = PARTS[part]()
        new = []
        for param in made.parameters():
            value = drawn_value(param, seed).to(dtype)
            is_norm = isinstance(made, torch.nn.BatchNorm1d)
            new.append(Param(value, dtype, False, True, is_norm))
        for param in self.parts[at] if at is not None else []:
            param.is_in_model = False
        if at is None:
            self.parts.append(new)
        else:
            self.parts[at] = new
        self.params += new

    def phase(self, level: str, optimizers: tuple[Recipe, ...], overrides: dict) -> None:
        """Releases the model and initializes it again, with new optimizers if there are any."""
        setup = dataclasses.replace(self.setup, level=level, overrides=overrides)
        if optimizers:
            self.renew(dataclasses.replace(setup, optimizers=optimizers))
        else:
            self.go_on(setup)

    def renew(self, setup: Setup) -> None:
        is_there = all(self.params[i].is_in_model for each in setup.optimizers for i in each.params)
        require(is_there, "what is not in the model")
        for i, param in enumerate(self.params):
            param.release()
            param.value = param.value.clone()
            param.users.clear()
            initialize(setup, param, setup.users(i))
        self.optimizers = made_optimizers(setup, self.params)
        self.begin(setup)

    def go_on(self, setup: Setup) -> None:
        """With the same optimizers."""
        self.check_going_on(setup)
        for param in self.params:
            param.release()
            initialize(setup, param, [stepped.recipe for stepped in param.users])
        for stepped in self.optimizers:
            stepped.clear()
            stepped.popped, stepped.is_lazy = None, is_lazy(setup, stepped.recipe)
        self.notice_groups(self.optimizers)
        self.begin(setup)

    def check_going_on(self, setup: Setup) -> None:
        """At the same level."""
        params = [param for stepped in self.optimizers for param in stepped.params]
        require(setup.level == self.setup.level, "another level")
        require(keeps_masters(setup) == self.keeps_masters, "other masters")
        require(not any(param.is_narrow for param in params), "states of 16 bits")
        require(not any(stepped.left for stepped in self.optimizers), "others' states")
        for stepped in self.optimizers:
            is_of_model = any(param.is_in_model for param in stepped.params)
            require(is_of_model, "an optimizer of no parameter of the model")


def _split(parts: Sequence[str], params: list[Param]) -> list[list[Param]]:
    """The parameters of each part."""
    left = iter(params)
    return [[next(left) for _ in PARTS[part]().parameters()] for part in parts]
