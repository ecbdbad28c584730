"""The AdamW steps that bench_step.py compares. Precomputed grads replace a backward: each step
assigns them again, as after zero_grad(set_to_none=True)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from workloads import Shapes, random_tensors

from torchamp import amp, ops, optimizers

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass
class Variant:
    """A step to time, and the tensors that it keeps between steps."""

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
    """A module with only parameters."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(tensors)


@dataclass
class Grads:
    """The grads that the variants of a workload share."""

    shapes: Shapes
    device: str

    @functools.cached_property
    def half(self) -> list[torch.Tensor]:
        return random_tensors(self.shapes, torch.float16, self.device)

    @functools.cached_property
    def single(self) -> list[torch.Tensor]:
        return [grad.float() for grad in self.half]


def states_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [value for value in states if isinstance(value, torch.Tensor)]


def amp_step(
    shared: Grads, make: MakeOptimizer, materializes: bool = False, clips: bool = False
) -> Variant:
    """A step at O2. materializes: grads are unscaled before the step, as by default. clips: by
    norm."""
    model = Weights(random_tensors(shared.shapes, torch.float32, shared.device))
    optimizer = make(list(model.parameters()))
    model, optimizer = amp.initialize(
        model, optimizer, opt_level="O2", materialize_master_grads=materializes
    )
    params = list(model.parameters())
    loss = torch.zeros((), device=shared.device)

    def backward() -> None:
        with amp.scale_loss(loss, optimizer):
            for param, grad in zip(params, shared.half):
                param.grad = grad

    def step() -> None:
        optimizer.zero_grad()
        backward()
        if clips:
            amp.clip_grad_norm_(optimizer, 1.0)
        optimizer.step()

    def tensors() -> Iterator[torch.Tensor | None]:
        masters = optimizer._torchamp.core.master_params()  # distinct from the parameters
        backward()
        yield from (*params, *shared.half, *masters, *(param.grad for param in params))
        yield from states_of(optimizer)

    return Variant(step, tensors)


def three_passes(shared: Grads) -> Variant:
    """apex's passes with our kernels: unscale into master grads, wait for the overflow flag, step,
    round."""
    params = random_tensors(shared.shapes, torch.float16, shared.device)
    masters = [nn.Parameter(param.float()) for param in params]
    optimizer = optimizers.FusedAdamW(masters)
    inv_scale = torch.full((), 2.0**-16, device=shared.device)
    found_inf = torch.zeros((), device=shared.device)

    def step() -> None:
        found_inf.zero_()
        for master in masters:
            master.grad = torch.empty_like(master)
        ops.unscale(shared.half, [master.grad for master in masters], inv_scale, found_inf)
        if not found_inf.item():
            optimizer.step()
            ops.copy_cast([master.detach() for master in masters], params)

    def tensors() -> Iterator[torch.Tensor | None]:
        yield from (*params, *shared.half, *masters, *(master.grad for master in masters))
        yield from states_of(optimizer)

    return Variant(step, tensors)


def torch_amp_step(shared: Grads, clips: bool = False, **options: bool) -> Variant:
    """A step of torch.amp: float32 parameters and grads, GradScaler, torch's AdamW. It excludes the
    casts of weights and grads in forward and backward, another 12 bytes per parameter."""
    params = [
        nn.Parameter(tensor)
        for tensor in random_tensors(shared.shapes, torch.float32, shared.device)
    ]
    grads = [grad.clone() for grad in shared.single]  # unscaled in place
    optimizer = torch.optim.AdamW(params, **options)
    scaler = torch.amp.GradScaler(shared.device)
    loss = torch.zeros((), device=shared.device)

    def step() -> None:
        optimizer.zero_grad()
        scaler.scale(loss)
        for param, grad in zip(params, grads):
            param.grad = grad
        if clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(params, 1.0)
        scaler.step(optimizer)
        scaler.update()

    return Variant(step, lambda: (*params, *grads, *states_of(optimizer)))


def float32_step(shared: Grads, make: MakeOptimizer) -> Variant:
    """A step without mixed precision."""
    params = [
        nn.Parameter(tensor)
        for tensor in random_tensors(shared.shapes, torch.float32, shared.device)
    ]
    optimizer = make(params)

    def step() -> None:
        optimizer.zero_grad()
        for param, grad in zip(params, shared.single):
            param.grad = grad
        optimizer.step()

    return Variant(step, lambda: (*params, *shared.single, *states_of(optimizer)))


def hand_over(shared: Grads) -> Variant:
    """The overhead that all variants share: assigning the grads."""
    params = [nn.Parameter(tensor) for tensor in shared.single]

    def step() -> None:
        for param in params:
            param.grad = None
        for param, grad in zip(params, shared.single):
            param.grad = grad

    return Variant(step, lambda: (*params, *shared.single))


def _ours(**options: Any) -> MakeOptimizer:
    return functools.partial(optimizers.FusedAdamW, **options)


def _torchs(**options: bool) -> MakeOptimizer:
    return functools.partial(torch.optim.AdamW, **options)


#: Factories by name, which take the shared grads of a workload. The first is the baseline.
VARIANTS: dict[str, Callable[[Grads], Variant]] = {
    "one pass": lambda shared: amp_step(shared, _ours()),
    "one pass, clipped": lambda shared: amp_step(shared, _ours(), clips=True),
    "one pass, bfloat16 moments": lambda shared: amp_step(
        shared, _ours(state_dtype=torch.bfloat16)
    ),
    "master grads materialized": lambda shared: amp_step(shared, _ours(), materializes=True),
    "three passes, as apex": three_passes,
    "O2, torch AdamW(fused)": lambda shared: amp_step(shared, _torchs(fused=True)),
    "O2, torch AdamW(foreach)": lambda shared: amp_step(shared, _torchs(foreach=True)),
    "torch.amp, AdamW(fused)": lambda shared: torch_amp_step(shared, fused=True),
    "torch.amp, AdamW(foreach)": lambda shared: torch_amp_step(shared, foreach=True),
    "torch.amp, AdamW(fused), clipped": lambda shared: torch_amp_step(shared, True, fused=True),
    "float32, FusedAdamW": lambda shared: float32_step(shared, _ours()),
    "float32, torch AdamW": lambda shared: float32_step(shared, _torchs()),
    "float32, torch AdamW(fused)": lambda shared: float32_step(shared, _torchs(fused=True)),
    "assigning the grads, no step": hand_over,
}
