"""amp_C's steps that treat each element alone: SGD, Adam and Adagrad. Arguments as apex's."""

from __future__ import annotations

import torch

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
