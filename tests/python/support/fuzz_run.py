"""Follows a fuzzed program by torchamp and by the mirror, and compares them after every event."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from fuzz_calls import BATCHES, LABELS, check_memory, coefs_in
from fuzz_events import (
    Backward,
    Event,
    Program,
    Setup,
    drawn_coefs,
    drawn_value,
    use_state,
)
from mirror import Mirror
from mirror_state import Param, Refused
from run_structure import StructureRun
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchamp import amp
from torchamp._load import _C

#: Of optimizers that are not torch's own code, and of what was clipped: relative and absolute.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


class Different(Exception):
    """torchamp and the mirror are."""


def expect(is_so: Any, what: str) -> None:
    if not is_so:
        raise Different(what)


def raise_key_error(*_: Any) -> None:
    raise KeyError


class Run(StructureRun):
    """Follows a program by torchamp. Its methods are the events, and take what the mirror's do."""

    #: What ends a block, and by which exception.
    ends = {"raise": KeyError, "hook": KeyError, "scale_loss": RuntimeError, "step": RuntimeError}

    def given(self, of: list[int]) -> list[torch.optim.Optimizer]:
        return [self.optimizers[i] for i in of]

    def loss(self, call: Backward) -> torch.Tensor:
        names, coefs = self.names(), drawn_coefs(self.shapes, call, self.level)
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
        masters = list(amp.master_params(self.optimizers[call.masters_of]))
        params = self.stepped_by(call.masters_of)
        coefs = drawn_coefs(self.shapes, call.of_masters(params), self.level)
        return sum((master.float() * coef).sum() for master, coef in zip(masters, coefs))

    def stepped_by(self, of: int) -> list[int]:
        numbers = {id(param): i for i, param in enumerate(self.params)}
        groups = self.optimizers[of].param_groups
        return [numbers[id(param)] for group in groups for param in group["params"]]

    def backward(self, **args: Any) -> torch.Tensor:
        call = Backward(**args)
        if call.closure_of is None:
            return self.use(call)
        losses = []

        def closure() -> torch.Tensor:
            losses.append(self.use(call))
            return losses[-1]

        returned = self.optimizers[call.closure_of].step(closure)
        expect(len(losses) == 1 and returned is losses[0], "the closure was not called once")
        return returned

    def use(self, call: Backward) -> torch.Tensor:
        flags = {"delay_unscale": call.delayed, "delay_overflow_check": call.deferred}
        value, of = self.loss(call), call.of
        with self.must_end(call.ends):
            with amp.scale_loss(value, self.given(of), call.loss, **flags) as scaled_loss:
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
        raised = self.ends.get(ends)
        if raised is None:
            yield
            return
        try:
            yield
        except raised:
            return
        raise Different(f"expected the block to be ended by an exception: {ends}")

    def end_block(self, ends: str | None, loss: torch.Tensor, of: list[int]) -> None:
        if ends == "raise":
            raise KeyError
        if ends == "step":
            self.optimizers[of[0]].step()
        if ends == "scale_loss":
            with self.amp.scale_loss(loss, self.given(of)):
                pass

    def zero_in_block(self, zero_inside: str | None, of: list[int]) -> None:
        if zero_inside == "model":
            self.model.zero_grad()
        for i in of if zero_inside == "optimizer" else []:
            self.optimizers[i].zero_grad()

    def step(self, of: int, halves: list[int] | None = None) -> Any:
        if halves is None:
            return self.optimizers[of].step()
        optimizer, dtypes = self.optimizers[of], [param.dtype for param in self.params]
        found: list[dict] = []

        def look(*_: Any) -> None:
            same = [param.dtype for param in self.params] == dtypes
            expect(same, "hooks see parameters of another dtype")
            for i in self.stepped_by(of):
                use_state(optimizer.state, self.params[i], "look")
            grads = enumerate(param.grad for param in self.params)
            found.append({i: None if grad is None else grad.clone() for i, grad in grads})

        def halve(*_: Any) -> None:
            look()
            for i in halves:
                self.params[i].grad.mul_(0.5)

        if of == 0:
            hooks = optimizer.register_step_pre_hook(halve), optimizer.register_step_post_hook(look)
        else:
            hooks = register_optimizer_step_pre_hook(halve), register_optimizer_step_post_hook(look)
        try:
            optimizer.step()
        finally:
            for hook in hooks:
                hook.remove()
        expect(len(found) == 2, "the hooks did not run")
        return found[0]

    def zero(self, of: int, to_none: bool = True) -> None:
        self.optimizers[of].zero_grad(set_to_none=to_none)

    def zero_model(self, to_none: bool = True) -> None:
        self.model.zero_grad(set_to_none=to_none)

    def drop_grads(self, params: list[int]) -> None:
        for i in params:
            self.params[i].grad = None

    def clip_norm(self, of: list[int], max_norm: float) -> torch.Tensor:
        return amp.clip_grad_norm_(self.given(of), max_norm)

    def clip_value(self, of: list[int], value: float) -> None:
        amp.clip_grad_value_(self.given(of), value)

    def clip_model(self, params: list[int], by: str, limit: float) -> torch.Tensor | None:
        given = [self.params[i] for i in params]
        if by == "data":  # as LibTorch's function, whose writes PyTorch does not count
            for grad in (param.grad for param in given if param.grad is not None):
                grad.data.clamp_(-limit, limit)
            return None
        return getattr(torch.nn.utils, f"clip_grad_{by}_")(given, limit)

    def edit(self, of: int, how: str) -> None:
        for param in amp.master_params(self.optimizers[of]):
            if param.grad is not None and how == "fill":
                param.grad.fill_(3 / 64)
            elif param.grad is not None:
                (param.grad.data if how == "data" else param.grad).neg_()

    def look(self, of: int) -> dict[int, torch.Tensor | None]:
        masters = list(amp.master_params(self.optimizers[of]))
        found = {id(master): master.grad for master in masters}
        core = self.optimizers[of]._torchamp.core
        grads = {id(param.model): found[id(param.master)] for param in core.params()}
        return {i: grads.get(id(param)) for i, param in enumerate(self.params)}

    def write(self, param: int, seed: int) -> None:
        with torch.no_grad():
            self.params[param].copy_(drawn_value(self.shapes[param], seed))

    def swap(self, params: list[int], seed: int) -> None:
        self.swapped = {i: self.params[i].detach().clone() for i in params}
        for i in params:
            self.write(i, seed)

    def swap_back(self) -> None:
        with torch.no_grad():
            for i, held in self.swapped.items():
                self.params[i].copy_(held)
        self.swapped = {}

    def halve(self, param: int) -> None:
        with torch.no_grad():
            self.params[param].mul_(0.5)

    def write_data(self, param: int, seed: int) -> None:
        self.params[param].data.copy_(drawn_value(self.shapes[param], seed))
        if not self.adopts:
            self.amp.refresh_masters()

    def freeze(self, param: int) -> None:
        self.params[param].requires_grad_(False)

    def thaw(self, param: int) -> None:
        self.params[param].requires_grad_(True)

    def set(self, of: int, group: int, name: str, value: float) -> None:
        self.optimizers[of].param_groups[group][name] = value

    def scale(self, loss: int, value: float, clean: int) -> None:
        self.amp.loss_scalers[loss].load_state(value, clean)

    def close(self) -> None:
        self.amp.close()


def compare_found(what: str, found: dict, expected: dict, mirror: Mirror) -> None:
    for i, tensor in expected.items():
        expect(found[i] is not None, f"{what} {i} is not there")
        param = mirror.params[i]
        held = tensor.to(param.dtype) if param.is_narrow else tensor
        check_close(f"{what} {i}", found[i], held, mirror)


def check_close(name: str, found: torch.Tensor, expected: torch.Tensor, mirror: Mirror) -> None:
    found, expected = found.detach().to(expected.dtype), expected.detach()
    expect(found.shape == expected.shape, f"{name} is of {found.shape}, not {expected.shape}")
    if torch.equal(found, expected):
        return
    tolerance = TOLERANCE[expected.dtype] if mirror.is_approximate else 0.0
    is_close = torch.isclose(found, expected, tolerance, tolerance, True)
    expect(is_close.all(), f"{name} is {found.tolist()} for {expected.tolist()}")


class Pair:
    """torchamp and the mirror."""

    def __init__(self, setup: Setup) -> None:
        self.mirror = Mirror(setup)
        self.run = Run(setup)
        self.run.begin()

    def follow(self, event: Event) -> None:
        """Raises Different, or Undetermined before anything is done."""
        held = [param.in_model.clone() for param in self.mirror.params]
        grads = enumerate(param.grad for param in self.run.params)
        self.mirror.dtypes = {i: grad.dtype for i, grad in grads if grad is not None}
        try:
            expected, is_refused = self.mirror.follow(event), False
        except Refused:
            expected, is_refused = None, True
        found = self.found(event, is_refused)
        if isinstance(expected, dict):
            compare_found(event.name, found, expected, self.mirror)
        elif expected is not None:
            is_narrow = any(param.is_narrow for param in self.mirror.params)
            dtype = torch.bfloat16 if is_narrow else torch.float32
            check_close("the norm", found.to(dtype), expected.to(dtype), self.mirror)
            self.resynchronize_clipped(event.args.get("of", []))
        if event.name == "backward":
            self.compare_read(event.args["reach"], held)
        self.check_keys()
        if event.name != "write_masters":  # the next event must find them
            self.compare()
        self.compare_grads()
        of = event.args["of"] if event.name == "step" else event.args.get("closure_of")
        if of is not None and not is_refused:
            self.compare_masters(of)

    def found(self, event: Event, is_refused: bool) -> Any:
        self.run.model.read = []
        try:
            found = getattr(self.run, event.name)(**event.args)
        except Exception as error:
            is_expected = is_refused and isinstance(error, (RuntimeError, ValueError))
            expect(is_expected, f"raised {type(error).__name__}: {error}")
            return None
        expect(not is_refused, "did not raise")
        return found

    def compare_read(self, reach: list[int], held: list[torch.Tensor]) -> None:
        """What the forward of a loss has found in the model."""
        for i, read in zip(reach, self.run.model.read):
            is_same = torch.equal(read.nan_to_num(), held[i].nan_to_num())
            expect(
                is_same, f"forward read {read.tolist()} of parameter {i}, not {held[i].tolist()}"
            )

    def compare(self) -> None:
        in_float32 = self.run.model.state_dict()
        for i, name in self.run.names().items():
            param = self.mirror.params[i]
            value = param.value if param.has_master else param.in_model
            expect(in_float32[name].dtype == torch.float32, f"{name} is not saved in float32")
            found = in_float32[name].to(value.dtype)
            check_close(name, found, value, self.mirror)
            if self.mirror.is_approximate:
                self.resynchronize(param, found)
            self.compare_in_model(name, self.run.params[i].detach(), param)

    def check_keys(self) -> None:
        """Groups and states are of the model's parameters."""
        for optimizer in self.run.optimizers:
            held = [param for group in optimizer.param_groups for param in group["params"]]
            for param in (*held, *optimizer.state):
                is_models = any(param is each for each in self.run.params)
                expect(is_models, f"{list(param.shape)} in groups or state is not the model's")

    def compare_grads(self) -> None:
        """Those that the model shows are what the next step uses."""
        for i, param in enumerate(self.mirror.params):
            if param.is_shown:
                grad = self.run.params[i].grad
                expect(grad is not None, f"grad {i} is None for {param.sum.tolist()}")
                check_close(f"grad {i}", grad, param.sum.to(grad.dtype), self.mirror)

    def compare_in_model(self, name: str, found: torch.Tensor, param: Param) -> None:
        expect(found.dtype == param.dtype, f"{name} is of {found.dtype}")
        expect(
            torch.equal(found.nan_to_num(), param.in_model.nan_to_num()),
            f"{name} in the model is {found.tolist()} for {param.in_model.tolist()}",
        )

    def resynchronize(self, param: Any, found: torch.Tensor) -> None:
        """So that no rounding differs later."""
        with torch.no_grad():
            param.value.copy_(found)

    def resynchronize_clipped(self, of: list[int]) -> None:
        """So that later grads do not cancel all but the rounding of clipped ones of 16 bits."""
        given = [self.mirror.optimizers[i] for i in of]
        for i, param in enumerate(self.mirror.params):
            is_clipped = any(user in given for user in param.users)
            is_discarded = param.was_discarded or any(user.overflow for user in param.users)
            grad = self.run.params[i].grad
            is_lazy = param.has_master and any(user.is_lazy for user in param.users)
            is_narrow = not (is_lazy or grad is None or grad.dtype == torch.float32)
            if is_narrow and param.sum is not None and is_clipped and not is_discarded:
                check_close(f"grad {i}", grad, param.sum.to(grad.dtype), self.mirror)
                param.sum = grad.to(param.sum.dtype, copy=True)

    def compare_masters(self, of: int) -> None:
        """Those of the optimizer that has stepped."""
        stepped = self.mirror.optimizers[of].params
        for i, param in enumerate(self.mirror.params):
            if param in stepped:
                master = _C.stepped_for(self.run.params[i])
                value = param.value if param.has_master else param.in_model
                check_close(f"master {i}", master, value, self.mirror)

    def close(self) -> None:
        self.run.close()


def failure(program: Program) -> str:
    """What is different after which event; empty if nothing is. Raises Undetermined."""
    pair = Pair(program.setup)
    try:
        for number, event in enumerate(program.events):
            try:
                pair.follow(event)
            except Different as difference:
                return f"after event {number}, {event}: {difference}"
    finally:
        pair.close()
    return ""
