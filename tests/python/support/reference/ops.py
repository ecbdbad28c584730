"""The ops, tensor by tensor, as documented."""

import math

import torch

LOW_PRECISION = (torch.float16, torch.bfloat16)


def wide(*tensors: torch.Tensor) -> torch.dtype:
    """The compute dtype of an op on these tensors."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def is_bad(tensor: torch.Tensor) -> bool:
    return not bool(torch.isfinite(tensor).all())


def _overflows(output: torch.Tensor) -> bool:
    return output.dtype in LOW_PRECISION and is_bad(output)


def _each(*lists):
    for i, tensors in enumerate(zip(*lists)):
        if all(tensor is not None for tensor in tensors):
            yield i, tensors


def scale(inputs, outputs, factor: float) -> list[bool]:
    """Writes outputs; returns the positions that were or became non-finite."""
    bad = [False] * len(inputs)
    for i, (x, out) in _each(inputs, outputs):
        bad[i] = is_bad(x)
        out.copy_(x.to(wide(x)) * torch.tensor(factor, dtype=wide(x)))
        bad[i] |= _overflows(out)
    return bad


def unscale(scaled_grads, master_grads, inv_scale: torch.Tensor, accumulate: bool) -> list[bool]:
    bad = [False] * len(scaled_grads)
    for i, (scaled, master) in _each(scaled_grads, master_grads):
        bad[i] = is_bad(scaled)
        exact = scaled.double() * inv_scale.double()
        if accumulate:
            dtype = wide(scaled, master)
            exact = exact + master.double()
        else:
            dtype = wide(scaled)
        master.copy_(exact.to(dtype))
        bad[i] |= _overflows(master)
    return bad


def axpby(a: float, x, b: float, y, outputs, check_x: bool, check_y: bool) -> list[bool]:
    bad = [False] * len(x)
    for i, (xi, yi, out) in _each(x, y, outputs):
        bad[i] = (check_x and is_bad(xi)) or (check_y and is_bad(yi))
        dtype = wide(xi, yi)
        product = (yi.to(dtype) * torch.tensor(b, dtype=dtype)).double()
        out.copy_((xi.double() * a + product).to(dtype))
        bad[i] |= _overflows(out)
    return bad


def norms(tensors) -> list[float]:
    return [0.0 if t is None else t.double().norm().item() for t in tensors]


def norm(tensors) -> float:
    return math.sqrt(sum(each * each for each in norms(tensors)))
