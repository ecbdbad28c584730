"""Tensors of every kind that the ops accept."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

DEVICES = [torch.device("cpu")] + [torch.device("cuda", 0)] * torch.cuda.is_available()
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]

#: name: (sizes, a function that converts a contiguous tensor to that layout)
LAYOUTS = {
    "contiguous": ((3, 5), lambda t: t),
    "large": ((20_001,), lambda t: t),
    "scalar": ((), lambda t: t),
    "empty": ((0, 4), lambda t: t),
    "channels_last": ((2, 3, 4, 5), lambda t: t.to(memory_format=torch.channels_last)),
    "transposed": ((7, 9), lambda t: t.t().contiguous().t()),
    "strided": ((6, 4), lambda t: torch.stack([t, t], -1)[..., 0]),
    "misaligned": ((13,), lambda t: torch.cat([t[:1], t])[1:]),
}
#: For inputs only: several elements share memory.
EXPANDED = {"expanded": ((4, 6), lambda t: t[:1].expand(4, 6))}


def make(layout: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A random tensor in `layout`."""
    sizes, arrange = {**LAYOUTS, **EXPANDED}[layout]
    return arrange(torch.randn(sizes, device=device, dtype=torch.float64).to(dtype))


def copies(tensors: list) -> list:
    """Copies of the tensors that keep their strides."""
    return [None if t is None else _copy(t) for t in tensors]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    result = torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return result.copy_(tensor)


def flag(device: torch.device) -> torch.Tensor:
    return torch.zeros((), device=device)


def flags(tensors: list, device: torch.device) -> torch.Tensor:
    return torch.zeros(len(tensors), dtype=torch.uint8, device=device)


def assert_same(actual: list, expected: list) -> None:
    """Equal bit for bit, except that all NaNs are equal."""
    for got, wanted in zip(actual, expected):
        if wanted is not None:
            torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def assert_near(actual: list, expected: list, magnitude: float) -> None:
    """Equal up to two roundings of sums of numbers below `magnitude`."""
    for got, wanted in zip(actual, expected):
        if wanted is not None:
            eps = torch.finfo(got.dtype).eps
            atol = magnitude * torch.finfo(torch.float32).eps
            torch.testing.assert_close(got, wanted, rtol=2 * eps, atol=atol, equal_nan=True)


def plant(tensor: torch.Tensor, value: float) -> None:
    """Writes `value` to the middle of `tensor`."""
    index = [size // 2 for size in tensor.shape]
    tensor[tuple(index)] = value


class CountReads(TorchDispatchMode):
    """Counts how often the host reads a tensor's value."""

    reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.reads += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))
