"""apex's FusedSGD."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import required

from torchamp import optimizers
from torchamp.compat import amp_C
from torchamp.compat.apex.optimizers._attributes import OptionAttribute
from torchamp.compat.apex.optimizers._translated import Translated

__all__ = ["FusedSGD"]


class FusedSGD(Translated, optimizers.FusedSGD):
    """torchamp.optimizers.FusedSGD with apex's arguments.

    lr: needed, here or in every group. wd_after_momentum: weight decay is added to the step instead
    of the grads. materialize_master_grads: accepted; under torchamp.amp master grads are made when
    the program accesses them, so that clipping is right with either value. set_grad_none: what
    zero_grad() does.

    Raises ValueError for values outside of their range, and for a group without lr.
    """

    multi_tensor_sgd: Callable[..., Any] = staticmethod(amp_C.multi_tensor_sgd)
    wd_after_momentum: OptionAttribute = OptionAttribute("decay_after_momentum", bool)
    materialize_master_grads: bool = True

    #: What a step of a program's own divides grads by: they come unscaled.
    most_recent_scale: float = 1.0
    scale_set_by_backward = False

    kept_attributes: tuple[str, ...] = (*Translated.kept_attributes, "materialize_master_grads")

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
        params = _with_lr(params) if lr is required else params
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
        self.materialize_master_grads = materialize_master_grads

    def get_momentums(self, params: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], bool]:
        """The parameters' momentum buffers, which are made as zeros where there are none, in
        float32 (float64 for float64 parameters), and whether all are new: then the first step
        makes them its grads."""
        states = [self.state[param] for param in params]
        is_first = not any("momentum_buffer" in state for state in states)
        for param, state in zip(params, states):
            if "momentum_buffer" not in state:
                dtype = torch.promote_types(param.dtype, torch.float32)
                state["momentum_buffer"] = torch.zeros_like(param, dtype=dtype)
        return [state["momentum_buffer"] for state in states], is_first


def _with_lr(params: Any) -> list:
    """`params` as a list. Raises ValueError unless they are groups which each have an lr."""
    groups = list(params)
    if not all(isinstance(group, dict) and "lr" in group for group in groups):
        raise ValueError("FusedSGD: expected lr, or an lr in every group")
    return groups
