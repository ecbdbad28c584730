"""apex's functions that cast models, and copy between masters and models."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import clip_grad_norm_ as clip_grad_norm

from torchamp import ops
from torchamp.amp._casts.cast import Float32Parts, cast_model, cast_own_tensors

__all__ = [
    "BN_convert_float",
    "FP16Model",
    "clip_grad_norm",
    "convert_module",
    "convert_network",
    "master_params_to_model_params",
    "model_grads_to_master_grads",
    "network_to_half",
    "prep_param_lists",
    "to_python_float",
    "tofp16",
]

Params = list[torch.Tensor]


class tofp16(nn.Module):  # noqa: N801  apex's name
    """Casts its input, a tensor, to float16."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input.half()


def _is_affine_norm(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.affine


def BN_convert_float(module: nn.Module) -> nn.Module:  # noqa: N802  apex's name
    """Makes the affine batch norms in `module` float32, in place; returns it."""
    for part in module.modules():
        if _is_affine_norm(part):
            part.float()
    return module


def network_to_half(network: nn.Module) -> nn.Module:
    """A Sequential of a cast of the input and `network` in float16, batch norms in float32."""
    return nn.Sequential(tofp16(), BN_convert_float(network.half()))


def convert_module(module: nn.Module, dtype: torch.dtype) -> None:
    """Gives the module's own floating parameters, grads and buffers `dtype`, in place; those of its
    children stay."""
    cast_own_tensors(module, dtype)


def convert_network(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Gives the network `dtype`, in place, but for affine batch norms; returns it."""
    norms = Float32Parts([network], (lambda _, module: _is_affine_norm(module),))
    cast_model(network, dtype, keep_batchnorm_fp32=False, kept=norms)
    return network


class FP16Model(nn.Module):
    """`network` in float16, batch norms in float32; its inputs, all tensors, are cast."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network: nn.Module = convert_network(network, torch.half)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.network(*(input.half() for input in inputs))


def prep_param_lists(model: nn.Module, flat_master: bool = False) -> tuple[Params, Params]:
    """(model_params, master_params): the parameters that require grad, and float32 copies of them;
    with `flat_master` one copy that holds all, whose grad is there and zero."""
    model_params: Params = [param for param in model.parameters() if param.requires_grad]
    if not flat_master:
        masters = [param.detach().clone().float() for param in model_params]
        return model_params, [master.requires_grad_() for master in masters]
    wide = [param.detach().float() for param in model_params]
    master = nn.Parameter(_flatten_dense_tensors(wide))
    master.grad = torch.zeros_like(master)
    return model_params, [master]


@torch.no_grad()
def model_grads_to_master_grads(
    model_params: Params, master_params: Params, flat_master: bool = False
) -> None:
    """Copies grads, making them float32. A parameter without a grad leaves its master without, and
    counts as zero in a flat one."""
    if flat_master:
        wide = [torch.zeros_like(p) if p.grad is None else p.grad for p in model_params]
        flat = _flatten_dense_tensors([grad.float() for grad in wide])
        master_params[0].grad = flat.to(master_params[0].dtype)
        return
    for param, master in zip(model_params, master_params):
        if param.grad is None:
            master.grad = None
        elif master.grad is None:
            master.grad = param.grad.to(master.dtype, copy=True)
    pairs = [(p.grad, m.grad) for p, m in zip(model_params, master_params) if m.grad is not None]
    if pairs:
        ops.copy_cast(*map(list, zip(*pairs)))


@torch.no_grad()
def master_params_to_model_params(
    model_params: Params, master_params: Params, flat_master: bool = False
) -> None:
    """Copies the masters to the model, rounded to its parameters' dtypes."""
    if flat_master:
        master_params = _unflatten_dense_tensors(master_params[0], model_params)
    if model_params:
        ops.copy_cast(list(master_params), list(model_params))


def to_python_float(t: Any) -> float:
    """The number in a tensor of one element, or the first of a sequence."""
    return t.item() if hasattr(t, "item") else t[0]
