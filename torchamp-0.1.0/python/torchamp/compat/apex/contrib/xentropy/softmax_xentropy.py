"""apex's cross entropy with smoothed labels, on torch's."""

from __future__ import annotations

import torch
import torch.nn.functional as F

__all__ = ["SoftmaxCrossEntropyLoss"]


def _losses(
    logits: torch.Tensor,
    labels: torch.Tensor,
    smoothing: float = 0.0,
    padding_idx: int = 0,
    half_to_float: bool = False,
) -> torch.Tensor:
    """The cross entropy of each row.

    logits: [rows, classes], any floating dtype. labels: int64 [rows]; rows of `padding_idx` have no
    loss. smoothing: the share of a label that all classes divide. half_to_float: whether the losses
    are float32 rather than of the logits' dtype. They are computed in float32 either way.
    """
    losses = F.cross_entropy(
        logits.to(torch.promote_types(logits.dtype, torch.float32)),
        labels,
        ignore_index=padding_idx,
        reduction="none",
        label_smoothing=smoothing,
    )
    return losses if half_to_float else losses.to(logits.dtype)


class SoftmaxCrossEntropyLoss:
    """The cross entropy of each row, called by `apply`."""

    apply: staticmethod[..., torch.Tensor] = staticmethod(_losses)
