"""amp_C's steps: SGD, Adam, and LAMB at once and in two passes. Arguments as apex's."""

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


def multi_tensor_lamb(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Lists,
    lr: Number,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: Number,
    bias_correction: int,
    weight_decay: float,
    grad_averaging: int,
    mode: int,
    global_grad_norm: Number,
    max_grad_norm: Number,
    use_nvlamb: bool = False,
) -> None:
    """tensor_lists: grads, params, exp_avg, exp_avg_sq. Unlike in apex, grads are left as they are.
    mode: 0 adds weight decay to the grads, 1 to the update. global_grad_norm: of all grads of the
    step; above max_grad_norm (0: none) they are clipped. use_nvlamb: adapts without weight decay
    too."""
    check_lists("multi_tensor_lamb", tensor_lists, 4)
    grads, params, *states = tensor_lists
    hyper: list[Number] = [lr, beta1, beta2, epsilon, weight_decay, mode, 0.0, bias_correction]
    hyper += [grad_averaging, bool(use_nvlamb), max_grad_norm]
    updates = _updates(grads, params, states, hyper, step, global_grad_norm)
    fused_step(
        StepAlgorithm.LAMB_APPLY,
        updates,
        params,
        [],
        hyper,
        param_norms=ops.l2norm(params, True)[1],
        update_norms=ops.l2norm(updates, True)[1],
    )


def multi_tensor_lamb_stage1_cuda(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Lists,
    per_tensor_decay: torch.Tensor,
    step: int,
    beta1: float,
    beta2: float,
    epsilon: float,
    global_grad_norm: Number,
    max_global_grad_norm: float,
) -> None:
    """LAMB's first pass. tensor_lists: grads, params, exp_avg, exp_avg_sq, updates, which are
    written. per_tensor_decay: float32, one per tensor. step: those done before this one. Grads of a
    larger norm than max_global_grad_norm (0: none) are clipped, and left as they are."""
    check_lists("multi_tensor_lamb_stage1_cuda", tensor_lists, 5)
    grads, params, *states, updates = tensor_lists
    hyper: list[Number] = [0.0, beta1, beta2, epsilon, per_tensor_decay, 1.0, 0.0, 1.0, 1.0, 0.0]
    hyper += [max_global_grad_norm]
    ops.copy_cast(_updates(grads, params, states, hyper, step + 1, global_grad_norm), updates)


def _updates(
    grads: list[torch.Tensor],
    params: list[torch.Tensor],
    states: Lists,
    hyper: list[Number],
    step: Number,
    global_grad_norm: Number,
) -> list[torch.Tensor]:
    updates = [torch.zeros_like(state) for state in states[0]]
    norm = torch.as_tensor(global_grad_norm, dtype=torch.float32, device=params[0].device)
    fused_step(
        StepAlgorithm.LAMB,
        grads,
        params,
        [*states, updates],
        hyper,
        step,
        update_norms=norm.reshape(()).expand(len(params)).contiguous(),
    )
    return updates


def multi_tensor_lamb_stage2_cuda(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Lists,
    per_tensor_param_norm: torch.Tensor,
    per_tensor_update_norm: torch.Tensor,
    lr: Number,
    weight_decay: float,
    use_nvlamb: bool = False,
) -> None:
    """LAMB's second pass. tensor_lists: params, updates. The norms: float32, one per tensor.
    use_nvlamb: adapts without weight decay too."""
    check_lists("multi_tensor_lamb_stage2_cuda", tensor_lists, 2)
    params, updates = tensor_lists
    hyper: list[Number] = [lr, 0.0, 0.0, 0.0, weight_decay, 1.0, 0.0, 0.0, 0.0, bool(use_nvlamb)]
    fused_step(
        StepAlgorithm.LAMB_APPLY,
        updates,
        params,
        [],
        hyper,
        param_norms=per_tensor_param_norm,
        update_norms=per_tensor_update_norm,
    )
