"""apex's FP16_Optimizer."""

from __future__ import annotations

import logging
from typing import Any

import torch

from torchamp import LossScaler, ops
from torchamp._load import _C
from torchamp._logging import log
from torchamp.amp._casts.masters import LOW_PRECISION, params_of

__all__ = ["FP16_Optimizer"]


def _of_optimizer(name: str) -> Any:
    """The attribute of that name of the optimizer inside."""

    def set_(self: FP16_Optimizer, value: Any) -> None:
        setattr(self.optimizer, name, value)

    return property(lambda self: getattr(self.optimizer, name), set_)


class FP16_Optimizer:  # noqa: N801  apex's name
    """Steps float32 masters of a model that is already in low precision, and scales its loss.

    init_optimizer: an optimizer of the model's parameters; its groups get the masters.
    static_loss_scale: the loss scale, unless dynamic_loss_scale. dynamic_loss_args: init_scale,
    scale_factor, scale_window, min_loss_scale, max_loss_scale. verbose: report skipped steps.

    Raises TypeError for parameters that are not float16, bfloat16 or float32.
    """

    def __init__(
        self,
        init_optimizer: torch.optim.Optimizer,
        static_loss_scale: float = 1.0,
        dynamic_loss_scale: bool = False,
        dynamic_loss_args: dict[str, Any] | None = None,
        verbose: bool = True,
    ) -> None:
        self.optimizer = init_optimizer
        self.verbose = verbose
        self.dynamic_loss_scale = dynamic_loss_scale
        self.overflow: bool = False
        self._state = _C.OptimizerState()
        self._state.show_grads()
        self._adopt_groups()
        device = self.all_params[0].device if self.all_params else torch.device("cpu")
        if dynamic_loss_scale:
            self.loss_scaler: LossScaler = _dynamic_scaler(device, **(dynamic_loss_args or {}))
        else:
            self.loss_scaler = LossScaler(float(static_loss_scale), device=device)

    def _adopt_groups(self) -> None:
        self.fp16_groups: list[list[torch.Tensor]] = []
        self.fp32_from_fp16_groups: list[list[torch.Tensor]] = []
        self.fp32_from_fp32_groups: list[list[torch.Tensor]] = []
        for i, group in enumerate(self.optimizer.param_groups):
            self._adopt(i, group)
        # torch casts the state of what had low precision to the masters' dtype
        self.optimizer.load_state_dict(self.optimizer.state_dict())

    def _adopt(self, index: int, group: dict[str, Any]) -> None:
        low, masters, wide = [], [], []
        for i, param in enumerate(group["params"]):
            _check_dtype(index, i, param)
            if param.dtype == torch.float32 or not param.requires_grad:
                self._state.add("FP16_Optimizer", param)
                wide.append(param)
                continue
            master = _C.make_master(param)
            self._state.add("FP16_Optimizer", param, master)
            group["params"][i] = master
            if param in self.optimizer.state:
                self.optimizer.state[master] = self.optimizer.state.pop(param)
            low.append(param)
            masters.append(master)
        self.fp16_groups.append(low)
        self.fp32_from_fp16_groups.append(masters)
        self.fp32_from_fp32_groups.append(wide)

    @property
    def all_params(self) -> list[torch.Tensor]:
        """All that the optimizer steps."""
        return params_of([self.optimizer])

    def zero_grad(self, set_grads_to_None: bool = False) -> None:  # noqa: N803  apex's name
        """Fills the model's grads with zeros, or drops them; drops the masters'."""
        self.optimizer.zero_grad(set_to_none=set_grads_to_None)
        for param in self._state.model_params():
            if set_grads_to_None:
                param.grad = None
            elif param.grad is not None:
                param.grad.zero_()
        self._state.note_zeroed()
        self.overflow = False

    def backward(
        self, loss: torch.Tensor, update_master_grads: bool = True, retain_graph: bool = False
    ) -> None:
        """The backward of the scaled loss. update_master_grads: whether to unscale the grads at
        once; else update_master_grads() is called after more backwards."""
        with self._backward(delay_unscale=True) as backward:
            backward.scale(loss).backward(retain_graph=retain_graph)
        if update_master_grads:
            self.update_master_grads()

    def _backward(self, delay_unscale: bool) -> _C.Backward:
        return _C.Backward([self._state], self.loss_scaler, delay_unscale=delay_unscale)

    def update_master_grads(self) -> None:
        """Unscales the model's grads into the masters', checks them and updates the loss scale."""
        with self._backward(delay_unscale=False):
            pass
        if self.dynamic_loss_scale:
            self.overflow |= bool(self.loss_scaler.found_inf())

    def step(self, closure: None = None) -> Any:
        """Steps, unless a backward overflowed; returns what the optimizer's step returned. Raises
        RuntimeError for a closure."""
        if closure is not None:
            raise RuntimeError(
                "FP16_Optimizer.step: expected no closure, got one; amp.initialize with a fixed "
                "loss_scale takes closures"
            )
        result = None
        if not self.overflow:
            self._state.refresh()
            result = self.optimizer.step()
        elif self.verbose:
            log(logging.INFO, f"Overflow: step skipped, the loss scale is now {self.loss_scale}")
        self._state.copy_to_model()
        self._state.end_step([self.loss_scaler])
        self.overflow = False
        return result

    def clip_master_grads(self, max_norm: float, norm_type: float = 2) -> Any:
        """Clips the grads of all that is stepped; returns their norm, -1 after an overflow."""
        if self.overflow:
            return -1
        return torch.nn.utils.clip_grad_norm_(self.all_params, max_norm, norm_type)

    def state_dict(self) -> dict[str, Any]:
        """Loss scale, masters and the optimizer's own state."""
        return {
            "loss_scaler": self.loss_scaler.state(),
            "dynamic_loss_scale": self.dynamic_loss_scale,
            "overflow": self.overflow,
            "optimizer_state_dict": self.optimizer.state_dict(),
            "fp32_from_fp16": self.fp32_from_fp16_groups,
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what state_dict() or apex's gave; the model follows the masters."""
        self.loss_scaler.load_state(*_scaler_state(state_dict["loss_scaler"]))
        self.overflow = state_dict["overflow"]
        self.optimizer.load_state_dict(state_dict["optimizer_state_dict"])
        for current, saved in zip(self.fp32_from_fp16_groups, state_dict["fp32_from_fp16"]):
            for master, value in zip(current, saved):
                master.copy_(value)
        self._state.copy_to_model()

    @property
    def loss_scale(self) -> float:
        """The factor of the loss. Waits for the device."""
        return self.loss_scaler.loss_scale()

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self.loss_scaler.set_loss_scale(value)

    state: Any = _of_optimizer("state")
    #: With the masters.
    param_groups: Any = _of_optimizer("param_groups")

    def __getstate__(self) -> None:
        raise RuntimeError("FP16_Optimizer: expected state_dict() to be saved, not the object")


def _check_dtype(group: int, index: int, param: torch.Tensor) -> None:
    if param.dtype not in (torch.float32, *LOW_PRECISION):
        raise TypeError(
            f"FP16_Optimizer: expected params[{index}] of group {group} to be float16, bfloat16 or "
            f"float32, got {param.dtype}"
        )


def _dynamic_scaler(
    device: torch.device,
    init_scale: float = 2.0**16,
    scale_factor: float = 2.0,
    scale_window: int = 2000,
    min_loss_scale: float | None = None,
    max_loss_scale: float = 2.0**24,
) -> LossScaler:
    """A dynamic loss scaler of apex's arguments. Without a min_loss_scale it stops at 2**-10, where
    apex's goes on to 0."""
    rule = ops.ScaleRule(
        growth_factor=scale_factor,
        backoff_factor=1.0 / scale_factor,
        growth_interval=scale_window,
        min_scale=min_loss_scale or ops.ScaleRule().min_scale,
        max_scale=max_loss_scale,
    )
    return LossScaler("dynamic", init_scale=init_scale, rule=rule, device=device)


def _scaler_state(saved: Any) -> tuple[float, int]:
    """The scaler's state in a state dict: ours, or the object that apex saves."""
    if isinstance(saved, (tuple, list)):
        return saved[0], saved[1]
    attributes = vars(saved)  # past LossScaler's properties, as whose object it is unpickled
    return float(attributes["_loss_scale"]), int(attributes["_unskipped"])
