"""Linear layers that accumulate weight grads in float32, in the GEMM that computes them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchamp._load import _C


class AccumulatingLinear(nn.Linear):
    """nn.Linear; after a backward `weight.grad` is float32, whatever the weight's dtype."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        is_parallel = DistributedDataParallel._active_ddp_module is not None
        if is_parallel and torch.is_grad_enabled():
            raise RuntimeError(
                "accumulate_weight_grads: expected no DistributedDataParallel around the model, "
                "got one, which does not see grads accumulated in the GEMM; leave out either"
            )
        return _C.linear(input, self.weight, self.bias)


def accumulate_weight_grads(model: nn.Module) -> nn.Module:
    """Makes the nn.Linear layers of `model` accumulate their weights' grads in float32, and
    returns it.

    On CUDA the GEMM that computes a weight's grad adds it to `weight.grad`, so another micro-batch
    costs no pass over the grads, and nothing is rounded to 16 bits in between; elsewhere the
    product is computed in float32. Micro-batches of one loss scale, all but the last with
    `scale_loss(…, delay_unscale=True)`, benefit from it; so do loops without torchamp.amp.

    The grads are written bypassing autograd: hooks on the weights do not run,
    torch.autograd.grad does not return them, and DistributedDataParallel does not see them. Layers
    of subclasses of nn.Linear are not changed. Call it before or after initialize.

    Args:
        model: changed in place.

    Raises:
        TypeError: for a model that is not an nn.Module.
        ValueError: for DistributedDataParallel. A forward in one made later raises RuntimeError.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            "accumulate_weight_grads: expected model to be an nn.Module, got "
            f"{type(model).__name__}"
        )
    if isinstance(model, DistributedDataParallel):
        raise ValueError(
            "accumulate_weight_grads: expected model not to be a "
            "DistributedDataParallel, which does not see grads accumulated in the GEMM"
        )
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = AccumulatingLinear
    return model
