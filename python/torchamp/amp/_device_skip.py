"""Skipping a step on the device: fused optimizers, torch's and ours, leave everything as it is
where they find their attribute `found_inf` set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchamp.optimizers import FusedOptimizer

#: torch's optimizers that have a fused step.
FUSED_IN_TORCH = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


def can_skip_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the next step can be skipped without the host knowing. Seeds momentum buffers, which
    torch leaves uninitialised if the step that makes them is skipped."""
    if isinstance(optimizer, FusedOptimizer):
        return True
    if not isinstance(optimizer, FUSED_IN_TORCH):
        return False
    if not all(group.get("fused") for group in optimizer.param_groups):
        return False
    return not isinstance(optimizer, torch.optim.SGD) or _seed_momentum(optimizer)


def _seed_momentum(optimizer: torch.optim.SGD) -> bool:
    """Gives parameters about to take their first step zeros as momentum buffer, to which that step
    adds the grad. With dampening the first step is another than the later ones, so there is
    nothing to seed and the host must decide: returns False."""
    for group in optimizer.param_groups:
        if group["momentum"] == 0:
            continue
        for param in group["params"]:
            state = optimizer.state[param] if param.grad is not None else {"momentum_buffer": 0}
            if state.get("momentum_buffer") is not None:
                continue
            if group["dampening"] != 0:
                return False
            state["momentum_buffer"] = torch.zeros_like(param.grad)
    return True


def step_unless(
    found_inf: torch.Tensor, optimizer: torch.optim.Optimizer, step: Callable[[], Any]
) -> Any:
    """What `step`, that of `optimizer`, returns; it does nothing if `found_inf` is not 0."""
    optimizer.found_inf, optimizer.grad_scale = found_inf, None
    try:
        return step()
    finally:
        del optimizer.found_inf, optimizer.grad_scale
