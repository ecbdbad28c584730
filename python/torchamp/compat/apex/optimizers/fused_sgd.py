"""apex's FusedSGD."""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import required

from torchamp import optimizers
from torchamp.compat.apex.optimizers._translated import Translated

__all__ = ["FusedSGD"]


class FusedSGD(Translated, optimizers.FusedSGD):
    """torchamp.optimizers.FusedSGD with apex's arguments.

    lr: needed, here or in every group. wd_after_momentum: weight decay is added to the step instead
    of the grads. materialize_master_grads: accepted, changes nothing; amp.initialize has one that
    does. set_grad_none: what zero_grad() does.

    Raises ValueError for values outside of their range, and for a group without lr.
    """

    def __init__(
        self,
        params: Any,
        lr: Any = required,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool = False,
    ) -> None:
        if lr is required:
            params = list(params)
            if not all(isinstance(group, dict) and "lr" in group for group in params):
                raise ValueError("FusedSGD: expected lr, or an lr in every group")
        super().__init__(
            params,
            0.0 if lr is required else lr,
            momentum,
            dampening,
            weight_decay,
            nesterov,
            decay_after_momentum=wd_after_momentum,
        )
        self.defaults["lr"] = lr
        self.set_grad_none = set_grad_none
