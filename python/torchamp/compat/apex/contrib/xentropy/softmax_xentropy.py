"""apex's cross entropy with smoothed labels, on torch's."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

__all__ = ["SoftmaxCrossEntropyLoss"]


def _losses(
    logits: torch.Tensor,
    labels: torch.Tensor,
    smoothing: float,
    padding_idx: int,
    half_to_float: bool,
) -> torch.Tensor:
    losses = F.cross_entropy(
        logits.to(torch.promote_types(logits.dtype, torch.float32)),
        labels,
        ignore_index=padding_idx,
        reduction="none",
        label_smoothing=smoothing,
    )
    # In compiled graphs of torch 2.11 an autograd function whose forward ends in a cast to the same
    # dtype has grads of zero.
    is_result = half_to_float or losses.dtype == logits.dtype
    return losses if is_result else losses.to(logits.dtype)


class SoftmaxCrossEntropyLoss(torch.autograd.Function):
    """The cross entropy of each row. It keeps the logits alone for its backward, which computes the
    losses again and can be differentiated.

    logits: [rows, classes], any floating dtype. labels: int64 [rows]; rows of `padding_idx` have no
    loss. smoothing: the share of a label that all classes divide. half_to_float: whether the losses
    are float32 rather than of the logits' dtype. They are computed in float32 either way.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        labels: torch.Tensor,
        smoothing: float = 0.0,
        padding_idx: int = 0,
        half_to_float: bool = False,
    ) -> torch.Tensor:
        ctx.options = smoothing, padding_idx, half_to_float
        ctx.save_for_backward(logits, labels)
        return _losses(logits, labels, *ctx.options)

    @staticmethod
    def backward(ctx: Any, grad_loss: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        logits, labels = ctx.saved_tensors
        grad_of = torch.func.vjp(lambda x: _losses(x, labels, *ctx.options), logits)[1]
        return *grad_of(grad_loss), None, None, None, None
