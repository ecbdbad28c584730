"""Random loops with torchamp.amp.GradScaler, against the same loops without a scale."""

from __future__ import annotations

import random

import torch
from mirror.compare import TOLERANCE
from mirror.state import counterpart

from fuzz.draw import Draw
from fuzz.events import Backward
from fuzz.net import INF, Net, drawn_coefs
from fuzz.run import stepped_by
from torchamp import amp

START, ITERATIONS = 1024.0, 8


class Loop:
    """Two optimizers of one float32 net, and their counterparts, which skip where they must."""

    def __init__(self, seed: int) -> None:
        draw = Draw(seed)
        self.chance: random.Random = draw.chance
        draw.parts, draw.is_plain = draw.draw_parts(), True
        self.nets = Net(draw.parts), Net(draw.parts)
        self.params, self.plain_params = (list(net.parameters()) for net in self.nets)
        self.names = [name for name, _ in self.nets[0].named_parameters()]
        self.recipes = draw.recipes(list(range(len(self.params))), may_share=False)
        self.optimizers = [recipe.make(recipe.type, self.params) for recipe in self.recipes]
        self.plain = [counterpart(recipe, self.plain_params) for recipe in self.recipes]
        self.scaler = amp.GradScaler("cpu", init_scale=START, growth_interval=3)
        self.scale, self.clean = START, 0

    def __str__(self) -> str:
        return "\n".join(map(str, self.recipes))

    def failure(self) -> str:
        """What is different after which iteration; empty if nothing is."""
        for i in range(ITERATIONS):
            self.iterate()
            for number, (param, plain) in enumerate(zip(self.params, self.plain_params)):
                tolerance = TOLERANCE[torch.float32]
                if not torch.allclose(param, plain, tolerance, tolerance):
                    return f"iteration {i}: parameter {number} is {param} for {plain}"
                plain.data.copy_(param)
            if self.scaler.get_scale() != self.scale:
                return f"iteration {i}: the scale is {self.scaler.get_scale()} for {self.scale}"
        return ""

    def iterate(self) -> None:
        for param in (*self.params, *self.plain_params):
            param.grad = None
        for _ in range(self.chance.randint(1, 3)):
            self.backward()
        bad = [not self.is_finite(each) for each in self.plain]
        for optimizer, plain, skips in zip(self.optimizers, self.plain, bad):
            self.step(optimizer, plain, skips)
        self.scaler.update()
        self.note_scale(any(bad))

    def backward(self) -> None:
        """At first of all parameters, so that every optimizer has grads."""
        count = len(self.params)
        is_first = all(param.grad is None for param in self.params)
        reach = [i for i in range(count) if is_first or self.chance.random() < 0.5]
        inf_in = self.chance.randrange(count) if self.chance.random() < 0.1 else None
        call = Backward(0, [], reach, self.chance.randrange(100), inf_in=inf_in)
        grads = drawn_coefs(self.params, call, "O0")
        if reach:
            names = [self.names[i] for i in reach]
            self.scaler.scale(self.nets[0](grads, names)).backward()
            self.nets[1](grads, names).backward()

    def is_finite(self, optimizer: torch.optim.Optimizer) -> bool:
        grads = [param.grad for param in stepped_by(optimizer)]
        return all(grad is None or bool(grad.abs().lt(INF).all()) for grad in grads)

    def step(
        self, optimizer: torch.optim.Optimizer, plain: torch.optim.Optimizer, skips: bool
    ) -> None:
        if self.chance.random() < 0.5:
            self.scaler.unscale_(optimizer)
            self.halve_grads(optimizer)
            self.halve_grads(plain)
        self.scaler.step(optimizer)
        if not skips:
            plain.step()

    def halve_grads(self, optimizer: torch.optim.Optimizer) -> None:
        for param in stepped_by(optimizer):
            if param.grad is not None:
                param.grad.mul_(0.5)

    def note_scale(self, is_bad: bool) -> None:
        self.clean = 0 if is_bad else self.clean + 1
        self.scale *= 0.5 if is_bad else 1.0
        if self.clean == 3:
            self.scale, self.clean = self.scale * 2, 0
