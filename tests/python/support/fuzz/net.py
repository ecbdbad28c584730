"""The net of a fuzzed program, and what it computes.

The grads of a loss are drawn integers times UNIT, whatever the parameters hold: sums of them, and
their products with a loss scale, are exact in every dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from fuzz.calls import FINE, coefs_in, is_fine, product_in, remember
from fuzz.events import Backward

UNIT = 2.0**-6
LARGEST = 7
#: Up to here, sums of units are exact in bfloat16.
EXACT = 255 * UNIT
INF = float("inf")


class Holder(nn.Module):
    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(value)


PARTS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(3, 2),
    "norm": lambda: nn.BatchNorm1d(3),
    "layer_norm": lambda: nn.LayerNorm(3),
    "scalar": lambda: Holder(torch.zeros(())),
    "empty": lambda: Holder(torch.zeros(0, 2)),
    "strided": lambda: Holder(torch.zeros(3, 2).t()),
    "sliced": lambda: Holder(torch.zeros(3, 4)[:, ::2]),
    #: What no optimizer has at first; frozen.
    "extra": lambda: Holder(torch.zeros(2)),
    "wide": lambda: Holder(torch.zeros(2, dtype=torch.float64)),
}


class Net(nn.Module):
    """Parts whose parameters are reached one by one."""

    def __init__(self, parts: Sequence[str]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(PARTS[part]() for part in parts)
        self.tied, self.read = self.parts[0], []
        generator = torch.Generator().manual_seed(len(parts))
        with torch.no_grad():
            for param in self.parameters():
                drawn = torch.rand(param.shape, generator=generator)
                param.copy_((drawn + 0.5) * (drawn.mul(64).round() % 2 * 2 - 1))

    def forward(
        self,
        batch: Any,
        reached: Sequence[str] = (),
        island: str | None = None,
        memory: dict[str, Any] | None = None,
    ) -> torch.Tensor:
        """A loss whose grads are the coefficients in `batch`, of the parameters with the names
        `reached`. Keeps what it has read. Of a tensor: what the layers make of it."""
        if isinstance(batch, torch.Tensor):
            return self.through_layers(batch)
        coefs = coefs_in(batch)
        named = dict(self.named_parameters())
        params = [named[name] for name in reached]
        self.read = [param.detach().clone() for param in params]
        if memory is not None:
            remember(memory, coefs)
        products = [product_in(island, param, coef) for param, coef in zip(params, coefs)]
        return torch.stack(products).sum()

    def through_layers(self, x: torch.Tensor) -> torch.Tensor:
        """Keeps what the last one is given."""
        for part in self.parts:
            if not isinstance(part, Holder):
                self.hidden, x = x, part(x)
        return x

    def in_batch_norm(self) -> list[bool]:
        """Whether each parameter is batch norm's."""
        inside = {
            id(param)
            for part in self.parts
            if isinstance(part, nn.BatchNorm1d)
            for param in part.parameters()
        }
        return [id(param) in inside for param in self.parameters()]


def drawn(param: torch.Tensor, seed: int) -> torch.Tensor:
    """Integers times UNIT."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-LARGEST, LARGEST + 1, param.shape, generator=generator) * UNIT


def drawn_value(param: torch.Tensor, seed: int) -> torch.Tensor:
    """Exact in every dtype, and none of another seed's."""
    return drawn(param, seed) + 2.0 + seed % 7 / 4


def drawn_coefs(params: Sequence[torch.Tensor], call: Backward, level: str) -> list[torch.Tensor]:
    """The grads of a loss, by the seed `coefs`; one element of `inf_in`'s is infinite. Where casts
    are off, 16 bits do not hold them."""
    factor = FINE if is_fine(call.island, level) else 1.0
    grads = [drawn(params[i], call.coefs * 100 + i) * factor for i in call.reach]
    for i, grad in zip(call.reach, grads):
        if i == call.inf_in and grad.numel():
            grad.view(-1)[-1] = INF
    return grads


def use_state(states: Any, param: torch.Tensor, how: str) -> torch.Tensor:
    """What a program does to an optimizer's states of a parameter; how: "look", "halve", "delete"
    them, "clear" all. Returns what it has found, but for counts."""
    state = states[param]
    names = [name for name in sorted(state) if name != "step" and state[name] is not None]
    tensors = [torch.as_tensor(state[name]) for name in names]
    found = torch.cat([torch.zeros(0), *(each.detach().float().flatten() for each in tensors)])
    if how == "halve":
        for name in names:
            state[name] *= 0.5
    elif how == "delete":
        del states[param]
    elif how == "clear":
        states.clear()
    return found
