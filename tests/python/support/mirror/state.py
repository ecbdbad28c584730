"""What the mirror of a program knows of each parameter and optimizer, and what these are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from fuzz.events import Recipe, Setup
from fuzz.net import Net
from reference.optimizers import LAMB, NovoGrad

#: torch's counterparts of torchamp.optimizers.
COUNTERPARTS = {
    "FusedSGD": torch.optim.SGD,
    "FusedAdam": torch.optim.Adam,
    "FusedAdamW": torch.optim.AdamW,
    "FusedNovoGrad": NovoGrad,
    "FusedLAMB": LAMB,
}
#: Options of storage and speed, which change no rule.
OURS = ("fused", "state_dtype")
#: What the levels are, unless overridden.
LOSS_SCALES = {"O1": "dynamic", "O2": "dynamic"}
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
    is_norm: bool = False  #: batch norm's
    is_in_model: bool = True
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
    #: Whether `.data` was written since the last step.
    is_data_written: bool = False
    #: Whether a master that the program has written may be ahead of the model.
    is_ahead: bool = False
    #: Whether a grad may be in memory that no step uses.
    is_dirty: bool = False
    #: Whether a fused step is to unscale the model's grad, which must not be written,
    is_checked: bool = False
    #: and whether it was written.
    is_spoilt: bool = False
    #: Whether a scale_loss without its optimizers has left it a grad.
    is_stray: bool = False

    @property
    def is_narrow(self) -> bool:
        """Whether it has 16 bits, and no master."""
        return self.dtype != torch.float32 and not self.has_master

    @property
    def in_model(self) -> torch.Tensor:
        return self.value.detach().to(self.dtype)

    def rounded(self, value: torch.Tensor) -> torch.Tensor:
        """To what is held of it: 16 bits, unless there is a master."""
        return value.detach().to(self.dtype) if self.is_narrow else value

    def write(self, value: torch.Tensor) -> None:
        with torch.no_grad():
            self.value.copy_(value.to(self.dtype))

    def scale(self, factor: float) -> None:
        """In float32."""
        with torch.no_grad():
            self.value.copy_(self.rounded(self.value.float() * factor))

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
        self.is_as_added()

    def is_as_added(self) -> None:
        self.may_be_zeros = self.was_discarded = self.was_used = self.is_unnoticed = False

    @property
    def is_left(self) -> bool:
        """Whether a grad may be in memory that is no part of the sum."""
        is_old = self.was_discarded or self.was_used or self.is_unnoticed or self.is_dirty
        return self.may_be_zeros or is_old or self.is_stray

    @property
    def is_shown(self) -> bool:
        """Whether the model shows the sum, which the next step uses."""
        is_clear = all(
            user.delayed is False
            and not (user.overflow or user.is_unclear or self in user.unnoticed)
            for user in self.users
        )
        is_lazy = self.has_master and any(user.is_lazy for user in self.users)
        is_left = self.is_left or self.is_spoilt or is_lazy
        return bool(self.users) and is_clear and not is_left and self.sum is not None

    @property
    def has_grad(self) -> bool:
        return self.sum is not None or self.is_left

    def release(self) -> None:
        """As amp.release: it is float32, and has no grad."""
        self.value = self.rounded(self.value).float()
        self.forget()
        self.may_be_zeros = self.was_discarded = self.is_ahead = self.is_dirty = False
        self.is_data_written = False
        self.before_writes.clear()
        self.dtype, self.has_master = torch.float32, False

    def forget(self, zeros: bool = False) -> None:
        """As zeroing does, in plain PyTorch; a master's zeros may be dropped."""
        had_zeros = zeros and self.is_left
        keeps_zeros = zeros and self.sum is not None
        self.may_be_zeros = had_zeros or (keeps_zeros and self.has_master)
        self.sum = self.sum * 0 if keeps_zeros and not self.has_master else None
        if self.sum is not None:
            self.sum = torch.zeros_like(self.sum)
        self.was_discarded &= not zeros
        self.was_used = self.is_unnoticed = False
        self.is_checked = self.is_spoilt = self.is_stray = False

    def forget_but_zeros(self) -> None:
        """As a step does: the zeros that the model has for a master stay."""
        may_be_zeros = self.may_be_zeros and self.has_master
        self.forget()
        self.may_be_zeros = may_be_zeros

    def drop(self) -> None:
        """As the program does where it sets the model's grad to None."""
        had_sum = self.sum is not None or self.is_unnoticed
        self.forget_but_zeros()
        self.is_dirty = False
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
    groups: list[list[Param]]
    #: Whether it steps by grads that are in the model still, 16 bits wide.
    is_lazy: bool = False
    #: The parameters that overflowed, its own and those of others that were given with it.
    overflow: set[Param] = field(default_factory=set)
    #: Whether others know of it, or grads were clipped beside it: one that leaves may not undo it.
    shares_overflow: bool = False
    #: None: the rule does not say.
    delayed: bool | None = False
    #: Whether the rule does not say if the next step is skipped.
    is_unclear: bool = False
    #: Parameters that were put in its groups and taken out, if it may not know.
    unnoticed: set[Param] = field(default_factory=set)
    leaving: set[Param] = field(default_factory=set)
    #: Taken out at any time; it may have their states.
    left: set[Param] = field(default_factory=set)
    #: Whether the program has given it a step of its own, and torchamp has seen that.
    is_bound: bool = False
    is_gated: bool = False
    #: A group that was taken out: its options and parameters.
    popped: tuple[dict, list[Param]] | None = None

    @property
    def params(self) -> list[Param]:
        return [param for group in self.groups for param in group]

    @property
    def is_edited(self) -> bool:
        return bool(self.unnoticed or self.leaving)

    def is_insensitive(self) -> bool:
        """Whether its step by zeros does nothing."""
        groups = self.optimizer.param_groups
        return type(self.optimizer) is torch.optim.SGD and not any(
            group["momentum"] or group["weight_decay"] for group in groups
        )

    def clear(self) -> None:
        self.clear_overflow()
        self.is_unclear = self.delayed = False

    def clear_overflow(self) -> None:
        self.overflow.clear()
        self.shares_overflow = False


def require(is_determined: Any, what: str) -> None:
    if not is_determined:
        raise Undetermined(what)


def distinct(params: Iterable[Param]) -> list[Param]:
    return list(dict.fromkeys(params))


def made_params(setup: Setup) -> list[Param]:
    net = Net(setup.parts)
    params = []
    for i, (value, is_norm) in enumerate(zip(net.parameters(), net.in_batch_norm())):
        params.append(Param(value.detach(), torch.float32, False, i not in setup.frozen, is_norm))
        initialize(setup, params[i], setup.users(i))
    return params


def initialize(setup: Setup, param: Param, users: Sequence[Recipe]) -> None:
    """Makes a float32 parameter what it is at the setup's level."""
    keeps_norm = setup.overrides.get("keep_batchnorm_fp32", setup.level != "O3")
    cast = CASTS.get(setup.level) if param.is_in_model else None
    is_kept = cast is None or (param.is_norm and keeps_norm)
    param.dtype = torch.float32 if is_kept else cast
    param.has_master = keeps_masters(setup) and not is_kept and bool(users)
    is_wide = param.has_master or any(recipe.is_fused for recipe in users)
    value = param.value if param.has_master else param.value.to(param.dtype)
    param.value = value.float() if is_wide else value


def keeps_masters(setup: Setup) -> bool:
    return setup.overrides.get("master_weights", setup.level in ("O2", "O5"))


def made_optimizers(setup: Setup, params: list[Param]) -> list[Stepped]:
    """Of the float32 net, as programs make them: states that are made then stay float32."""
    dtypes = [param.value.dtype for param in params]
    for param in params:
        param.value.data = param.value.float()
    optimizers = [made_optimizer(setup, recipe, params) for recipe in setup.optimizers]
    for param, dtype in zip(params, dtypes):
        param.value.data = param.value.to(dtype)
    return optimizers


def made_optimizer(setup: Setup, recipe: Recipe, params: list[Param]) -> Stepped:
    optimizer = counterpart(recipe, [param.value for param in params])
    groups = [[params[i] for i in group] for group in recipe.groups]
    stepped = Stepped(recipe, optimizer, groups, is_lazy=is_lazy(setup, recipe))
    for param in stepped.params:
        param.users.append(stepped)
    return stepped


def is_lazy(setup: Setup, recipe: Recipe) -> bool:
    is_asked_for = setup.overrides.get("materialize_master_grads") is False
    return recipe.is_fused and is_asked_for and loss_scale_of(setup) != 1.0


def loss_scale_of(setup: Setup) -> Any:
    return setup.overrides.get("loss_scale", LOSS_SCALES.get(setup.level, 1.0))


def counterpart(recipe: Recipe, params: list[torch.Tensor]) -> torch.optim.Optimizer:
    """torch's optimizer of the same algorithm."""
    options = {name: value for name, value in recipe.options.items() if name not in OURS}
    kind = COUNTERPARTS.get(recipe.kind) or recipe.type
    return Recipe(recipe.kind, recipe.groups, options).make(kind, params)
