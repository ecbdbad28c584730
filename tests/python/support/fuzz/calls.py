"""How a fuzzed program calls its model: what holds the arguments, what the forward writes to them,
and where it computes in float32 at O1 and O4."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

from torchamp import amp

#: Integers that 16 bits do not hold.
LABELS = torch.tensor([0, 1001, 2003, 3007])
#: What the grads of an island are multiplied with: 16 bits do not hold the products.
FINE = 1 + 2.0**-12


class Named(NamedTuple):
    coefs: list[torch.Tensor]
    labels: torch.Tensor


@dataclasses.dataclass
class Record:
    coefs: list[torch.Tensor]
    labels: torch.Tensor


class Movable:
    """Moves and casts itself in place."""

    def __init__(self, coefs: list[torch.Tensor], labels: torch.Tensor) -> None:
        self.coefs, self.labels = coefs, labels

    def to(self, *args: Any, **kwargs: Any) -> Movable:
        self.coefs = [coef.to(*args, **kwargs) for coef in self.coefs]
        self.labels = self.labels.to(*args, **kwargs)
        return self


#: What makes a batch of coefficients and labels.
BATCHES: dict[str, Callable[..., Any]] = {
    "tuple": lambda coefs, labels: (coefs, labels),
    "dict": lambda coefs, labels: {"coefs": coefs, "labels": labels},
    "named": Named,
    "record": Record,
    "movable": Movable,
}


def coefs_in(batch: Any) -> list[torch.Tensor]:
    """Raises AssertionError for other labels than LABELS."""
    if isinstance(batch, list):
        return batch
    as_dict = batch if isinstance(batch, dict) else getattr(batch, "__dict__", None)
    coefs, labels = as_dict.values() if as_dict else batch
    assert labels.dtype == torch.int64 and torch.equal(labels, LABELS), f"labels are {labels}"
    return coefs


class Product(torch.autograd.Function):
    """Of two vectors, by matrix products in forward and backward."""

    @staticmethod
    def forward(ctx: Any, param: torch.Tensor, coef: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(param, coef)
        return _product(param, coef)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        param, coef = ctx.saved_tensors
        return (coef.reshape(-1, 1) @ grad.reshape(1, 1)).reshape(param.shape), None


def _product(param: torch.Tensor, coef: torch.Tensor) -> torch.Tensor:
    return (param.reshape(1, -1) @ coef.reshape(-1, 1)).sum()


def _checkpointed(param: torch.Tensor, coef: torch.Tensor) -> torch.Tensor:
    if not param.requires_grad:
        return _product(param, coef)
    return checkpoint(_product, param, coef, use_reentrant=True)


def _no_autocast() -> contextlib.AbstractContextManager:
    return torch.autocast("cpu", enabled=False)


#: What turns casts off, and what multiplies there.
ISLANDS: dict[str, tuple[Callable, Callable]] = {
    "autocast": (_no_autocast, _product),
    "disable_casts": (amp.disable_casts, _product),
    "function": (amp.disable_casts, Product.apply),
    "checkpoint": (_no_autocast, _checkpointed),
}


def product_in(island: str | None, param: torch.Tensor, coef: torch.Tensor) -> torch.Tensor:
    """In float32."""
    if island is None:
        return (param.float() * coef.float()).sum()
    no_casts, multiply = ISLANDS[island]
    with no_casts():
        return multiply(param.float(), coef.float())


def is_fine(island: str | None, level: str) -> bool:
    """Whether grads come as they are, not in the dtype of a 16-bit parameter."""
    return island is not None and level in ("O1", "O4")


def remember(memory: dict[str, Any], coefs: list[torch.Tensor]) -> None:
    """As a forward does that writes its arguments."""
    memory["calls"] += 1
    memory["first"] = coefs[0] * 2


def check_memory(memory: dict[str, Any], coefs: list[torch.Tensor]) -> None:
    """Raises AssertionError if the write did not come back in float32."""
    calls, first = memory["calls"], memory["first"]
    assert calls.dtype == first.dtype == torch.float32, f"{calls.dtype}, {first.dtype}"
    assert calls.tolist() == [1.0], f"calls are {calls}"
    assert torch.equal(first, coefs[0] * 2), f"{first} for {coefs[0] * 2}"
