"""The training variants that bench_training.py compares, all with AdamW."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from networks import Batch, loss_of
from torch import Tensor, nn

import torchamp
from torchamp import optimizers
from torchamp.amp._casts.cast import NONE
from torchamp.amp._casts.float8 import choose

LEARNING_RATE = 1e-4
T = TypeVar("T")


@dataclass
class Training:
    """step: runs one iteration and returns its loss. skipped_steps: the number so far; waits for
    the device. close: ends autocast."""

    step: Callable[[], Tensor]
    skipped_steps: Callable[[], int] = lambda: 0
    close: Callable[[], None] = lambda: None


def halvings(first_scale: float, last_scale: float) -> int:
    """The number of skipped steps: each halves the loss scale, which does not grow in 2,000
    steps."""
    return round(math.log2(first_scale / last_scale))


def captured(training: Training) -> Training:
    """The same as a CUDA graph, as torch's documentation captures an iteration."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            training.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = training.step().detach()

    def step() -> Tensor:
        graph.replay()
        return loss

    return Training(step, training.skipped_steps, training.close)


def float32(network: nn.Module, batch: Batch, **options: bool) -> Training:
    """options: of AdamW."""
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, fused=True, **options)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(network, batch)
        loss.backward()
        optimizer.step()
        return loss

    return Training(step)


def torch_amp(network: nn.Module, batch: Batch, dtype: torch.dtype, **options: bool) -> Training:
    """torch.amp, with a GradScaler for float16. options: of AdamW."""
    device = batch.inputs[0].device.type
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, fused=True, **options)
    scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)

    def step() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device, dtype):
            loss = loss_of(network, batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    first_scale = scaler.get_scale()
    return Training(step, lambda: halvings(first_scale, scaler.get_scale()))


def opt_level(
    network: nn.Module, batch: Batch, level: str, *, is_captured: bool = False, **options: bool
) -> Training:
    """options: of initialize."""
    optimizer = optimizers.FusedAdamW(network.parameters(), LEARNING_RATE)
    handle = torchamp.Amp(network, optimizer, level, **options)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(network, batch)
        with handle.scale_loss(loss) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        return loss

    scaler = handle.loss_scalers[0]
    first_scale = scaler.loss_scale()
    run = torchamp.amp.graphed(step) if is_captured else step
    return Training(run, lambda: halvings(first_scale, scaler.loss_scale()), handle.close)


def large_linears(network: nn.Module) -> dict[str, nn.Module]:
    """Those that float8=True means, by name. Raises ValueError if there is none."""
    return {name: network.get_submodule(name) for name, _ in choose([network], NONE, True)[0]}


def torchao_float8(network: nn.Module, batch: Batch, *, is_compiled: bool = False) -> Training:
    """O5 with torchao's float8 linears."""
    from torchao.float8 import convert_to_float8_training

    large = large_linears(network)
    convert_to_float8_training(network, module_filter_fn=lambda _, name: name in large)
    if is_compiled:
        network.compile()
    return opt_level(network, batch, "O5")


def transformer_engine_float8(network: nn.Module, batch: Batch) -> Training:
    """O5 with TransformerEngine's linears, in float8."""
    from transformer_engine import pytorch as engine

    for name, linear in large_linears(network).items():
        parent, _, own = name.rpartition(".")
        sizes = linear.in_features, linear.out_features
        replaced = engine.Linear(*sizes, bias=linear.bias is not None)
        setattr(network.get_submodule(parent), own, replaced)
    forward = network.forward

    def in_float8(*inputs: Tensor) -> Tensor:
        with engine.fp8_autocast():
            return forward(*inputs)

    network.forward = in_float8
    return opt_level(network, batch, "O5")


#: Factories by name, which take a network on its device and a batch.
VARIANTS: dict[str, Callable[[nn.Module, Batch], Training]] = {
    "float32": float32,
    "TF32": float32,
    "torch.amp, float16": lambda *task: torch_amp(*task, torch.float16),
    "torch.amp, bfloat16": lambda *task: torch_amp(*task, torch.bfloat16),
    "O1": lambda *task: opt_level(*task, "O1"),
    "O2": lambda *task: opt_level(*task, "O2"),
    "O4": lambda *task: opt_level(*task, "O4"),
    "O5": lambda *task: opt_level(*task, "O5"),
    "O5, float8": lambda *task: opt_level(*task, "O5", float8=True),
    "O5, torchao's float8": torchao_float8,
    "O5, torchao's float8, compiled": lambda *task: torchao_float8(*task, is_compiled=True),
    "O5, TransformerEngine's float8": transformer_engine_float8,
    "float32, captured": lambda *task: captured(float32(*task, capturable=True)),
    "torch.amp, bfloat16, captured": lambda *task: captured(
        torch_amp(*task, torch.bfloat16, capturable=True)
    ),
    "O1, captured": lambda *task: opt_level(*task, "O1", is_captured=True),
    "O2, captured": lambda *task: opt_level(*task, "O2", is_captured=True),
    "O4, captured": lambda *task: opt_level(*task, "O4", is_captured=True),
    "O5, captured": lambda *task: opt_level(*task, "O5", is_captured=True),
}


#: In order of importance. On CPUs float16 comes last, because it may be unusably slow, and there is
#: no TF32.
ON_CUDA = list(VARIANTS)
ON_CPU = ["float32", "torch.amp, bfloat16", "O4", "O5", "torch.amp, float16", "O1", "O2"]


def names_for(device: str) -> list[str]:
    return ON_CUDA if device == "cuda" else ON_CPU


def base_for(device: str) -> str:
    """The torch.amp variant that serves as the baseline."""
    return "torch.amp, float16" if device == "cuda" else "torch.amp, bfloat16"


def set_precision(name: str) -> None:
    """Sets whether float32 products use TF32: never, always, or PyTorch's default."""
    torch.set_float32_matmul_precision("high" if name == "TF32" else "highest")
    torch.backends.cudnn.allow_tf32 = not name.startswith("float32")
