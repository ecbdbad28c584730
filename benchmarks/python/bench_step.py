"""Times what mixed precision adds to a backward: unscaling, checking, the optimizer's step.

Every row comes from one process and one interleaved run; compare within a row only. Grads stand in
for a backward's, and are handed over anew each time, as zero_grad(set_to_none=True) has it.
The largest workload takes 17 GiB.

    python benchmarks/python/bench_step.py [--device cpu] [--repeats 15] [--json FILE]
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import command_line
import torch
from timing import time_interleaved
from torch import nn
from workloads import WORKLOADS, copy_of, count_elements, random_tensors

from torchamp import amp, optimizers

#: What the leanest step with float32 masters has to read and write for a float16 parameter: the
#: grad twice (check, step), master and two averages in and out, the parameter out.
FLOOR_BYTES = 30

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass
class Row:
    """A workload's steps, by variant: milliseconds, and bytes a parameter of weights, grads,
    masters and averages. A copy that moves as many bytes as the floor stands beside them."""

    workload: str
    parameters: int
    floor_bytes: int = FLOOR_BYTES
    milliseconds: dict[str, float] = field(default_factory=dict)
    bytes_per_parameter: dict[str, float] = field(default_factory=dict)


@dataclass
class Variant:
    """A step to time, and what stays in memory for it between steps."""

    run: Callable[[], object]
    tensors: Callable[[], Iterable[torch.Tensor | None]]

    def bytes(self) -> int:
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in self.tensors()
            if tensor is not None
        }
        return sum(storages.values())


class Weights(nn.Module):
    """A model that is nothing but its parameters."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(tensors)


def states_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [value for value in states if isinstance(value, torch.Tensor)]


def amp_step(
    workload: str, grads: list[torch.Tensor], make: MakeOptimizer, looks: bool = False
) -> Variant:
    """A step at O2. `looks`: at the masters, so that their grads are made."""
    device = grads[0].device
    model = Weights(random_tensors(WORKLOADS[workload], torch.float32, device))
    optimizer = make(list(model.parameters()))
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    if looks:
        list(amp.master_params(optimizer))
    params = list(model.parameters())
    loss = torch.zeros((), device=device)

    def backward() -> None:
        with amp.scale_loss(loss, optimizer):
            for param, grad in zip(params, grads):
                param.grad = grad

    def step() -> None:
        optimizer.zero_grad()
        backward()
        optimizer.step()

    def tensors() -> Iterator[torch.Tensor | None]:
        masters = optimizer._torchamp.masters
        backward()
        yield from (*params, *grads, *masters, *(master.grad for master in masters))
        yield from states_of(optimizer)
        if optimizer._torchamp.weights.is_split:
            yield from (param.to(torch.int16) for param in params)  # as large as the remainders

    return Variant(step, tensors)


def torch_amp_step(workload: str, device: str, **options: bool) -> Variant:
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

    return Variant(step, lambda: (*params, *grads, *states_of(optimizer)))


def variants_of(workload: str, device: str) -> dict[str, Variant]:
    grads = random_tensors(WORKLOADS[workload], torch.float16, device)

    def ours(looks: bool = False, **options: Any) -> Variant:
        make = functools.partial(optimizers.FusedAdamW, **options)
        return amp_step(workload, grads, make, looks)

    def torchs(**options: bool) -> Variant:
        return amp_step(workload, grads, functools.partial(torch.optim.AdamW, **options))

    return {
        "one pass": ours(),
        "one pass, split masters": ours(split_masters=True),
        "one pass, bfloat16 averages": ours(state_dtype=torch.bfloat16),
        "master grads made": ours(looks=True),
        "O2, torch AdamW(fused)": torchs(fused=True),
        "O2, torch AdamW(foreach)": torchs(foreach=True),
        "torch.amp, AdamW(fused)": torch_amp_step(workload, device, fused=True),
    }


def measure_workload(workload: str, device: str, repeats: int) -> Row:
    elements = count_elements(random_tensors(WORKLOADS[workload], torch.float16, "meta"))
    variants = variants_of(workload, device)
    runs = {name: variant.run for name, variant in variants.items()}
    half = copy_of(elements * FLOOR_BYTES // 2, device)  # twice, which saves memory
    runs["bare copy"] = lambda: (half(), half())
    row = Row(workload, elements, milliseconds=time_interleaved(runs, device, repeats))
    for name, variant in variants.items():
        row.bytes_per_parameter[name] = variant.bytes() / elements
    return row


def measure(device: str, repeats: int) -> list[Row]:
    return [measure_workload(workload, device, repeats) for workload in WORKLOADS]


def print_table(rows: list[Row]) -> None:
    for row in rows:
        print(f"{row.workload}, {row.parameters:,} parameters")
        fastest = row.milliseconds["one pass"]
        for name, milliseconds in row.milliseconds.items():
            size = row.bytes_per_parameter.get(name)
            kept = "" if size is None else f"{size:7.1f} bytes a parameter"
            print(f"  {name:28} {milliseconds:9.2f} ms  {milliseconds / fastest:6.2f}x {kept}")


if __name__ == "__main__":
    command_line.run(__doc__, measure, print_table)
