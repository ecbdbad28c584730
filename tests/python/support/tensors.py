"""Devices and dtypes of tensors, how near they are, and how often they are read."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

DEVICES = [torch.device("cpu")] + [torch.device("cuda", 0)] * torch.cuda.is_available()
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


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


class CountReads(TorchDispatchMode):
    """Counts how often the host reads a tensor's value."""

    reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.reads += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))
