"""apex's FusedAdagrad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchamp import optimizers
from torchamp.compat import amp_C
from torchamp.compat.apex.optimizers._attributes import OptionAttribute
from torchamp.compat.apex.optimizers._translated import Translated

__all__ = ["FusedAdagrad"]


class FusedAdagrad(Translated, optimizers.FusedAdagrad):
    """torchamp.optimizers.FusedAdagrad with apex's arguments.

    adagrad_w_mode: weight decay shrinks the parameters. set_grad_none: what zero_grad() does.
    """

    multi_tensor_adagrad: Callable[..., Any] = staticmethod(amp_C.multi_tensor_adagrad)
    adagrad_w_mode: OptionAttribute = OptionAttribute("decoupled_weight_decay")

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
        adagrad_w_mode: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            eps=eps,
            weight_decay=weight_decay,
            decoupled_weight_decay=bool(adagrad_w_mode),
        )
        self.set_grad_none = set_grad_none
