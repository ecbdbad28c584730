"""Times what mixed precision adds to a backward: unscaling, checking, the optimizer's step.

Every row comes from one process and one interleaved run; compare within a row only. Grads stand in
for a backward's, and are handed over anew each time, as zero_grad(set_to_none=True) has it.
The largest workload takes 14 GiB.

    python benchmarks/python/bench_step.py [--device cpu] [--repeats 15] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import command_line
import torch
from timing import Variants, time_interleaved
from torch import nn
from workloads import WORKLOADS, copy_of, count_elements, random_tensors

from torchamp import amp, optimizers

#: What the leanest step has to read and write for a float16 parameter with a float32 master:
#: the grad twice (check, step), master and two averages in and out, the parameter out.
FLOOR_BYTES = 30

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass
class Row:
    """Milliseconds of a step, by variant, and of a copy that moves as many bytes as the floor."""

    workload: str
    parameters: int
    floor_bytes: int = FLOOR_BYTES
    milliseconds: dict[str, float] = field(default_factory=dict)


class Weights(nn.Module):
    """A model that is nothing but its parameters."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(tensors)


def amp_step(workload: str, device: str, make: MakeOptimizer, looks: bool = False) -> Callable:
    """A step at O2. `looks`: at the masters, so that their grads are made."""
    model = Weights(random_tensors(WORKLOADS[workload], torch.float32, device))
    optimizer = make(list(model.parameters()))
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    if looks:
        list(amp.master_params(optimizer))
    params = list(model.parameters())
    grads = random_tensors(WORKLOADS[workload], torch.float16, device)
    loss = torch.zeros((), device=device)

    def step() -> None:
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer):
            for param, grad in zip(params, grads):
                param.grad = grad
        optimizer.step()

    return step


def torch_amp_step(workload: str, device: str, **options: bool) -> Callable:
    """A step of torch.amp: float32 parameters and grads, GradScaler, AdamW."""
    params = [
        nn.Parameter(tensor)
        for tensor in random_tensors(WORKLOADS[workload], torch.float32, device)
    ]
    grads = random_tensors(WORKLOADS[workload], torch.float32, device)
    optimizer = torch.optim.AdamW(params, **options)
    scaler = torch.amp.GradScaler(device)
    loss = torch.zeros((), device=device)

    def step() -> None:
        optimizer.zero_grad()
        scaler.scale(loss)
        for param, grad in zip(params, grads):
            param.grad = grad
        scaler.step(optimizer)
        scaler.update()

    return step


def variants_of(workload: str, device: str) -> Variants:
    elements = count_elements(random_tensors(WORKLOADS[workload], torch.float16, "meta"))

    def torch_adamw(**options: bool) -> MakeOptimizer:
        return lambda params: torch.optim.AdamW(params, **options)

    return {
        "one pass": amp_step(workload, device, optimizers.FusedAdamW),
        "master grads made": amp_step(workload, device, optimizers.FusedAdamW, looks=True),
        "O2, torch AdamW(fused)": amp_step(workload, device, torch_adamw(fused=True)),
        "O2, torch AdamW(foreach)": amp_step(workload, device, torch_adamw(foreach=True)),
        "torch.amp, AdamW(fused)": torch_amp_step(workload, device, fused=True),
        "bare copy": copy_of(elements * FLOOR_BYTES, device),
    }


def measure(device: str, repeats: int) -> list[Row]:
    rows = []
    for workload, shapes in WORKLOADS.items():
        elements = count_elements(random_tensors(shapes, torch.float16, "meta"))
        times = time_interleaved(variants_of(workload, device), device, repeats)
        rows.append(Row(workload, elements, milliseconds=times))
    return rows


def print_table(rows: list[Row]) -> None:
    for row in rows:
        print(f"{row.workload}, {row.parameters:,} parameters")
        fastest = row.milliseconds["one pass"]
        for name, milliseconds in row.milliseconds.items():
            print(f"  {name:26} {milliseconds:9.2f} ms  {milliseconds / fastest:6.2f}x")


if __name__ == "__main__":
    command_line.run(__doc__, measure, print_table)
