"""apex's FusedAdam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchamp import optimizers
from torchamp.compat import amp_C
from torchamp.compat.apex.optimizers._attributes import OptionAttribute
from torchamp.compat.apex.optimizers._counts import CountsByGroup
from torchamp.compat.apex.optimizers._translated import refuse_amsgrad

__all__ = ["FusedAdam"]


class FusedAdam(CountsByGroup, optimizers.FusedAdam):
    """torchamp.optimizers.FusedAdam with apex's arguments: AdamW by default.

    adam_w_mode: weight decay shrinks the parameters. set_grad_none: what zero_grad() does.
    capturable: accepted; every step may be captured.

    Raises RuntimeError for amsgrad and for master_weights: amp.initialize gives masters.
    """

    multi_tensor_adam: Callable[..., Any] = staticmethod(amp_C.multi_tensor_adam)
    adam_w_mode: OptionAttribute = OptionAttribute("decoupled_weight_decay")
    capturable: bool = False
    master_weights: bool = False

    kept_attributes: tuple[str, ...] = (*CountsByGroup.kept_attributes, "capturable")

    #: Its step is FusedOptimizer's.
    _steps_fused = True

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
        refuse_amsgrad(self, amsgrad)
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
            decoupled_weight_decay=bool(adam_w_mode),
            bias_correction=bool(bias_correction),
        )
        self.set_grad_none = set_grad_none
        self.capturable = capturable

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        grads: None = None,
        output_params: None = None,
        scale: None = None,
        grad_norms: None = None,
    ) -> Any:
        """Steps every parameter that has a grad; returns what the closure returned. Raises
        RuntimeError for the other arguments, which apex had given up."""
        refused = dict(grads=grads, output_params=output_params, scale=scale, grad_norms=grad_norms)
        for name, value in refused.items():
            if value is not None:
                raise RuntimeError(
                    f"FusedAdam.step: expected {name} to be left out, got a "
                    f"{type(value).__name__}; torchamp.amp replaces it"
                )
        return super().step(closure)
