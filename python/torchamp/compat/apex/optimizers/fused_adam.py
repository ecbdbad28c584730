"""apex's FusedAdam."""

from __future__ import annotations

from typing import Any

from torchamp import optimizers
from torchamp.compat.apex.optimizers._counts import CountsByGroup

__all__ = ["FusedAdam"]


class FusedAdam(CountsByGroup, optimizers.FusedAdam):
    """torchamp.optimizers.FusedAdam with apex's arguments: AdamW by default.

    adam_w_mode: weight decay shrinks the parameters. set_grad_none: what zero_grad() does.
    capturable: accepted; every step may be captured.

    Raises RuntimeError for amsgrad and for master_weights: amp.initialize gives masters.
    """

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
    ) -> None:
        if master_weights:
            raise RuntimeError(
                f"FusedAdam: expected master_weights to be False, got {master_weights!r}; use "
                "amp.initialize at O2 or O5, whose optimizers have float32 masters"
            )
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            decoupled_weight_decay=bool(adam_w_mode),
            bias_correction=bool(bias_correction),
        )
        self.set_grad_none = set_grad_none
