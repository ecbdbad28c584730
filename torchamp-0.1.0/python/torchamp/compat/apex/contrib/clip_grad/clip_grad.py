"""apex's fused clipping."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torchamp import ops

__all__ = ["clip_grad_norm_"]


@torch.no_grad()
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Scales the grads of `parameters` so that their norm together is at most `max_norm`; returns
    the norm before clipping, a float32 scalar.

    As torch.nn.utils.clip_grad_norm_, but that squares of float16 grads do not overflow. Raises
    RuntimeError for a norm that is not finite, if asked to.
    """
    params = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    grads = [param.grad for param in params if param.grad is not None]
    if norm_type != 2.0 or not grads or any(grad.layout != torch.strided for grad in grads):
        return torch.nn.utils.clip_grad_norm_(params, max_norm, norm_type, error_if_nonfinite)
    by_device = _by_device(grads)
    norms = [ops.l2norm(members)[0].to(grads[0].device) for members in by_device.values()]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    if error_if_nonfinite and not norm.isfinite():
        raise RuntimeError(
            f"clip_grad_norm_: expected the grads to have a finite norm, got {norm.item()}; "
            "error_if_nonfinite=False scales them anyway"
        )
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for device, members in by_device.items():
        ops.unscale(members, members, factor.to(device), torch.zeros((), device=device))
    return norm


def _by_device(grads: list[torch.Tensor]) -> dict[torch.device, list[torch.Tensor]]:
    result: dict[torch.device, list[torch.Tensor]] = {}
    for grad in grads:
        result.setdefault(grad.device, []).append(grad)
    return result
