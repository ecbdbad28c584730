"""The loss scaler of FP16_Optimizer."""

from __future__ import annotations

from typing import Any

import torch

from torchamp import LossScaler, ops


def dynamic_scaler(
    device: torch.device,
    init_scale: float = 2.0**16,
    scale_factor: float = 2.0,
    scale_window: int = 2000,
    min_loss_scale: float | None = None,
    max_loss_scale: float = 2.0**24,
) -> LossScaler:
    """A dynamic loss scaler of apex's arguments. Without a min_loss_scale it stops at 2**-10, where
    apex's goes on to 0."""
    rule = ops.ScaleRule(
        growth_factor=scale_factor,
        backoff_factor=1.0 / scale_factor,
        growth_interval=scale_window,
        min_scale=min_loss_scale or ops.ScaleRule().min_scale,
        max_scale=max_loss_scale,
    )
    return LossScaler("dynamic", init_scale=init_scale, rule=rule, device=device)


def scaler_state(saved: Any) -> tuple[float, int, int]:
    """The scaler's state in a state dict: ours, or the object that apex saves."""
    if isinstance(saved, (tuple, list)):
        return tuple(saved)
    return float(saved._loss_scale), int(saved._unskipped), 1
