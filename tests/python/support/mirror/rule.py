"""The rule of docs/grads.md in plain PyTorch: float32 masters that follow the events of a program.

Where it leaves something open, which its last section lists, events raise Undetermined and change
nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from fuzz.events import Backward, Event
from fuzz.net import EXACT, LARGEST, UNIT, drawn_coefs, drawn_value

from mirror.state import Param, Refused, Stepped, Undetermined, distinct, require
from mirror.structure import Structure


class Mirror(Structure):
    """Follows a program. Its methods are the events."""

    #: Of the grads that the model shows, where this is known.
    dtypes: dict[int, torch.dtype] = {}

    def follow(self, event: Event) -> Any:
        """Raises Undetermined, after which nothing has changed, and Refused."""
        ahead = [param for param in self.params if param.is_ahead and param.is_in_model]
        try:
            return event.by(self)
        except Undetermined:
            ahead = []
            raise
        finally:
            for param in ahead if event.name != "write_masters" else []:
                param.is_ahead = False

    def is_identity(self, given: Sequence[Stepped]) -> bool:
        """Whether nothing is scaled, and nothing has a master."""
        params = [param for stepped in given for param in stepped.params]
        return self.loss_scale == 1.0 and not any(param.has_master for param in params)

    def notice(self, given: Sequence[Stepped]) -> None:
        """As the start of a backward or step does, of what was zeroed, written and regrouped."""
        self.notice_groups(given)
        for stepped in given:
            for param in stepped.params:
                param.is_unnoticed = False

    # ---- events

    def backward(self, **args: Any) -> None:
        call = Backward(**args)
        if call.closure_of is not None:
            return self.step_by_closure(call, {**args, "closure_of": None})
        given = call.of
        reached = self.reached(call)
        is_there = all(self.params[i].is_in_model for i in call.reach)
        require(is_there, "what is not in the model")
        is_cut = call.ends in ("raise", "scale_loss", "step")
        is_plain = call.of and call.zero_inside is None
        require(not is_cut or is_plain, "zeroing in a block that raises")
        require(call.loss < self.setup.overrides.get("num_losses", 1), "no such loss")
        self.check_backward(given, reached, call)
        if call.masters_of is not None:
            require(not call.delayed, "delayed grads of masters, beside other backwards")
            self.access(call.masters_of)
        self.notice(given)
        for stepped in given:
            stepped.is_gated = True
        for param in (param for stepped in given for param in stepped.params):
            param.is_ahead = False
        self.note_checks(given, reached, call)
        if is_cut:
            return self.cancel(given, reached)
        if call.zero_inside == "optimizer":
            for stepped in given:
                self.zero(stepped)
        elif call.zero_inside == "model":
            self.zero_model()
        if call.ends == "empty":
            reached = {}
        for param in self.missed(given, reached):
            del reached[param]
            param.is_stray = True
        factor = float("nan") if call.is_nan else 1.0
        grads_of = {param: grad * factor for param, grad in reached.items()}
        for param, grad in grads_of.items():
            for _ in range(1 + call.twice):
                param.add(grad)
        self.note_overflow(given, grads_of, call.delayed)
        self.note_delay(given, reached, call.delayed)

    def reached(self, call: Backward) -> dict[Param, torch.Tensor]:
        """The grads of its loss, in the model and in masters."""
        level, reached = self.setup.level, {}
        values = [param.value for param in self.params]
        stepped = [] if call.masters_of is None else call.masters_of.params
        masters = call.of_masters([self.params.index(param) for param in stepped])
        for part in (call, masters):
            for i, grad in zip(part.reach, drawn_coefs(values, part, level)):
                if self.params[i].is_trainable:
                    reached[self.params[i]] = reached.get(self.params[i], 0.0) + grad
        return reached

    def step_by_closure(self, call: Backward, args: dict[str, Any]) -> None:
        """A backward and a step, of an optimizer that has nothing to refuse before them."""
        stepped = call.closure_of
        is_clear = stepped.delayed is False and not (stepped.is_unclear or stepped.overflow)
        is_clear &= not any(param.is_stray or param.is_spoilt for param in stepped.params)
        is_clear &= stepped in call.of and not (call.ends or call.delayed)
        is_clear &= not stepped.is_bound or (stepped.is_gated and not self.is_dynamic)
        require(is_clear, "a closure that may be refused")
        if self.is_dynamic and stepped.recipe.kind == "OwnList":
            raise Refused
        real = self, args, stepped
        for mirror, told, of in (copy.deepcopy(real), real):  # the copy may be undetermined
            mirror.backward(**told)
            mirror.step(of)

    def check_backward(
        self, given: list[Stepped], reached: dict[Param, torch.Tensor], call: Backward
    ) -> None:
        is_bad = call.is_nan or call.inf_in is not None
        shows = call.is_nan or any(not grad.isfinite().all() for grad in reached.values())
        require(reached, "a loss that needs no grad")
        if any(len(set(param.users) & set(given)) > 1 for param in self.params):
            raise Refused
        require(not any(p.is_stray or p.is_spoilt for e in given for p in e.params), "such grads")
        if self.missed(given, reached):
            is_odd = is_bad or call.delayed or call.ends or self.loss_scale == 1.0
            require(not is_odd, "odd strays")
            require(not any(user.is_edited for p in reached for user in p.users), "new strays")
        for param in reached:
            new = 2 * LARGEST * UNIT * (1 + (call.masters_of is not None))
            total = new if param.sum is None else new + _size(param)
            require(total <= EXACT, "sums that 16 bits do not hold")
        require(not is_bad or (self.is_dynamic and shows), "an overflow of nothing")
        if self.is_identity(given):
            require(not call.delayed and call.ends in (None, "empty"), "nothing is scaled")

    def missed(self, given: list[Stepped], reached: Iterable[Param]) -> list[Param]:
        """Those that optimizers step which were not given."""
        return [p for p in reached if p.users and not set(p.users) & set(given)]

    def note_checks(self, given: list[Stepped], reached: Iterable[Param], call: Backward) -> None:
        """Which grads a fused step is to unscale: those of the first backward."""
        for stepped in given:
            mastered = [param for param in stepped.params if param.has_master]
            is_first = stepped.is_lazy and not any(param.has_grad for param in mastered)
            is_first = is_first and not call.delayed and not call.ends
            for param in mastered:
                param.is_checked = is_first and param in reached

    def cancel(self, given: list[Stepped], reached: Iterable[Param]) -> None:
        for param in reached:
            param.is_dirty |= not param.users
        for stepped in self.sharing(given):
            if stepped.delayed:
                stepped.delayed = None

    def sharing(self, given: Sequence[Stepped]) -> list[Stepped]:
        """Those that step a parameter of the given ones."""
        users = [user for stepped in given for param in stepped.params for user in param.users]
        return list(dict.fromkeys([*given, *users]))

    def note_overflow(
        self, given: list[Stepped], grads: dict[Param, torch.Tensor], delayed: bool
    ) -> None:
        for stepped in given:  # 16-bit grads of before are zeroed
            is_narrow = any(param.is_narrow for param in stepped.params)
            stepped.shares_overflow |= is_narrow and bool(stepped.overflow)
        bad = [param for param, grad in grads.items() if param.users and not grad.isfinite().all()]
        for param in bad:
            for stepped in param.users:
                stepped.overflow.add(param)
                stepped.shares_overflow |= delayed
        for stepped in given if bad else []:
            if delayed and not set(bad) & set(stepped.params):
                stepped.is_unclear = True
            stepped.overflow.update(bad)
        for stepped in given:
            stepped.shares_overflow |= len(given) > 1 or stepped.delayed is not False
        for stepped in self.sharing(given):
            stepped.shares_overflow |= stepped not in given
        sharing = self.sharing(given)
        if not delayed and any(e.delayed is not False and e.overflow for e in sharing):
            for stepped in given:
                stepped.is_unclear |= not stepped.overflow

    def note_delay(self, given: list[Stepped], reached: Iterable[Param], delayed: bool) -> None:
        for stepped in self.sharing(given):
            is_reached = bool(set(stepped.params) & set(reached))
            if delayed:
                stepped.delayed = True if is_reached else None
            elif not delayed and stepped in given:
                stepped.delayed = False
            elif not delayed and stepped.delayed:
                stepped.delayed = None

    def step(self, of: Stepped, halves: list[Param] | None = None, given: tuple = ()) -> Any:
        """halves: hooks read grads and states before and after it, and first halve these grads.
        given: a step of the optimizer's own is, too."""
        require(of.is_gated or not of.is_bound, "a step of its own that is not known yet")
        require(not of.is_bound or halves is None, "hooks of a step within its own")
        require(of.delayed is not None and not of.is_unclear, "delayed or not")
        params = distinct(of.params)
        self.check_taking(of, params)
        shown = self.halve_grads(of, halves or [])
        if of.delayed or any(param.is_stray or param.is_spoilt for param in params):
            self.notice([of])
            raise Refused
        if of.overflow:
            self.skip(of, params)
        else:
            self.take(of, params)
        self.notice([of])
        of.clear_overflow()
        for param in params:
            param.before_writes.clear()
            param.is_ahead = param.is_data_written = False
        return None if halves is None else shown

    def halve_grads(self, stepped: Stepped, halves: list[Param]) -> dict[int, torch.Tensor]:
        """Returns what was shown before."""
        for param in halves:
            self.check_edit(param)
        params = enumerate(self.params)
        shown = {i: p.sum for i, p in params if stepped in p.users and p.is_shown}
        for param in halves:
            param.sum = param.sum * 0.5
            param.is_spoilt = param.is_checked
        return shown

    def skip(self, stepped: Stepped, params: list[Param]) -> None:
        for param in params:
            param.discard()
            for other in param.users:
                other.is_unclear |= other is not stepped and bool(other.overflow)

    def check_taking(self, stepped: Stepped, params: list[Param]) -> None:
        for param in [] if stepped.overflow or stepped.delayed else params:
            require(not param.may_be_zeros or stepped.is_insensitive(), "zeros or none")
            is_finite = param.sum is None or bool(param.sum.isfinite().all())
            require(is_finite, "another's overflow")

    def take(self, stepped: Stepped, params: list[Param]) -> None:
        for param in params:
            param.value.grad = None if param.sum is None else _laid_out(param)
        stepped.optimizer.step()
        for param in params:
            param.value.grad = None
            if stepped.is_bound:
                param.scale(0.9375)
            if not param.has_master:
                param.write(param.value)
            elif param.sum is not None:
                param.forget_but_zeros()
                param.was_used = True

    def zero(self, of: Stepped, to_none: bool = True) -> None:
        for param in distinct(of.params):
            param.forget(zeros=not to_none)
            self.note_part_zeroed(user for user in param.users if user is not of)
        of.clear()

    def note_part_zeroed(self, users: Iterable[Stepped]) -> None:
        for stepped in users:
            stepped.is_unclear |= bool(stepped.overflow)
            stepped.delayed = stepped.delayed and None

    def zero_model(self, to_none: bool = True) -> None:
        for stepped in self.optimizers:
            shows = any(param.sum is not None for param in stepped.params)
            is_reached = all(param.is_in_model for param in [*stepped.params, *stepped.leaving])
            stepped.is_unclear |= bool(stepped.overflow) and not (shows and is_reached)
            if not is_reached and stepped.delayed:
                stepped.delayed = None
        for param in self.params:
            if param.is_in_model:
                param.drop() if to_none else param.forget(zeros=True)
        for stepped in self.optimizers:
            stepped.clear_overflow()
            stepped.delayed = None if stepped.delayed is None else False

    def drop_grads(self, params: list[Param]) -> None:
        """Sets them to None."""
        for param in params:
            param.drop()
            self.note_part_zeroed(param.users)

    def clip_norm(self, of: list[Stepped], max_norm: float) -> torch.Tensor | None:
        """The norm before it; None if it is not finite."""
        params = self.clipped(of)
        if params is None:
            return None
        self.is_approximate = True
        sums = [param.sum for param in params if param.sum is not None]
        norm = torch.stack([torch.zeros(()), *(each.float().norm() for each in sums)]).norm()
        for each in sums:
            each.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def clip_value(self, of: list[Stepped], value: float) -> None:
        for param in self.clipped(of) or []:
            if param.sum is not None:
                param.sum = param.sum.clamp(-value, value)
            param.is_checked = False

    def clip_model(self, params: list[Param], by: str, limit: float) -> torch.Tensor | None:
        """By torch's functions, which compute in the grads' dtypes."""
        found = [param for param in params if param.has_grad]
        require(all(param.is_in_model for param in params), "what is not in the model")
        for param in found:
            self.check_edit(param)
        are_checked = {param.is_checked for param in found}
        require(len(are_checked) == 1, "scaled grads among others, or none")
        dtypes = [self.dtypes.get(self.params.index(param), param.dtype) for param in found]
        grads = [_laid_out(param).to(dtype) for param, dtype in zip(found, dtypes)]
        clip = getattr(torch.nn.utils, f"clip_grad_{by}_")
        norm = clip([SimpleNamespace(grad=grad) for grad in grads], limit)
        self.is_approximate |= by == "norm"
        for param, grad in zip(found, grads):
            param.sum = grad.to(param.sum.dtype)
            param.is_spoilt = param.is_checked
        return None if True in are_checked else norm

    def clipped(self, given: list[Stepped]) -> list[Param] | None:
        """Whose grads are clipped; None: they are discarded by the next step."""
        params = distinct(param for stepped in given for param in stepped.params)
        require(
            not any(each.delayed is None or each.is_unclear for each in given), "delayed or not"
        )
        require(not any(param.is_spoilt for param in params), "clipping what a step will refuse")
        is_bad = any(param.is_stray for param in params)
        require(not is_bad or len(given) == 1, "clipping what is refused, and more")
        is_aside = any(p.is_stray and p.has_master and p.sum is None for p in params)
        require(not is_aside, "strays beside what is clipped")
        if is_bad or any(each.delayed for each in given):
            self.notice_groups(given)
            raise Refused
        is_shared = len(given) > 1 and any(len(param.users) > 1 for param in params)
        require(not is_shared, "clipping sharers together")
        if not any(each.overflow for each in given):
            is_finite = all(p.sum is None or bool(p.sum.isfinite().all()) for p in params)
            require(is_finite, "another's overflow")
            self.notice_groups(given)
            return params
        is_known = all(user.overflow for param in params for user in param.users)
        is_own = all(len(param.users) == 1 for param in params)
        require(is_known or is_own, "shared by one that overflowed")
        self.notice_groups(given)
        for each in given:
            each.shares_overflow |= bool(each.overflow)
        if is_known:
            return None
        return [param for param in params if not param.users[0].overflow]

    def edit(self, of: Stepped, how: str) -> None:
        """The program writes the grads of the masters itself."""
        require(of.delayed is False and not of.overflow, "edits of scaled grads")
        for param in of.params:
            require(not param.may_be_zeros and not param.was_discarded, "edits of zeros or none")
        self.access(of)
        for param in distinct(of.params):
            if param.sum is not None:
                param.sum = {"negate": param.sum.neg, "fill": lambda p=param: _filled(p)}[how]()

    def look(self, of: Stepped) -> dict[int, torch.Tensor]:
        """The grads of the masters, by the parameters' numbers, as far as they are determined."""
        self.access(of)
        if of.delayed is not False or of.overflow or of.is_unclear:
            return {}
        return {
            i: param.sum
            for i, param in enumerate(self.params)
            if param in of.params and param.sum is not None and not param.was_discarded
        }

    def bind(self, of: Stepped, how: str) -> None:
        """Gives the optimizer a step of its own, which calls its class's, and decays."""
        of.is_bound, of.is_gated = True, False

    def own(self, of: Stepped, how: str) -> None:
        """Calls a method of the optimizer that is no step."""
        require(of.recipe.kind == "OwnList", "no such method")
        if how == "count":
            return
        params = distinct(of.params)
        require(not of.is_edited, "groups that it does not know")
        require(not any(param.is_spoilt for param in params), "grads that are refused")
        if how == "shrink":
            return self.scale_values(params, params)
        for param in params:
            if param.has_grad:
                self.check_edit(param)
        for param in params:
            if param.has_grad:
                param.sum = param.sum * 0.5

    def stranger(self, of: Stepped) -> None:
        """Another optimizer of its class."""

    def write_float32(self, params: list[Param]) -> None:
        """Within float32_params."""
        require(all(param.is_in_model for param in params), "what is not in the model")
        require(not any(stepped.is_edited for stepped in self.optimizers), "masters to come")
        self.scale_values(params, [param for param in self.params if param.has_master] or params)

    def scale_values(self, params: list[Param], lent: list[Param]) -> None:
        """By 0.75, where a loan has brought masters and model together."""
        for param in params:
            param.scale(0.75)
        for param in lent:
            param.before_writes.clear()
            param.is_ahead = param.is_data_written = False

    def write(self, param: Param, seed: int) -> None:
        self.overwrite(param, drawn_value(param.value, seed))

    def halve(self, param: Param) -> None:
        """In place."""
        self.overwrite(param, param.in_model * 0.5)

    def swap(self, params: list[Param], seed: int) -> None:
        """The program keeps what the model holds, and writes others."""
        values = {param: drawn_value(param.value, seed) for param in params}
        for param, value in values.items():
            self.check_write(param, value)
        for param, value in values.items():
            self.overwrite(param, value)
        self.swapped = {param: param.before_writes[-1] for param in values}

    def swap_back(self) -> None:
        require(self.swapped, "nothing swapped")
        for param, held in self.swapped.items():
            is_seen = not any(held is each for each in param.before_writes)
            require(not (param.has_master and is_seen), "low bits of what was taken over")
            require(not param.is_ahead, "masters and model both written")
        for param, held in self.swapped.items():
            with torch.no_grad():
                param.value.copy_(held)
        self.swapped = {}

    def check_write(self, param: Param, value: torch.Tensor) -> None:
        require(not param.holds_part_of(value), "a write of what the model holds")
        require(not param.is_ahead, "masters and model both written")

    def overwrite(self, param: Param, value: torch.Tensor) -> None:
        self.check_write(param, value)
        param.before_writes.append(param.value.detach().clone())
        param.write(value)

    def write_data(self, param: Param, seed: int) -> None:
        """By `.data`; the masters are refreshed, unless every step adopts such writes."""
        adopts = self.setup.overrides.get("adopt_data_writes")
        is_known = not any(stepped.is_edited for stepped in self.optimizers)
        is_known &= not any(each.is_ahead for each in self.params)
        is_known &= bool(param.users) or not param.has_master
        require(adopts or is_known, "masters that may not be known")
        self.write(param, seed)
        param.is_data_written = bool(adopts)
        if not adopts:
            for each in distinct(p for stepped in self.optimizers for p in stepped.params):
                each.write(each.in_model)
                each.before_writes.clear()

    def freeze(self, param: Param) -> None:
        param.is_trainable = False

    def thaw(self, param: Param) -> None:
        param.is_trainable = True

    def set(self, of: Stepped, group: int, name: str, value: float) -> None:
        of.optimizer.param_groups[group][name] = value

    def scale(self, loss: int, value: float, clean: int) -> None:
        """Sets a loss scale, and how many clean backwards it has seen."""
        require(self.is_dynamic, "a fixed scale")


def _size(param: Param) -> float:
    finite = param.sum[param.sum.isfinite()].abs()
    return finite.max().item() if finite.numel() else 0.0


def _laid_out(param: Param) -> torch.Tensor:
    """The sum as autograd leaves grads in memory: torch's optimizers round by it."""
    return torch.empty_like(param.value).copy_(param.sum)


def _filled(param: Param) -> torch.Tensor:
    return torch.full_like(param.sum, 3 * UNIT)
