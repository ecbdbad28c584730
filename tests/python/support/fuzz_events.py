"""What a fuzzed program is: a setup and events, which print as text that can be read and run.

The grads of a loss are drawn integers times UNIT, whatever the parameters hold: sums of them, and
their products with a loss scale, are exact in every dtype.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from fuzz_calls import FINE, coefs_in, is_fine, product_in, remember
from own_list import OwnList
from torch import nn

from torchamp import optimizers

UNIT = 2.0**-6
LARGEST = 7
#: Up to here, sums of units are exact in bfloat16.
EXACT = 255 * UNIT
INF = float("inf")


@dataclass(frozen=True)
class Recipe:
    """An optimizer: one of torch.optim, OwnList or, if its name starts with Fused, of
    torchamp.optimizers. Its groups are given by the parameters' numbers; each has half the lr of
    the one before."""

    kind: str
    groups: tuple[tuple[int, ...], ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_fused(self) -> bool:
        return self.kind.startswith("Fused")

    @property
    def type(self) -> Any:
        if self.kind == "OwnList":
            return OwnList
        return getattr(optimizers if self.is_fused else torch.optim, self.kind)

    def make(self, kind: Callable, params: Sequence[torch.Tensor]) -> Any:
        options = dict(self.options)
        lr = options.pop("lr")
        as_number: Callable = torch.tensor if options.pop("tensor_lr", False) else float
        groups = [
            {"params": [params[i] for i in group], "lr": as_number(lr * 0.5**n)}
            for n, group in enumerate(self.groups)
        ]
        return kind(groups, lr=as_number(lr), **options)


@dataclass(frozen=True)
class Setup:
    """A net of these parts, its optimizers, and how they are initialized."""

    level: str
    parts: tuple[str, ...]
    optimizers: tuple[Recipe, ...]
    overrides: dict[str, Any] = field(default_factory=dict)
    #: The parameters that need no grad at first.
    frozen: tuple[int, ...] = ()


@dataclass(frozen=True)
class Event:
    name: str
    args: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.args.items())})"


@dataclass(frozen=True)
class Backward:
    """What a backward is told. ends: "empty" without one; "raise", "scale_loss", "step": by that
    exception. masters_of: the optimizer whose masters, all that train, its loss reaches too.
    closure_of: the optimizer that calls it in a step.

    Where both languages follow it, its loss may be of the layers too: "entropy" or "square" of
    their output, the "outputs" themselves, or "inner", which does not reach the last; of another
    dtype; and too small for grads of 16 bits. ends may be "hook", midway by an exception, or a call
    that is refused there: "clip_norm", "clip_value", "release". Or it says whose the backward is:
    "unscaled", of the loss itself; of "another" loss; of what is made of the scaled loss, "part";
    "freed", of a graph that it frees; "grad", of torch.autograd.grad; "outside" of scale_loss.
    late: one more after the block.
    """

    loss: int
    of: list[int]
    reach: list[int]
    coefs: int
    delayed: bool = False
    deferred: bool = False
    inf_in: int | None = None
    is_nan: bool = False
    twice: bool = False
    zero_inside: str | None = None
    ends: str | None = None
    batch: str | None = None
    island: str | None = None
    writes: bool = False
    masters_of: int | None = None
    closure_of: int | None = None
    layers: str | None = None
    is_tiny: bool = False
    dtype: torch.dtype | None = None
    late: bool = False

    def of_masters(self, params: list[int]) -> Backward:
        """One that reaches these alone, with other coefficients."""
        return dataclasses.replace(self, reach=params, coefs=self.coefs + 100, island=None)


@dataclass(frozen=True)
class Program:
    setup: Setup
    events: tuple[Event, ...]

    def __str__(self) -> str:
        setup = ",\n".join(
            f"    {each.name}={getattr(self.setup, each.name)!r}"
            for each in dataclasses.fields(self.setup)
        )
        return "\n".join([f"Setup(\n{setup},\n)", *map(str, self.events)])


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


def drawn(shape: torch.Size, seed: int) -> torch.Tensor:
    """Integers times UNIT."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-LARGEST, LARGEST + 1, shape, generator=generator) * UNIT


def drawn_coefs(shapes: Sequence[torch.Size], call: Backward, level: str) -> list[torch.Tensor]:
    """The grads of a loss, by the seed `coefs`; one element of `inf_in`'s is infinite. Where casts
    are off, 16 bits do not hold them."""
    factor = FINE if is_fine(call.island, level) else 1.0
    grads = [drawn(shapes[i], call.coefs * 100 + i) * factor for i in call.reach]
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


def drawn_value(shape: torch.Size, seed: int) -> torch.Tensor:
    """A parameter's value: exact in every dtype, and none of another seed's."""
    return drawn(shape, seed) + 2.0 + seed % 7 / 4
