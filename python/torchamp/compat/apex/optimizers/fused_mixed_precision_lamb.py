"""apex's FusedMixedPrecisionLamb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchamp.compat import amp_C
from torchamp.compat.apex.optimizers._own_masters import OwnMasters
from torchamp.compat.apex.optimizers.fused_lamb import FusedLAMB

__all__ = ["FusedMixedPrecisionLamb"]


class FusedMixedPrecisionLamb(OwnMasters, FusedLAMB):
    """FusedLAMB that keeps float32 copies of the parameters of `reduced_precision_dtype`.

    Other arguments as FusedLAMB's. step: how many steps count as done. Made for torch.amp's
    GradScaler, which hands over scale and overflow on the device.

    Raises RuntimeError for amsgrad.
    """

    multi_tensor_l2norm: Callable[..., Any] = staticmethod(amp_C.multi_tensor_l2norm_mp)
    multi_tensor_lamb: Callable[..., Any] = staticmethod(amp_C.multi_tensor_lamb_mp)

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        step: int = 0,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
        reduced_precision_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            bias_correction,
            betas,
            eps,
            weight_decay,
            amsgrad,
            adam_w_mode,
            grad_averaging,
            max_grad_norm=max_grad_norm,
            use_nvlamb=use_nvlamb,
        )
        if reduced_precision_dtype is not None:
            self.mastered_dtypes: tuple[torch.dtype, ...] = (reduced_precision_dtype,)
        for group in self.param_groups:
            group["step"] = step

    @property
    def reduced_precision_dtype(self) -> torch.dtype | None:
        return self.mastered_dtypes[0] if self.mastered_dtypes else None
