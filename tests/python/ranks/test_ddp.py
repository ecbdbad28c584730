"""DistributedDataParallel around what initialize returned: ranks keep the same masters, and train
as one process with float32 masters does on all their batches."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch._dynamo
from nets import file_by, linear_net, loss_of, master_values, overflow_at
from processes import gloo
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from torchamp import amp, optimizers
from torchamp.compat.apex.parallel import DistributedDataParallel as ApexDistributedDataParallel

pytestmark = [
    pytest.mark.skipif(not distributed.is_available(), reason="torch has no distributed"),
    pytest.mark.xdist_group("ddp"),
]

STEPS, MICRO_BATCHES = 6, 4
#: The step, rank and micro-batch of an overflow.
OVERFLOW = (2, 1, 0)
DTYPES = {"O2": torch.float16, "O5": torch.bfloat16}
LEVELS = ("O0", "O1", "O2", "O5")


def sgd(params) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.125, momentum=0.5)


def fused_sgd(params) -> torch.optim.Optimizer:
    return optimizers.FusedSGD(params, lr=0.125, momentum=0.5)


def fused_adamw(params) -> torch.optim.Optimizer:
    return optimizers.FusedAdamW(params, lr=0.01)


@dataclass(frozen=True)
class Training:
    """Micro-batches of which the last alone is synchronized."""

    level: str
    make: Callable = sgd
    #: Where scale_loss and the backward of an unsynchronized micro-batch are.
    inside: bool = True
    wrapped: dict[str, Any] = field(default_factory=dict)
    syncs_every: bool = False
    overflows: bool = True

    def __call__(self) -> None:
        model, optimizer = self.start()
        start = [tensor.detach().clone() for tensor in master_values(optimizer)]
        parallel = DistributedDataParallel(model, **self.wrapped)
        self.run(parallel, model, optimizer)
        if self.make is not fused_adamw:
            self.check(start, master_values(optimizer))

    def start(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Another start on each rank."""
        torch.manual_seed(distributed.get_rank())
        model = linear_net()
        optimizer = self.make(model.parameters())
        amp.initialize(model, optimizer, opt_level=self.level, loss_scale="dynamic", verbosity=0)
        amp.load_state_dict({"loss_scaler0": {"loss_scale": 1024.0, "unskipped": 0}})
        return model, optimizer

    def run(self, parallel, model, optimizer) -> None:
        for step in range(STEPS):
            self.step(parallel, model, optimizer, step)
            seen = [*master_values(optimizer), *model.parameters(), torch.tensor(scale_of())]
            assert gloo.are_same(seen), f"the ranks' values or scales part in step {step}"

    def step(self, parallel, model, optimizer, step: int) -> None:
        optimizer.zero_grad()
        for micro in range(MICRO_BATCHES):
            self.backward(parallel, model, optimizer, step, micro)
        optimizer.step()

    def backward(self, parallel, model, optimizer, step: int, micro: int) -> None:
        here = (step, distributed.get_rank(), micro)
        starts = step == 0 and "static_graph" in self.wrapped  # torch needs a synchronized one then
        is_synced = starts or self.syncs_every or micro == MICRO_BATCHES - 1
        no_sync = contextlib.nullcontext if is_synced else parallel.no_sync
        bad = float("inf") if self.overflows and here == OVERFLOW else 0.0
        with overflow_at(model[0].bias, bad) if bad else contextlib.nullcontext():
            with no_sync():
                loss = loss_of(parallel, seed_of(*here))
                if self.inside:
                    amp.scale_loss(loss, optimizer).backward()
            if not self.inside:
                amp.scale_loss(loss, optimizer).backward()

    def check(self, start: list[torch.Tensor], masters: list[torch.Tensor]) -> None:
        """Against the oracle, from the first rank's start."""
        for tensor in start:
            distributed.broadcast(tensor, 0)
        expected = self.oracle([tensor.clone() for tensor in start])
        for before, after, wanted in zip(start, masters, expected):
            moved = (wanted - before).norm()
            assert (after.detach() - wanted).norm() <= 0.02 * moved, "another update than due"

    def oracle(self, masters: list[torch.Tensor]) -> list[torch.Tensor]:
        """One process, float32 masters by hand, all ranks' micro-batches."""
        model = linear_net()
        dtype = DTYPES.get(self.level, torch.float32)
        optimizer = torch.optim.SGD(masters, lr=0.125, momentum=0.5)
        world = range(distributed.get_world_size())
        for step in range(STEPS):
            if self.overflows and step == OVERFLOW[0]:
                continue
            with torch.no_grad():
                for param, master in zip(model.parameters(), masters):
                    param.copy_(master.to(dtype))
            seeds = [
                seed_of(step, *each) for each in itertools.product(world, range(MICRO_BATCHES))
            ]
            loss = sum(loss_of(model, seed) for seed in seeds) / len(world)
            grads = torch.autograd.grad(loss, list(model.parameters()))
            for master, grad in zip(masters, grads):
                master.grad = grad
            optimizer.step()
        return masters


def seed_of(step: int, rank: int, micro: int) -> int:
    return 100 * step + 10 * rank + micro


def scale_of() -> float:
    return amp.state_dict()["loss_scaler0"]["loss_scale"]


def no_sync_cases() -> Iterator[tuple[str, Callable[[], None]]]:
    for level, inside in itertools.product(LEVELS, (True, False)):
        yield f"{level}-{'inside' if inside else 'outside'}", Training(level, inside=inside)
    for make, level in itertools.product((fused_sgd, fused_adamw), ("O1", "O2", "O5")):
        yield f"{level}-{make.__name__}", Training(level, make)
    for option in ("gradient_as_bucket_view", "static_graph", "find_unused_parameters"):
        for level in LEVELS:
            yield f"{level}-{option}", Training(level, fused_sgd, wrapped={option: True})
    for level in LEVELS:
        both = {"gradient_as_bucket_view": True, "static_graph": True}
        yield f"{level}-static_graph_of_bucket_views", Training(level, fused_sgd, wrapped=both)
    for level, make in itertools.product(("O1", "O2"), (sgd, fused_sgd)):
        options = {"gradient_as_bucket_view": True}
        name = f"{level}-{make.__name__}-buckets-every"
        yield name, Training(level, make, wrapped=options, syncs_every=True)


def resume(level: str, make: Callable, order: str) -> None:
    """Training goes on from a checkpoint as if it had never stopped."""
    training = Training(level, make, overflows=False)
    model, optimizer = training.start()
    parallel = DistributedDataParallel(model)
    training.step(parallel, model, optimizer, 0)
    file = file_by(lambda file: amp.save(model, optimizer, file))
    training.step(parallel, model, optimizer, 1)
    expected = master_values(optimizer)

    model, optimizer = training.start()
    if order == "wrap, load":
        parallel = DistributedDataParallel(model)
    amp.load(model, optimizer, file)
    if order == "load, wrap":
        parallel = DistributedDataParallel(model)
    training.step(parallel, model, optimizer, 1)
    assert all(map(torch.equal, master_values(optimizer), expected))


def resume_cases() -> Iterator[tuple[str, Callable[[], None]]]:
    for level, order in itertools.product(("O1", "O2", "O5"), ("load, wrap", "wrap, load")):
        for make in (sgd, fused_adamw):
            yield f"{level}-{make.__name__}-{order}", functools.partial(resume, level, make, order)


def join(level: str, make: Callable) -> None:
    """Ranks with other numbers of batches, and an overflow after one has none left."""
    training = Training(level, make, overflows=False)
    model, optimizer = training.start()
    parallel = DistributedDataParallel(model)
    for epoch in range(2):
        with parallel.join():
            for step in range(max(1, 4 - 2 * distributed.get_rank())):
                optimizer.zero_grad()
                bad = epoch == 0 and step == 3
                with overflow_at(model[0].bias) if bad else contextlib.nullcontext():
                    amp.scale_loss(loss_of(parallel, seed_of(step, epoch, 0)), optimizer).backward()
                optimizer.step()
        assert gloo.are_same(list(model.parameters()))
        assert gloo.are_same(master_values(optimizer)), "the ranks' masters part"
        assert gloo.are_same([torch.tensor(scale_of())]), "the ranks' loss scales part"


def wrapped(level: str, wrap: Callable) -> None:
    """By apex's wrapper, or with a communication hook."""
    training = Training(level, fused_sgd)
    model, optimizer = training.start()
    training.run(wrap(model), model, optimizer)


def hooked(model: nn.Module, state: object, hook: Callable) -> DistributedDataParallel:
    parallel = DistributedDataParallel(model)
    parallel.register_comm_hook(state, hook)
    return parallel


def in_float16(model: nn.Module) -> DistributedDataParallel:
    return hooked(model, None, default_hooks.fp16_compress_hook)


def in_bfloat16(model: nn.Module) -> DistributedDataParallel:
    """As torch's own hook does, which asks for NCCL."""

    def hook(group, bucket):
        buffer = bucket.buffer()
        mean = buffer.to(torch.bfloat16).div_(distributed.get_world_size())
        reduced = distributed.all_reduce(mean, async_op=True).get_future()
        return reduced.then(lambda done: buffer.copy_(done.value()[0]))

    return hooked(model, None, hook)


def by_power_sgd(model: nn.Module) -> DistributedDataParallel:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    return hooked(model, state, powerSGD_hook.powerSGD_hook)


def compiled(level: str) -> None:
    """torch.compile after initialize: one graph where grads are synchronized, one elsewhere."""
    training = Training(level, fused_sgd)
    model, optimizer = training.start()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model.compile(backend="eager")
    parallel = DistributedDataParallel(model)
    training.run(parallel, model, optimizer)
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    torch._dynamo.reset()  # which else keeps the model


def wrapped_before(level: str) -> None:
    """initialize after the wrapper, of the module in it: a level that casts the parameters takes
    them from the reducer."""
    training = Training(level, fused_sgd)
    torch.manual_seed(distributed.get_rank())
    model = linear_net()
    parallel = DistributedDataParallel(model)
    optimizer = fused_sgd(model.parameters())
    amp.initialize(parallel.module, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    if level in DTYPES:
        before = master_values(optimizer)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="wrap the model after initialize"):
                training.step(parallel, model, optimizer, 0)
        assert all(map(torch.equal, before, master_values(optimizer)))
        return
    training.run(parallel, model, optimizer)


def step_by_unsynced_grads(level: str) -> None:
    """A step before the synchronized backward: it raises, and the next synchronized one works."""
    model, optimizer = Training(level, fused_sgd).start()
    parallel = DistributedDataParallel(model)
    with parallel.no_sync():
        amp.scale_loss(loss_of(parallel), optimizer).backward()
    before = master_values(optimizer)
    with pytest.raises(RuntimeError, match="step: expected"):
        optimizer.step()
    assert all(map(torch.equal, before, master_values(optimizer)))
    amp.scale_loss(loss_of(parallel), optimizer).backward()
    optimizer.step()
    assert gloo.are_same(master_values(optimizer))
    assert not all(map(torch.equal, before, master_values(optimizer)))


class WideGrads(nn.Module):
    """Parts whose 16-bit parameters get float32 grads, or may, which autograd casts."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.RMSNorm(4)
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.scale, self.gain = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lstm(self.norm(self.linear(x))[None])[0][0]
        return Scale.apply(x.float() * self.gain, self.scale)


class Scale(torch.autograd.Function):
    """Returns float32 grads, whatever the weight's dtype is."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight.float()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return grad * weight.float(), (grad * x).sum(0)


def wide_grads(level: str, make: Callable, view: bool) -> None:
    torch.manual_seed(0)
    model = WideGrads()
    optimizer = make(model.parameters())
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=view)
    batches = torch.Generator().manual_seed(distributed.get_rank())
    for step in range(3):
        optimizer.zero_grad()
        for micro in range(2):
            unsynced = parallel.no_sync() if micro == 0 and step else contextlib.nullcontext()
            with unsynced:
                loss = parallel(torch.randn(3, 4, generator=batches)).pow(2).mean()
                amp.scale_loss(loss, optimizer).backward()
        optimizer.step()
        assert gloo.are_same(master_values(optimizer)), step
    amp.release(model)
    for param in model.parameters():
        assert getattr(param, "grad_dtype", torch.float32) is torch.float32


def other_cases() -> Iterator[tuple[str, Callable[[], None]]]:
    for level, make in itertools.product(("O1", "O2"), (sgd, fused_sgd)):
        yield f"join-{level}-{make.__name__}", functools.partial(join, level, make)
    for level, make, view in itertools.product(DTYPES, (sgd, fused_adamw), (False, True)):
        name = f"wide_grads-{level}-{make.__name__}-{view}"
        yield name, functools.partial(wide_grads, level, make, view)
    for level in LEVELS:
        yield f"apex-{level}", functools.partial(wrapped, level, ApexDistributedDataParallel)
        yield f"compiled-{level}", functools.partial(compiled, level)
        yield f"wrapped_before-{level}", functools.partial(wrapped_before, level)
        yield f"step_by_unsynced_grads-{level}", functools.partial(step_by_unsynced_grads, level)
        yield f"bfloat16-{level}", functools.partial(wrapped, level, in_bfloat16)
        yield f"float16-{level}", functools.partial(wrapped, level, in_float16)
        yield f"power_sgd-{level}", functools.partial(wrapped, level, by_power_sgd)


CASES = {
    **{f"no_sync-{name}": case for name, case in no_sync_cases()},
    **dict(other_cases()),
    **{f"resume-{name}": case for name, case in resume_cases()},
}


OF_FOUR = ("no_sync-O1-fused_sgd", "no_sync-O2-inside", "no_sync-O2-fused_adamw", "join-O2-sgd")


test_two_ranks = gloo.tests_on(2, CASES)
test_four_ranks = pytest.mark.soak(gloo.tests_on(4, {name: CASES[name] for name in OF_FOUR}))
