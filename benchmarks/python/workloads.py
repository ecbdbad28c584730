"""The lists of tensors that the benchmarks run on, as in benchmarks/cpp/workloads.h."""

from __future__ import annotations

from collections.abc import Callable

import torch

Shapes = list[tuple[int, ...]]


def gpt2_124m() -> Shapes:
    """GPT-2 "small": 148 tensors, 124,439,808 parameters."""
    width = 768
    block: Shapes = [
        (width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,),
        (width,), (width,), (width, 4 * width), (4 * width,), (4 * width, width), (width,),
    ]  # fmt: skip
    return [(50257, width), (1024, width), *(block * 12), (width,), (width,)]


WORKLOADS: dict[str, Shapes] = {
    "gpt2_124m": gpt2_124m(),
    "small_5000x1024": [(1024,)] * 5_000,
    "tiny_10000x64": [(64,)] * 10_000,
}


def random_tensors(shapes: Shapes, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """Random normal tensors, never zeros: arithmetic on zeros can be cheaper."""
    return [torch.randn(shape, device=device).to(dtype) for shape in shapes]


def count_elements(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def copy_of(num_bytes: int, device: str) -> Callable[[], torch.Tensor]:
    """Reads and writes `num_bytes` in all."""
    source = torch.ones(num_bytes // 8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)
