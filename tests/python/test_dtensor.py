"""DTensors: optimizers, scalers and clipping work on each rank's shards, and training is that of one
process on all ranks' batches."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import gloo
import pytest
import torch
from torch import distributed, nn

import torchamp
from torchamp import optimizers

pytest.importorskip("torch.distributed.tensor", reason="this torch has no DTensor")
pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch has no distributed")

STEPS = 5
#: The step and rank of an overflow.
OVERFLOW = (2, 1)


def sgd(params) -> torch.optim.Optimizer:
    return optimizers.FusedSGD(params, lr=0.125, momentum=0.5)


def adamw(params) -> torch.optim.Optimizer:
    return optimizers.FusedAdamW(params, lr=0.01)


def adam(params) -> torch.optim.Optimizer:
    return optimizers.FusedAdam(params, lr=0.01)


def adagrad(params) -> torch.optim.Optimizer:
    return optimizers.FusedAdagrad(params, lr=0.01)


def torch_adamw(params) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=0.01)


def torch_fused(params) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=0.01, fused=True)


#: The largest difference from one process that rounding explains.
TOLERANCE = 2e-7


def net() -> nn.Module:
    """The first layer's bias and the norm have other elements per rank than the other parameters;
    the last bias has none on the last of four."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(16, 6, generator=generator)
    return x, (x.sum(1) > 0).long()


def loss_of(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    x, target = batch(step, rank)
    return nn.functional.cross_entropy(model(x).float(), target)


def mesh_of(*sizes: int, names=("data", "tensor")):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", sizes, mesh_dim_names=names[: len(sizes)])


class FSDP:
    """fully_shard: another batch on each rank."""

    @staticmethod
    def shard(model: nn.Module) -> None:
        from torch.distributed.fsdp import fully_shard

        mesh = mesh_of(distributed.get_world_size())
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)

    @staticmethod
    def batches() -> list[int]:
        return list(range(distributed.get_world_size()))

    @staticmethod
    def own_batch() -> int:
        return distributed.get_rank()


class TP:
    """Tensor parallelism with sequence parallel norms: the same batch on each rank."""

    @staticmethod
    def shard(model: nn.Module) -> None:
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        mesh = mesh_of(distributed.get_world_size())
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import PrepareModuleInput, SequenceParallel
        from torch.distributed.tensor import Shard

        plan = {
            "0": ColwiseParallel(output_layouts=Shard(0)),
            "1": SequenceParallel(sequence_dim=0),
            "3": RowwiseParallel(input_layouts=Shard(0)),
        }
        parallelize_module(model, mesh, plan)

    @staticmethod
    def batches() -> list[int]:
        return [0]

    @staticmethod
    def own_batch() -> int:
        return 0


def full(tensors) -> list[torch.Tensor]:
    return [tensor.detach().full_tensor() for tensor in tensors]


def oracle(kind, make: Callable) -> list[torch.Tensor]:
    """One process."""
    model = net()
    optimizer = make(model.parameters())
    for step in range(STEPS):
        if step == OVERFLOW[0]:
            continue
        optimizer.zero_grad()
        losses = [loss_of(model, step, rank) for rank in kind.batches()]
        (sum(losses) / len(losses)).backward()
        optimizer.step()
    return [param.detach() for param in model.parameters()]


def spoil(model: nn.Module) -> None:
    """An infinite element of a shard that this rank has."""
    grad = next(param.grad for param in model.parameters() if param.grad.to_local().numel())
    grad.to_local().view(-1)[0] = float("inf")


def compare(model: nn.Module, expected: list[torch.Tensor], tolerance: float) -> None:
    for param, wanted in zip(full(model.parameters()), expected):
        difference = (param - wanted).abs().max().item()
        assert difference <= tolerance, f"{difference} from one process"


def scaled(kind, make: Callable) -> None:
    """torchamp.GradScaler."""
    model = net()
    kind.shard(model)
    optimizer = make(model.parameters())
    scaler = torchamp.GradScaler("cpu", init_scale=1024.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step, kind.own_batch())).backward()
        if (step, distributed.get_rank()) == OVERFLOW:
            spoil(model)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 512.0, "an overflow of one rank's shard skips on all"
    compare(model, oracle(kind, make), 0.0 if make is sgd else TOLERANCE)


def grad_scaler_cases() -> Iterator[tuple[str, Callable[[], None]]]:
    for kind, make in itertools.product(
        (FSDP, TP), (sgd, adam, adamw, adagrad, torch_adamw, torch_fused)
    ):
        yield f"{kind.__name__}-{make.__name__}", functools.partial(scaled, kind, make)


CASES = dict(grad_scaler_cases())


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return gloo.run(2, CASES)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks(outcomes, case):
    assert not outcomes[case], outcomes[case]
