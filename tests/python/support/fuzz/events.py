"""What a fuzzed program is: a setup and events, which print as text that can be read and run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from own_list import OwnList

from torchamp import optimizers


@dataclass(frozen=True)
class Recipe:
    """An optimizer: one of torch.optim, OwnList or, if its name starts with Fused, of
    torchamp.optimizers. Its groups are given by the parameters' numbers; each has half the lr of
    the one before."""

    kind: str
    groups: tuple[tuple[int, ...], ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def params(self) -> tuple[int, ...]:
        return sum(self.groups, ())

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

    def users(self, i: int) -> list[Recipe]:
        """Who steps a parameter."""
        return [recipe for recipe in self.optimizers if i in recipe.params]


#: The arguments of events that are numbers of optimizers, and of parameters.
OF_OPTIMIZERS = ("of", "masters_of", "closure_of")
OF_PARAMS = ("param", "params", "halves")

#: How a backward may end, as Backward says.
ENDS = (
    *(None, "empty", "raise", "scale_loss", "step"),
    *("hook", "clip_norm", "clip_value", "release"),
    *("unscaled", "another", "part", "freed", "grad", "outside"),
)


@dataclass(frozen=True)
class Event:
    name: str
    args: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name == "backward":
            Backward(**self.args)

    def by(self, run: Any) -> Any:
        """Does it by torchamp or by the mirror: a method of its name, which is given optimizers and
        parameters for their numbers."""
        among = dict.fromkeys(OF_OPTIMIZERS, run.optimizers) | dict.fromkeys(OF_PARAMS, run.params)
        args = {
            name: _taken(among[name], value) if name in among and value is not None else value
            for name, value in self.args.items()
        }
        return getattr(run, self.name)(**args)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.args.items())})"


@dataclass(frozen=True)
class Backward:
    """What a backward is told, by Event.by(). ends: "empty" without one; "raise", "scale_loss",
    "step": by that exception. masters_of: the optimizer whose masters, all that train, its loss
    reaches too. closure_of: the optimizer that calls it in a step.

    Where both languages follow it, its loss may be of the layers too: "entropy" or "square" of
    their output, the "outputs" themselves, or "inner", which does not reach the last; of another
    dtype; and too small for grads of 16 bits. ends may be "hook", midway by an exception, or a call
    that is refused there: "clip_norm", "clip_value", "release". Or it says whose the backward is:
    "unscaled", of the loss itself; of "another" loss; of what is made of the scaled loss, "part";
    "freed", of a graph that it frees; "grad", of torch.autograd.grad; "outside" of scale_loss.
    late: one more after the block.
    """

    loss: int
    of: list[Any]
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
    masters_of: Any = None
    closure_of: Any = None
    layers: str | None = None
    is_tiny: bool = False
    dtype: torch.dtype | None = None
    late: bool = False

    def __post_init__(self) -> None:
        if self.ends not in ENDS:
            raise ValueError(f"expected ends to be one of {ENDS}, got {self.ends!r}")

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


def _taken(among: Sequence[Any], numbers: Any) -> Any:
    """The one of a number, or those of a list of numbers, each once."""
    if isinstance(numbers, (list, tuple)):
        return [among[i] for i in dict.fromkeys(numbers)]
    return among[numbers]
