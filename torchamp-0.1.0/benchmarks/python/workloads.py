"""The lists of tensors for the benchmarks: real models, and many small tensors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch

Shapes = list[tuple[int, ...]]


def resnet50() -> Shapes:
    """161 tensors, 25,557,032 parameters."""

    def convolution(out: int, into: int, kernel: int) -> Shapes:
        return [(out, into, kernel, kernel), (out,), (out,)]

    shapes = convolution(64, 3, 7)
    into = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            shapes += convolution(width, into, 1) + convolution(width, width, 3)
            shapes += convolution(4 * width, width, 1)
            shapes += convolution(4 * width, into, 1) if block == 0 else []
            into = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def vgg16() -> Shapes:
    """32 tensors, 138,357,544 parameters."""
    shapes: Shapes = []
    into = 3
    for width in (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512):
        shapes += [(width, into, 3, 3), (width,)]
        into = width
    for out, features in ((4096, 512 * 7 * 7), (4096, 4096), (1000, 4096)):
        shapes += [(out, features), (out,)]
    return shapes


def bert_large() -> Shapes:
    """With both pretraining heads: 398 tensors, 336,226,108 parameters."""
    width, words = 1024, 30522
    norm: Shapes = [(width,), (width,)]
    square: Shapes = [(width, width), (width,)]
    layer = square * 4 + norm + [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    heads = [(words,), *square, *norm, (2, width), (2,)]
    embeddings = [(words, width), (512, width), (2, width), *norm]
    return embeddings + (layer + norm) * 24 + square + heads


def gpt2(layers: int, width: int) -> Shapes:
    """GPT-2 with its head tied to the embeddings."""
    block: Shapes = [
        (width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,),
        (width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,),
    ]  # fmt: skip
    return [(50257, width), (1024, width), *(block * layers), (width,), (width,)]


def llama_7b() -> Shapes:
    """291 tensors, 6,738,415,616 parameters."""
    width, inner = 4096, 11008
    layer: Shapes = [(width, width)] * 4 + [(inner, width)] * 2 + [(width, inner)]
    return [(32000, width), *(layer + [(width,), (width,)]) * 32, (width,), (32000, width)]


#: For timing single ops.
WORKLOADS: dict[str, Shapes] = {
    "gpt2_124m": gpt2(12, 768),
    "small_5000x1024": [(1024,)] * 5_000,
    "tiny_10000x64": [(64,)] * 10_000,
}

#: For timing optimizer steps, as far as they fit into memory.
STEP_WORKLOADS: dict[str, Shapes] = {
    "resnet50": resnet50(),
    "vgg16": vgg16(),
    "bert_large": bert_large(),
    "gpt2_124m": gpt2(12, 768),
    "gpt2_350m": gpt2(24, 1024),
    "gpt_1.3b": gpt2(24, 2048),
    "llama_7b": llama_7b(),
    "small_5000x1024": WORKLOADS["small_5000x1024"],
    "tiny_10000x64": WORKLOADS["tiny_10000x64"],
}


def random_tensors(shapes: Shapes, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """Random normal tensors, not zeros, because arithmetic on zeros can be cheaper."""
    return [torch.randn(shape, device=device).to(dtype) for shape in shapes]


def element_counts(shapes: Shapes) -> list[int]:
    return [prod(shape) for shape in shapes]


def count_elements(shapes: Shapes) -> int:
    return sum(element_counts(shapes))


#: Maximum size of a copy's two buffers: larger than any cache, small compared with a model.
COPY_BUFFER_BYTES = 1 << 28


def copy_of(num_bytes: int, device: str) -> Callable[[], object]:
    """A copy that reads and writes `num_bytes` in total, in equal pieces if that exceeds the
    buffers."""
    pieces = max(1, -(-num_bytes // (2 * COPY_BUFFER_BYTES)))
    source = torch.ones(num_bytes // (8 * pieces), device=device)
    target = torch.empty_like(source)
    return lambda: [target.copy_(source) for _ in range(pieces)]
