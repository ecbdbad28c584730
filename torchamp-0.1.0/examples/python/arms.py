"""Ways to train: float32, torch.autocast with and without a loss scale, and apex's loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from digits import Digits, loss_scale
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import torchamp


class Arm(NamedTuple):
    """A way to train. ``casts()``: the context in which the model is called. ``update(loss)``: the
    backward and the optimizer's step. ``scale()``: the loss scale of the next step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    update: Callable[[Tensor], None]
    casts: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    scale: Callable[[], float] = lambda: 1.0


def float32_arm(model: nn.Module, optimizer: torch.optim.Optimizer) -> Arm:
    """Without any casts."""

    def update(loss: Tensor) -> None:
        loss.backward()
        optimizer.step()

    return Arm(model, optimizer, update)


def autocast_arm(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Arm:
    """torch's casts to float16, without a loss scale."""

    def casts() -> torch.autocast:
        return torch.autocast(device.type, dtype=torch.float16)

    return float32_arm(model, optimizer)._replace(casts=casts)


def native_arm(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Arm:
    """torch's own mixed precision: its casts, and its loss scale."""
    scaler = torch.amp.GradScaler(device.type)

    def update(loss: Tensor) -> None:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    arm = autocast_arm(model, optimizer, device)
    return arm._replace(update=update, scale=scaler.get_scale)


def amp_arm(
    model: nn.Module, optimizer: torch.optim.Optimizer, level: str, amp: Any = torchamp.amp
) -> Arm:
    """The loop of apex. ``amp``: torchamp.amp or apex.amp."""
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)

    def update(loss: Tensor) -> None:
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()

    return Arm(model, optimizer, update, scale=loss_scale)


def train_step(
    arm: Arm, batch: Digits, call: Callable[[nn.Module, Tensor], Tensor] = nn.Module.__call__
) -> tuple[float, bool]:
    """One step on one batch. ``call``: runs the model on the images. Returns the loss, and whether
    the step was skipped."""
    scale = arm.scale()
    arm.optimizer.zero_grad()
    with arm.casts():
        loss = cross_entropy(call(arm.model, batch.images), batch.labels)
    arm.update(loss)
    return loss.item(), arm.scale() < scale
