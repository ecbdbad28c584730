"""apex's FusedMixedPrecisionLamb."""

from __future__ import annotations

from typing import Any

import torch

from torchamp import optimizers
from torchamp.compat.apex.optimizers._own_masters import OwnMasters
from torchamp.compat.apex.optimizers._translated import refuse_amsgrad

__all__ = ["FusedMixedPrecisionLamb"]


class FusedMixedPrecisionLamb(OwnMasters, optimizers.FusedLAMB):
    """FusedLAMB that keeps float32 copies of the parameters of `reduced_precision_dtype`.

    Other arguments as FusedLAMB's. step: how many steps count as done. Made for torch.amp's
    GradScaler, which hands over scale and overflow on the device.

    Raises RuntimeError for amsgrad.
    """

    group_names: dict[str, str] = {"grad_averaging": "averages_grads"}
    kept_attributes: tuple[str, ...] = (*OwnMasters.kept_attributes, "_steps_done")

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
        if reduced_precision_dtype is not None:
            self.mastered_dtypes: tuple[torch.dtype, ...] = (reduced_precision_dtype,)
        self._steps_done = step

    def _step_params(self) -> None:
        if self._steps_done:
            self._count_as_done()
        super()._step_params()

    def _count_as_done(self) -> None:
        with self._masters_in_groups():
            for param in self._params():
                zeros = [torch.zeros_like(param, dtype=torch.float32) for _ in self.state_names]
                state = {"step": self._steps_done, **dict(zip(self.state_names, zeros))}
                self.state[param] = self.state.get(param) or state
        self._steps_done = 0
