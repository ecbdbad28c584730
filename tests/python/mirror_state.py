"""What the mirror of a program knows of each parameter and optimizer, and what these are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from fuzz_events import Net, Recipe, Setup
from reference.optimizers import LAMB, LARS, NovoGrad

#: torch's counterparts of torchamp.optimizers.
COUNTERPARTS = {
    "FusedSGD": torch.optim.SGD,
    "FusedAdam": torch.optim.Adam,
    "FusedAdamW": torch.optim.AdamW,
    "FusedAdagrad": torch.optim.Adagrad,
    "FusedLARS": LARS,
    "FusedNovoGrad": NovoGrad,
    "FusedLAMB": LAMB,
}
#: What the levels are, unless overridden.
CASTS = {"O2": torch.float16, "O3": torch.float16, "O5": torch.bfloat16}


class Undetermined(Exception):
    """The rule does not say what this event does."""


class Refused(Exception):
    """torchamp must raise, and change nothing."""


@dataclass(eq=False)
class Param:
    """A parameter and the sum of its grads."""

    value: torch.Tensor  #: what is stepped
    dtype: torch.dtype  #: the model's
    has_master: bool
    is_trainable: bool
    users: list[Stepped] = field(default_factory=list)
    sum: torch.Tensor | None = None
    #: Whether zeros may be left in the place of a grad.
    may_be_zeros: bool = False
    #: Whether a skipped step has discarded the sum, which may be in memory still.
    was_discarded: bool = False
    #: Whether the model's grad was set to None, which the next backward or step notices.
    is_unnoticed: bool = False
    #: Whether the last step, taken or skipped, has used the master's sum up.
    was_used: bool = False
    #: Its values before the writes that no backward has noticed yet.
    before_writes: list[torch.Tensor] = field(default_factory=list)

    @property
    def is_narrow(self) -> bool:
        """Whether it has 16 bits, and no master."""
        return self.dtype != torch.float32 and not self.has_master

    @property
    def in_model(self) -> torch.Tensor:
        return self.value.detach().to(self.dtype)

    def write(self, value: torch.Tensor) -> None:
        with torch.no_grad():
            self.value.copy_(value.to(self.dtype))

    def holds_part_of(self, value: torch.Tensor) -> bool:
        """Whether the model has some elements of `value` already, by rounding the master's, or had
        them before writes that no backward has noticed."""
        written = value.to(self.dtype)
        masters = [self.value.detach(), *self.before_writes]
        return any(((m.to(self.dtype) == written) & (m != written)).any() for m in masters)

    def add(self, grad: torch.Tensor) -> None:
        dtype = self.dtype if self.is_narrow else self.value.dtype
        total = grad if self.sum is None else self.sum.to(dtype) + grad.to(dtype)
        self.sum = total.to(self.value.dtype)
        self.may_be_zeros = self.was_discarded = self.was_used = self.is_unnoticed = False

    def forget(self, zeros: bool = False) -> None:
        """As zeroing does, in plain PyTorch; a master's zeros may be dropped."""
        had_zeros = zeros and (
            self.may_be_zeros or self.was_discarded or self.was_used or self.is_unnoticed
        )
        keeps_zeros = zeros and self.sum is not None
        self.may_be_zeros = had_zeros or (keeps_zeros and self.has_master)
        self.sum = self.sum * 0 if keeps_zeros and not self.has_master else None
        if self.sum is not None:
            self.sum = torch.zeros_like(self.sum)
        self.was_discarded &= not zeros
        self.was_used = self.is_unnoticed = False

    def forget_but_zeros(self) -> None:
        """As a step does: the zeros that the model has for a master stay."""
        may_be_zeros = self.may_be_zeros and self.has_master
        self.forget()
        self.may_be_zeros = may_be_zeros

    def drop(self) -> None:
        """As the program does where it sets the model's grad to None."""
        had_sum = self.sum is not None or self.is_unnoticed
        self.forget_but_zeros()
        self.is_unnoticed = had_sum and (self.has_master or any(u.delayed for u in self.users))

    def discard(self) -> None:
        """As a skipped step does."""
        self.forget_but_zeros()
        self.was_discarded, self.was_used = not self.has_master, self.has_master


@dataclass(eq=False)
class Stepped:
    """An optimizer of masters, and what its next step must know."""

    recipe: Recipe
    optimizer: torch.optim.Optimizer
    params: list[Param]
    #: The parameters that overflowed; ALL where it was given to a backward that did.
    overflow: set[Any] = field(default_factory=set)
    #: None: the rule does not say.
    delayed: bool | None = False
    #: Whether the rule does not say if the next step is skipped.
    is_unclear: bool = False

    def is_insensitive(self) -> bool:
        """Whether its step by zeros does nothing."""
        groups = self.optimizer.param_groups
        return type(self.optimizer) is torch.optim.SGD and not any(
            group["momentum"] or group["weight_decay"] for group in groups
        )

    def clear(self) -> None:
        self.overflow.clear()
        self.is_unclear = self.delayed = False


ALL = "all"


def require(is_determined: Any, what: str) -> None:
    if not is_determined:
        raise Undetermined(what)


def distinct(params: Iterable[Param]) -> list[Param]:
    return list(dict.fromkeys(params))


def made_params(setup: Setup) -> list[Param]:
    net = Net(setup.parts)
    named = zip(net.parameters(), net.in_batch_norm())
    return [made_param(setup, i, *each) for i, each in enumerate(named)]


def made_param(setup: Setup, i: int, param: torch.Tensor, is_batch_norm: bool) -> Param:
    keeps_norm = setup.overrides.get("keep_batchnorm_fp32", setup.level != "O3")
    cast = CASTS.get(setup.level)
    dtype = torch.float32 if cast is None or (is_batch_norm and keeps_norm) else cast
    users = [recipe for recipe in setup.optimizers if i in sum(recipe.groups, ())]
    is_wide = any(recipe.is_fused for recipe in users)
    has_master = keeps_masters(setup) and dtype != torch.float32 and bool(users)
    value = param.detach()
    if not has_master:
        value = value.to(dtype)
    value = value.float() if is_wide else value
    return Param(value, dtype, has_master, i not in setup.frozen)


def keeps_masters(setup: Setup) -> bool:
    return setup.overrides.get("master_weights", setup.level in ("O2", "O5"))


def made_optimizers(setup: Setup, params: list[Param]) -> list[Stepped]:
    """Of the float32 net, as programs make them: states that are made then stay float32."""
    dtypes = [param.value.dtype for param in params]
    for param in params:
        param.value.data = param.value.float()
    optimizers = [made_optimizer(recipe, params) for recipe in setup.optimizers]
    for param, dtype in zip(params, dtypes):
        param.value.data = param.value.to(dtype)
    return optimizers


def made_optimizer(recipe: Recipe, params: list[Param]) -> Stepped:
    optimizer = counterpart(recipe, [param.value for param in params])
    stepped = Stepped(recipe, optimizer, [params[i] for i in sum(recipe.groups, ())])
    for param in stepped.params:
        param.users.append(stepped)
    return stepped


def counterpart(recipe: Recipe, params: list[torch.Tensor]) -> torch.optim.Optimizer:
    """torch's optimizer of the same algorithm."""
    options = {name: value for name, value in recipe.options.items() if name != "fused"}
    kind = COUNTERPARTS.get(recipe.kind) or getattr(torch.optim, recipe.kind)
    return Recipe(recipe.kind, recipe.groups, options).make(kind, params)
