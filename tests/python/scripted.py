"""Does what a script of events says, and tells after every event what a program can see.

tests/languages/main.cpp does the same in C++.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

import torchamp
from torchamp import amp, optimizers

LOSSES = 2

#: What can be seen after an event, by name: numbers as text.
Seen = dict[str, str]

RECIPES = {
    "SGD": lambda params: torch.optim.SGD(params, 0.05, momentum=0.875),
    "FusedSGD": lambda params: optimizers.FusedSGD(params, 0.05, momentum=0.9),
    "FusedLARS": lambda params: optimizers.FusedLARS(params, 1.0),
    "FusedAdam": lambda params: optimizers.FusedAdam(params, 0.01),
    "FusedAdamW": lambda params: optimizers.FusedAdamW(params, 0.01),
    "FusedAdagrad": lambda params: optimizers.FusedAdagrad(params, 0.05),
    "FusedNovoGrad": lambda params: optimizers.FusedNovoGrad(params, 0.01),
    "FusedLAMB": lambda params: optimizers.FusedLAMB(params, 0.01),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 2)
        #: Frozen until a group is added for it.
        self.extra = nn.Linear(4, 2, bias=False).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.hidden = torch.relu(self.norm(self.first(x)))
        return self.last(self.hidden) + self.extra(self.hidden)


class RaisedInBackward(Exception):
    pass


def raise_in_backward(grad: torch.Tensor) -> None:
    raise RaisedInBackward


class Run:
    """One training: does to a net and its optimizers what an event says."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.net = Net()
        self.optimizers: list[torch.optim.Optimizer] = []
        self.amp: torchamp.Amp | None = None
        self.is_looking = False
        self.seen: Seen = {}

    def optimizer(self, kind: str, *parts: str) -> None:
        params = [param for part in parts for param in self.net.get_submodule(part).parameters()]
        self.optimizers.append(RECIPES[kind](params))

    def initialize(self, level: str, loss_scale: str) -> None:
        self.amp = torchamp.Amp(
            self.net,
            self.optimizers,
            level,
            loss_scale=loss_scale,
            num_losses=LOSSES,
            verbosity=0,
        )
        for optimizer in self.optimizers:
            amp.telemetry(optimizer)

    def backward(self, loss_id: str, seed: str, *flags: str) -> None:
        options = {
            "delay_unscale": "delayed" in flags,
            "delay_overflow_check": "deferred" in flags,
        }
        loss = self.loss(loss_id, seed, flags)
        self.show("loss", loss)
        with self.amp.scale_loss(loss, self.reached(flags), int(loss_id), **options) as scaled_loss:
            if "raising" in flags:
                self.net.hidden.register_hook(raise_in_backward)
            scaled_loss.backward()

    def clip_norm(self, max_norm: str) -> None:
        norm = amp.clip_grad_norm_(self.optimizers, float(max_norm))
        self.show("norm", torch.nan_to_num(norm, math.inf, math.inf))

    def clip_value(self, value: str) -> None:
        amp.clip_grad_value_(self.optimizers, float(value))

    def step(self, index: str) -> None:
        self.optimizers[int(index)].step()

    def zero(self, index: str, to: str) -> None:
        self.optimizers[int(index)].zero_grad(set_to_none=to == "none")

    def zero_model(self, to: str) -> None:
        self.net.zero_grad(set_to_none=to == "none")

    def set(self, index: str, name: str, value: str) -> None:
        for group in self.optimizers[int(index)].param_groups:
            group[name] = type(group[name])(float(value))

    def add_group(self, index: str) -> None:
        weight = self.net.extra.weight.requires_grad_(True)
        self.optimizers[int(index)].add_param_group({"params": [weight]})

    def scale(self, loss_id: str, value: str, growth_tracker: str) -> None:
        self.amp.loss_scalers[int(loss_id)].load_state(float(value), int(growth_tracker), 1)

    def write(self) -> None:
        with torch.no_grad():
            self.net.first.weight.mul_(0.5)

    def look(self) -> None:
        """From now on the grads of masters are shown, which must be made for that."""
        for optimizer in self.optimizers:
            list(amp.master_params(optimizer))
        self.is_looking = True

    def save(self, file: str) -> None:
        self.amp.save(file)

    def load(self, file: str) -> None:
        self.amp.load(file)

    def loss(self, loss_id: str, seed: str, flags: Sequence[str]) -> torch.Tensor:
        """The loss of a batch; an inner one reaches the layers before `hidden` alone."""
        generator = torch.Generator().manual_seed(int(seed))
        x = torch.randn(8, 3, generator=generator)
        target = torch.randint(2, (8,), generator=generator)
        output = self.net(x)
        is_inner = "inner" in flags
        overflowing = self.net.norm.bias if is_inner else self.net.last.bias
        is_first = loss_id == "0"
        loss = nn.functional.cross_entropy(output, target) if is_first else output.square().mean()
        if is_inner:
            loss = self.net.hidden.float().square().mean()
        if "overflow" in flags:
            loss = loss + overflowing.float().sum() * math.inf
        return loss

    def reached(self, flags: Sequence[str]) -> list[torch.optim.Optimizer]:
        """The optimizers of what a loss reaches: of an inner one the first alone."""
        return self.optimizers[:1] if "inner" in flags else self.optimizers

    def show_values(self, name: str, values: Sequence[float]) -> None:
        self.seen[name] = " %.17g" * len(values) % tuple(values)

    def show(self, name: str, tensor: torch.Tensor | None) -> None:
        if tensor is not None:
            self.show_values(name, tensor.flatten().tolist())

    def show_all(self) -> None:
        if self.amp is None:
            return
        for i, scaler in enumerate(self.amp.loss_scalers):
            self.show_values(f"scalers.{i}", scaler.state())
        in_float32 = self.net.state_dict()
        for name, param in self.net.named_parameters():
            self.show(f"params.{name}", param)
            self.show(f"masters.{name}", in_float32[name])
            self.show(f"grads.{name}", param.grad)
        for name, buffer in self.net.named_buffers():
            self.show(f"buffers.{name}", buffer)
        for i, optimizer in enumerate(self.optimizers):
            self.show_optimizer(f"optimizers.{i}.", optimizer)

    def show_optimizer(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        telemetry = amp.telemetry(optimizer)
        counts = [telemetry.steps, telemetry.skipped_steps, telemetry.underflowed_steps]
        self.show_values(f"{name}steps", counts)
        if self.is_looking:
            for i, param in enumerate(amp.master_params(optimizer)):
                self.show(f"{name}{i}.grad", param.grad)
        for i, state in optimizer.state_dict()["state"].items():
            for key, tensor in state.items():
                self.show(f"{name}{i}.{key}", tensor)

    def follow(self, line: str) -> Seen:
        """What can be seen after the event."""
        name, *words = line.partition("#")[0].split()
        self.seen = {}
        try:
            getattr(self, name)(*words)
        except (RaisedInBackward, RuntimeError, ValueError):
            self.seen["raised"] = ""
        self.show_all()
        return self.seen


def follow(script: Sequence[str]) -> list[Seen]:
    """What can be seen after each event."""
    run = Run()
    try:
        return [run.follow(line) for line in script]
    finally:
        run.amp.close()
