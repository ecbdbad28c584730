"""amp_C's steps: Adam, and LAMB in two passes. Arguments as apex's."""

from __future__ import annotations

import torch

from torchamp import ops
from torchamp.compat.amp_C._fused_step import Number, fused_step
from torchamp.compat.amp_C._lists import Lists, check_lists
from torchamp.ops import StepAlgorithm


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
    made = [torch.zeros_like(state) for state in states[0]]
    norm = torch.as_tensor(global_grad_norm, dtype=torch.float32, device=params[0].device)
    fused_step(
        StepAlgorithm.LAMB,
        grads,
        params,
        [*states, made],
        hyper,
        step + 1,
        update_norms=norm.reshape(()).expand(len(params)).contiguous(),
    )
    ops.copy_cast(made, updates)


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
