"""Follows fuzzed programs by torchamp."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import types
from typing import Any

import torch
from mirror.state import CASTS
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

import torchamp
from fuzz.calls import BATCHES, LABELS, check_memory, coefs_in
from fuzz.events import Backward, Recipe, Setup
from fuzz.net import PARTS, Net, drawn, drawn_coefs, drawn_value, use_state
from torchamp import amp

#: Loss scales before the events.
SCALES = (512.0, 64.0, 128.0)


class Different(Exception):
    """torchamp and the mirror are."""


def expect(is_so: Any, what: str) -> None:
    if not is_so:
        raise Different(what)


def raise_key_error(*_: Any) -> None:
    raise KeyError


class Run:
    """Its methods are the events, and take what the mirror's do."""

    #: What ends a block, and by which exception.
    ends = {"raise": KeyError, "hook": KeyError, "scale_loss": RuntimeError, "step": RuntimeError}
    amp: torchamp.Amp | None = None

    def __init__(self, setup: Setup) -> None:
        self.setup, self.optimizers = setup, []
        #: What steps of their own are given beside a closure.
        self.given: tuple = ()
        self.model = Net(setup.parts)
        self.params = list(self.model.parameters())
        for i in setup.frozen:
            self.params[i].requires_grad_(False)

    def begin(self) -> None:
        self.optimizers = self.made(self.setup.optimizers)
        self.initialize(self.setup.level, self.setup.overrides)

    def made(self, recipes: tuple[Recipe, ...]) -> list[Optimizer]:
        """-1 is the number of no parameter of the model."""
        params = [*self.params, torch.nn.Parameter(torch.zeros(2))]
        return [recipe.make(recipe.type, params) for recipe in recipes]

    def initialize(self, level: str, overrides: dict) -> None:
        self.level, self.popped, self.swapped = level, {}, []
        self.adopts = bool(overrides.get("adopt_data_writes"))
        self.amp = torchamp.Amp(self.model, self.optimizers, level, verbosity=0, **overrides)
        if self.amp.loss_scalers[0].dynamic:
            for scaler, value in zip(self.amp.loss_scalers, SCALES):
                scaler.set_loss_scale(value)

    def names(self) -> dict[int, str]:
        """Those that the model has now, by the parameters' numbers."""
        named = {id(param): name for name, param in self.model.named_parameters()}
        return {i: named[id(p)] for i, p in enumerate(self.params) if id(p) in named}

    def number(self, param: torch.Tensor) -> int:
        return next(i for i, each in enumerate(self.params) if each is param)

    def close(self) -> None:
        self.amp.close()

    # ---- backwards

    def loss(self, call: Backward) -> torch.Tensor:
        names, coefs = self.names(), drawn_coefs(self.params, call, self.level)
        given = coefs if call.batch is None else BATCHES[call.batch](coefs, LABELS.clone())
        memory = {"calls": torch.zeros(1)} if call.writes and call.reach else None
        reached = [names[i] for i in call.reach]
        loss = self.model(given, reached, call.island, memory) if reached else torch.zeros(())
        if call.layers is not None:
            loss = loss + self.loss_of_layers(call)
        if call.masters_of is not None:
            loss = loss + self.loss_of_masters(call)
        expect(all(a is b for a, b in zip(coefs_in(given), coefs)), "the batch was changed")
        if memory is not None:
            check_memory(memory, coefs)
        loss = loss * 2.0**-40 if call.is_tiny else loss
        return loss * float("nan") if call.is_nan else loss

    def loss_of_layers(self, call: Backward) -> torch.Tensor:
        generator = torch.Generator().manual_seed(call.coefs)
        x = torch.randn(8, 3, generator=generator)
        target = torch.randint(2, (8,), generator=generator)
        output = self.model(x)
        if call.ends == "hook":
            self.model.hidden.register_hook(raise_key_error)
        if call.layers == "inner":
            return self.model.hidden.float().square().mean()
        if call.layers == "outputs":
            return output
        if call.layers == "square":
            return output.square().mean()
        return torch.nn.functional.cross_entropy(output, target)

    def loss_of_masters(self, call: Backward) -> torch.Tensor:
        masters = list(amp.master_params(call.masters_of))
        numbers = [self.number(param) for param in stepped_by(call.masters_of)]
        coefs = drawn_coefs(self.params, call.of_masters(numbers), self.level)
        return sum((master.float() * coef).sum() for master, coef in zip(masters, coefs))

    def backward(self, **args: Any) -> torch.Tensor:
        call = Backward(**args)
        if call.closure_of is None:
            return self.use(call)
        losses = []

        def closure() -> torch.Tensor:
            losses.append(self.use(call))
            return losses[-1]

        self.given = ()
        returned = call.closure_of.step(closure)
        expect(len(losses) == 1 and returned is losses[0], "the closure was not called once")
        return returned

    def use(self, call: Backward) -> torch.Tensor:
        flags = {"delay_unscale": call.delayed, "delay_overflow_check": call.deferred}
        value, of = self.loss(call), call.of
        with self.must_end(call.ends):
            with amp.scale_loss(value, of, call.loss, **flags) as scaled_loss:
                self.zero_in_block(call.zero_inside, of)
                self.backward_in_block(call, value, scaled_loss)
                self.end_block(call.ends, value, of)
        if call.late:
            scaled_loss.backward()
        return value

    def backward_in_block(
        self, call: Backward, loss: torch.Tensor, scaled_loss: torch.Tensor
    ) -> None:
        if call.ends == "unscaled":
            loss.backward(retain_graph=True)
        elif call.ends != "empty":
            scaled_loss.backward(retain_graph=call.ends != "freed")
        if call.twice and call.ends != "empty":
            scaled_loss.backward()

    @contextlib.contextmanager
    def must_end(self, ends: str | None) -> Any:
        try:
            yield
        except self.ends.get(ends, ()):
            return
        expect(ends not in self.ends, f"expected the block to be ended by an exception: {ends}")

    def end_block(self, ends: str | None, loss: torch.Tensor, of: list[Optimizer]) -> None:
        if ends == "raise":
            raise KeyError
        if ends == "step":
            of[0].step()
        if ends == "scale_loss":
            with self.amp.scale_loss(loss, of):
                pass

    def zero_in_block(self, zero_inside: str | None, of: list[Optimizer]) -> None:
        if zero_inside == "model":
            self.model.zero_grad()
        for optimizer in of if zero_inside == "optimizer" else []:
            optimizer.zero_grad()

    def step(
        self, of: Optimizer, halves: list[torch.Tensor] | None = None, given: tuple = ()
    ) -> Any:
        self.given = given
        if halves is None:
            return of.step(None, *given) if given else of.step()
        dtypes = [param.dtype for param in self.params]
        found: list[dict] = []

        def look(*_: Any) -> None:
            same = [param.dtype for param in self.params] == dtypes
            expect(same, "hooks see parameters of another dtype")
            for param in stepped_by(of):
                use_state(of.state, param, "look")
            grads = enumerate(param.grad for param in self.params)
            found.append({i: None if grad is None else grad.clone() for i, grad in grads})

        def halve(*_: Any) -> None:
            look()
            for param in halves:
                param.grad.mul_(0.5)

        if of is self.optimizers[0]:
            hooks = of.register_step_pre_hook(halve), of.register_step_post_hook(look)
        else:
            hooks = register_optimizer_step_pre_hook(halve), register_optimizer_step_post_hook(look)
        try:
            of.step()
        finally:
            for hook in hooks:
                hook.remove()
        expect(len(found) == 2, "the hooks did not run")
        return found[0]

    def bind(self, of: Optimizer, how: str) -> None:
        """Gives the optimizer a step of its own, which takes more than a closure, and decays."""

        def step(optimizer: Optimizer, closure: Any = None, *given: Any) -> Any:
            expect(given == self.given, f"the step was given {given}")
            loss = type(optimizer).step(optimizer, closure)
            with torch.no_grad():
                for param in stepped_by(optimizer):
                    param.mul_(0.9375)
            return loss

        bind = types.MethodType if how == "method" else functools.partial
        of.step = bind(step, of)

    def own(self, of: Optimizer, how: str) -> None:
        getattr(of, how)()

    def stranger(self, of: Optimizer) -> None:
        """Another of its class, which steps a parameter of its own."""
        param = torch.nn.Parameter(torch.ones(2))
        param.grad = torch.ones(2)
        stranger = type(of)([param], lr=0.5)
        stranger.step()
        expect(not param.equal(torch.ones(2)), "a stranger's step does nothing")
        expect(not {"_torchamp", "step"} & vars(stranger).keys(), "a stranger was written to")

    def zero(self, of: Optimizer, to_none: bool = True) -> None:
        of.zero_grad(set_to_none=to_none)

    def zero_model(self, to_none: bool = True) -> None:
        self.model.zero_grad(set_to_none=to_none)

    def drop_grads(self, params: list[torch.Tensor]) -> None:
        for param in params:
            param.grad = None

    def clip_norm(self, of: list[Optimizer], max_norm: float) -> torch.Tensor:
        return amp.clip_grad_norm_(of, max_norm)

    def clip_value(self, of: list[Optimizer], value: float) -> None:
        amp.clip_grad_value_(of, value)

    def clip_model(self, params: list[torch.Tensor], by: str, limit: float) -> torch.Tensor | None:
        if by == "data":  # as LibTorch's function, whose writes PyTorch does not count
            for grad in (param.grad for param in params if param.grad is not None):
                grad.data.clamp_(-limit, limit)
            return None
        return getattr(torch.nn.utils, f"clip_grad_{by}_")(params, limit)

    def edit(self, of: Optimizer, how: str) -> None:
        for param in amp.master_params(of):
            if param.grad is not None and how == "fill":
                param.grad.fill_(3 / 64)
            elif param.grad is not None:
                (param.grad.data if how == "data" else param.grad).neg_()

    def look(self, of: Optimizer) -> dict[int, torch.Tensor | None]:
        found = {id(master): master.grad for master in list(amp.master_params(of))}
        core = of._torchamp.core
        grads = {id(param.model): found[id(param.master)] for param in core.params()}
        return {i: grads.get(id(param)) for i, param in enumerate(self.params)}

    @torch.no_grad()
    def write(self, param: torch.Tensor, seed: int) -> None:
        param.copy_(drawn_value(param, seed))

    def swap(self, params: list[torch.Tensor], seed: int) -> None:
        self.swapped = [(param, param.detach().clone()) for param in params]
        for param in params:
            self.write(param, seed)

    @torch.no_grad()
    def swap_back(self) -> None:
        for param, held in self.swapped:
            param.copy_(held)
        self.swapped = []

    @torch.no_grad()
    def halve(self, param: torch.Tensor) -> None:
        param.mul_(0.5)

    @torch.no_grad()
    def write_float32(self, params: list[torch.Tensor]) -> None:
        with amp.float32_params(self.model):
            for param in params:
                expect(param.dtype == torch.float32, f"a parameter is of {param.dtype}")
                param.mul_(0.75)

    def write_data(self, param: torch.Tensor, seed: int) -> None:
        param.data.copy_(drawn_value(param, seed))
        if not self.adopts:
            self.amp.refresh_masters()

    def freeze(self, param: torch.Tensor) -> None:
        param.requires_grad_(False)

    def thaw(self, param: torch.Tensor) -> None:
        param.requires_grad_(True)

    def set(self, of: Optimizer, group: int, name: str, value: float) -> None:
        of.param_groups[group][name] = value

    def scale(self, loss: int, value: float, clean: int) -> None:
        self.amp.loss_scalers[loss].load_state(value, clean)

    # ---- grads

    def assign(self, param: torch.Tensor, seed: int, wide: bool = False) -> None:
        """wide: in the dtype of the grad that is shown, where torch takes none but that."""
        shown = param.dtype if param.grad is None else param.grad.dtype
        grad = torch.empty_like(param, dtype=shown if wide else None)
        param.grad = grad.detach().copy_(drawn(param, seed))

    def edit_grad(self, param: torch.Tensor, how: str) -> None:
        grad = param.grad
        if grad is None:
            return
        if how == "replace":
            param.grad = grad * 0.5
        elif how == "fill":
            grad.fill_(3 / 64)
        else:
            (grad.data if how == "data" else grad).neg_()

    # ---- states and groups

    def state(self, of: Optimizer, param: torch.Tensor, how: str) -> dict[int, torch.Tensor]:
        found = use_state(of.state, param, how)
        of.state_dict()
        return {self.number(param): found}

    def group(
        self, of: Optimizer, group: int, params: list[torch.Tensor], how: str, forgets: bool = False
    ) -> None:
        edited = of.param_groups[group]
        held = list(edited["params"])
        new = [param for param in params if not _is_in(param, held)]
        gone = [param for param in held if not _is_in(param, params)]
        self.drop_free(new)
        for param in gone if forgets else []:
            of.state.pop(param, None)
        if how == "assign":
            edited["params"] = params
        elif how == "filter":
            edited["params"] = [param for param in held if not _is_in(param, gone)] + new
        else:
            for i in reversed(range(len(held))):
                if _is_in(held[i], gone):
                    edited["params"].pop(i)
            edited["params"].extend(new)

    def steal(self, of: Optimizer, param: torch.Tensor) -> None:
        group = of.param_groups[-1]
        group["params"].append(param)
        try:
            of._torchamp.follow(of, "steal")
        finally:
            group["params"].pop()

    def add_group(self, of: Optimizer, params: list[torch.Tensor]) -> None:
        self.drop_free(params)
        needed = [param.requires_grad for param in params]
        for param in params:
            param.requires_grad_(True)
        try:
            of.add_param_group({"params": params})
        except (RuntimeError, ValueError):
            for param, needs in zip(params, needed):
                param.requires_grad_(needs)
            raise

    def drop_free(self, params: list[torch.Tensor]) -> None:
        """Drops the grads of those that nothing steps."""
        stepped = sum(map(stepped_by, self.optimizers), [])
        for param in params:
            if not _is_in(param, stepped):
                param.grad = None

    def pop_group(self, of: Optimizer, group: int) -> None:
        self.popped[of] = of.param_groups.pop(group)

    def push_group(self, of: Optimizer) -> None:
        group = self.popped[of]
        self.drop_free(group["params"])
        of.add_param_group(group)

    # ---- masters, and what programs keep of the model

    @torch.no_grad()
    def write_masters(self, of: Optimizer) -> None:
        for param in amp.master_params(of):
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
                param.copy_(drawn_value(param, seed))
        if narrow:
            made.to(CASTS[self.level])
        if at is None:
            self.model.parts.append(made)
        else:
            self.model.parts[at] = made
        self.params += made.parameters()

    def phase(self, level: str, optimizers: tuple[Recipe, ...], overrides: dict) -> None:
        amp.release(self.model)
        if optimizers:
            self.optimizers = self.made(optimizers)
        self.initialize(level, overrides)


def stepped_by(optimizer: Optimizer) -> list[torch.Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _is_in(tensor: torch.Tensor, tensors: list[Any]) -> bool:
    """By identity."""
    return any(each is tensor for each in tensors)
