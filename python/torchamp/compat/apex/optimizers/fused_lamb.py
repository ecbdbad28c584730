"""apex's FusedLAMB."""

from __future__ import annotations

from typing import Any

from torchamp import optimizers
from torchamp.compat.apex.optimizers._counts import CountsByGroup
from torchamp.compat.apex.optimizers._translated import refuse_amsgrad

__all__ = ["FusedLAMB"]


class FusedLAMB(CountsByGroup, optimizers.FusedLAMB):
    """torchamp.optimizers.FusedLAMB with apex's arguments.

    adam_w_mode, grad_averaging, use_nvlamb: its decoupled_weight_decay, averages_grads and
    always_adapts. max_grad_norm: 0 clips nothing. set_grad_none: what zero_grad() does.

    Raises RuntimeError for amsgrad.
    """

    group_names: dict[str, str] = {"grad_averaging": "averages_grads"}

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        refuse_amsgrad(self, amsgrad)
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            bias_correction=bool(bias_correction),
            decoupled_weight_decay=bool(adam_w_mode),
            averages_grads=bool(grad_averaging),
            always_adapts=bool(use_nvlamb),
            max_grad_norm=max_grad_norm,
        )
        self.set_grad_none = set_grad_none
