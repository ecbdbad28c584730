"""amp_C's update of a loss scale."""

from __future__ import annotations

import torch

from torchamp import ops


def update_scale_hysteresis(
    current_scale: torch.Tensor,
    growth_tracker: torch.Tensor,
    hysteresis_tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
    hysteresis: int,
) -> torch.Tensor:
    """Backs `current_scale` off from the `hysteresis`-th overflow in a row on, or counts a clean
    step and grows it after `growth_interval` of them; returns it.

    current_scale, found_inf: float32, trackers: int32, of one element each. The scale stays a
    normal number: it neither becomes infinite nor vanishes.
    """
    rule = ops.ScaleRule(
        growth_factor=growth_factor,
        backoff_factor=backoff_factor,
        growth_interval=growth_interval,
        min_scale=0.0,
        max_scale=torch.finfo(torch.float32).max,
        hysteresis=hysteresis,
    )
    ops.update_scale(current_scale, growth_tracker, hysteresis_tracker, found_inf, rule)
    return current_scale
