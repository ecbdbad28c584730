"""Compares torchamp with the mirror after every event of a program."""

from __future__ import annotations

from typing import Any

import torch
from fuzz.events import Event, Program, Setup
from fuzz.run import Different, Run, expect, stepped_by

from mirror.rule import Mirror
from mirror.state import Refused
from torchamp._load import _C

#: Of optimizers that are not torch's own code, and of what was clipped: relative and absolute.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def expect_same(what: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    """Bit for bit, but for NaNs."""
    is_same = torch.equal(found.nan_to_num(), expected.nan_to_num())
    expect(is_same, f"{what} is {found.tolist()} for {expected.tolist()}")


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
            self.compare_found(event.name, found, expected)
        elif expected is not None:
            is_narrow = any(param.is_narrow for param in self.mirror.params)
            dtype = torch.bfloat16 if is_narrow else torch.float32
            self.compare("the norm", found.to(dtype), expected.to(dtype))
            self.resynchronize_clipped(event.args.get("of", []))
        if event.name == "backward":  # what the forward has found in the model
            for i, read in zip(event.args["reach"], self.run.model.read):
                expect_same(f"parameter {i} in a forward", read, held[i])
        self.check_keys()
        if event.name != "write_masters":  # the next event must find them
            self.compare_params()
        self.compare_grads()
        of = event.args["of"] if event.name == "step" else event.args.get("closure_of")
        if of is not None and not is_refused:
            self.compare_masters(of)

    def found(self, event: Event, is_refused: bool) -> Any:
        self.run.model.read = []
        try:
            found = event.by(self.run)
        except Exception as error:
            is_expected = is_refused and isinstance(error, (RuntimeError, ValueError))
            expect(is_expected, f"raised {type(error).__name__}: {error}")
            return None
        expect(not is_refused, "did not raise")
        return found

    def compare(self, name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
        found, expected = found.detach().to(expected.dtype), expected.detach()
        expect(found.shape == expected.shape, f"{name} is of {found.shape}, not {expected.shape}")
        if torch.equal(found, expected):
            return
        tolerance = TOLERANCE[expected.dtype] if self.mirror.is_approximate else 0.0
        is_close = torch.isclose(found, expected, tolerance, tolerance, True)
        expect(is_close.all(), f"{name} is {found.tolist()} for {expected.tolist()}")

    def compare_found(self, what: str, found: dict, expected: dict) -> None:
        for i, tensor in expected.items():
            expect(found[i] is not None, f"{what} {i} is not there")
            param = self.mirror.params[i]
            self.compare(f"{what} {i}", found[i], param.rounded(tensor))

    def compare_params(self) -> None:
        in_float32 = self.run.model.state_dict()
        for i, name in self.run.names().items():
            param, in_model = self.mirror.params[i], self.run.params[i].detach()
            value = param.rounded(param.value)
            expect(in_float32[name].dtype == torch.float32, f"{name} is not saved in float32")
            found = in_float32[name].to(value.dtype)
            self.compare(name, found, value)
            if self.mirror.is_approximate:  # so that no rounding differs later
                with torch.no_grad():
                    param.value.copy_(found)
            expect(in_model.dtype == param.dtype, f"{name} is of {in_model.dtype}")
            expect_same(f"{name} in the model", in_model, param.in_model)

    def check_keys(self) -> None:
        """Groups and states are of the model's parameters."""
        for optimizer in self.run.optimizers:
            for param in (*stepped_by(optimizer), *optimizer.state):
                is_models = any(param is each for each in self.run.params)
                expect(is_models, f"{list(param.shape)} in groups or state is not the model's")

    def compare_grads(self) -> None:
        """Those that the model shows are what the next step uses."""
        for i, param in enumerate(self.mirror.params):
            if param.is_shown:
                grad = self.run.params[i].grad
                expect(grad is not None, f"grad {i} is None for {param.sum.tolist()}")
                self.compare(f"grad {i}", grad, param.sum.to(grad.dtype))

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
                self.compare(f"grad {i}", grad, param.sum.to(grad.dtype))
                param.sum = grad.to(param.sum.dtype, copy=True)

    def compare_masters(self, of: int) -> None:
        """Those of the optimizer that has stepped."""
        for param in self.mirror.optimizers[of].params:
            i = self.mirror.params.index(param)
            master = _C.stepped_for(self.run.params[i])
            self.compare(f"master {i}", master, param.rounded(param.value))


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
        pair.run.close()
    return ""
