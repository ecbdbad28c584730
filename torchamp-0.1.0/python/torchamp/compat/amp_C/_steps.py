"""amp_C's steps that treat each element alone: SGD, Adam and Adagrad. Arguments as apex's."""

from __future__ import annotations

import torch

from torchamp import ops
from torchamp.compat.amp_C._fused_step import Number, fused_step
from torchamp.compat.amp_C._lists import Lists, check_lists
from torchamp.ops import StepAlgorithm


def multi_tensor_sgd(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Lists,
    weight_decay: float,
    momentum: float,
    dampening: float,
    lr: float,
    nesterov: bool,
    first_run: bool,
    wd_after_momentum: bool,
    scale: float,
) -> None:
    """tensor_lists: grads, params, momentum buffers, and perhaps copies of the params to be
    written too. Grads are multiplied with `scale`; nothing is written where noop_flag is set."""
    check_lists("multi_tensor_sgd", tensor_lists, 3, 4)
    grads, params, buffers, *copies = tensor_lists
    fused_step(
        StepAlgorithm.MOMENTUM if momentum else StepAlgorithm.SGD,
        grads,
        params,
        [buffers] if momentum else [],
        [lr, momentum, dampening, weight_decay, nesterov, 0.0, wd_after_momentum],
        1 if first_run else 2,
        model_params=copies[0] if copies else (),
        grad_factor=scale,
        skip=noop_flag,
    )


def multi_tensor_adam(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Lists,
    lr: Number,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: Number,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    """tensor_lists: grads, params, exp_avg, exp_avg_sq. mode: 0 adds weight decay to the grads, 1
    decouples it."""
    check_lists("multi_tensor_adam", tensor_lists, 4)
    grads, params, *states = tensor_lists
    hyper: list[Number] = [lr, beta1, beta2, epsilon, weight_decay, mode, 0.0, bias_correction]
    fused_step(StepAlgorithm.ADAM, grads, params, states, hyper, step)


def multi_tensor_adam_capturable(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Lists,
    lr: torch.Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: torch.Tensor,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    inv_scale: torch.Tensor,
) -> None:
    """multi_tensor_adam that multiplies the grads with `inv_scale` and writes them back, and leaves
    everything alone where noop_flag is set."""
    check_lists("multi_tensor_adam_capturable", tensor_lists, 4)
    grads, params, *states = tensor_lists
    hyper: list[Number] = [lr, beta1, beta2, epsilon, weight_decay, mode, 0.0, bias_correction]
    _unscale(noop_flag, grads, inv_scale)
    fused_step(StepAlgorithm.ADAM, grads, params, states, hyper, step, skip=noop_flag)


def multi_tensor_adam_capturable_master(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Lists,
    lr: torch.Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: torch.Tensor,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    inv_scale: torch.Tensor,
) -> None:
    """multi_tensor_adam_capturable with a fifth list, the float32 masters: these are stepped, and
    the params are written as they are, rounded."""
    check_lists("multi_tensor_adam_capturable_master", tensor_lists, 5)
    grads, params, *states, masters = tensor_lists
    hyper: list[Number] = [lr, beta1, beta2, epsilon, weight_decay, mode, 0.0, bias_correction]
    _unscale(noop_flag, grads, inv_scale)
    fused_step(
        StepAlgorithm.ADAM, grads, masters, states, hyper, step, model_params=params, skip=noop_flag
    )


def multi_tensor_adagrad(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Lists,
    lr: Number,
    epsilon: float,
    mode: int,
    weight_decay: float,
) -> None:
    """tensor_lists: grads, params, sums of squares. mode: 0 adds weight decay to the grads, 1
    decouples it."""
    check_lists("multi_tensor_adagrad", tensor_lists, 3)
    grads, params, sums = tensor_lists
    hyper: list[Number] = [lr, 0.0, epsilon, weight_decay, mode, 0.0]
    fused_step(StepAlgorithm.ADAGRAD, grads, params, [sums], hyper)


def _unscale(noop_flag: torch.Tensor, grads: list[torch.Tensor], inv_scale: torch.Tensor) -> None:
    """grads *= inv_scale, unless the flag is set."""
    device = grads[0].device
    inv_scale = inv_scale.to(device, torch.float32).reshape(())
    factor = torch.where(noop_flag.to(device).reshape(()) != 0, 1.0, inv_scale)
    ops.unscale(grads, grads, factor, torch.zeros((), device=device))
