"""shard_masters: each rank keeps and steps a part of the masters, and training is that of
DistributedDataParallel."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import gloo
import pytest
import torch
from nets import Net, loss_of, overflow_at
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from torchamp import amp, optimizers
from torchamp.amp._ranks import buckets

pytestmark = [
    pytest.mark.skipif(not distributed.is_available(), reason="torch has no distributed"),
    pytest.mark.xdist_group("zero"),
]

#: The step and rank of an overflow.
OVERFLOW = (4, 1)
STEPS = 12


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    """Two groups, of which one decays."""
    decaying = [param for param in model.parameters() if param.dim() > 1]
    rest = [param for param in model.parameters() if param.dim() <= 1]
    groups = [{"params": decaying, "weight_decay": 0.01}, {"params": rest}]
    return torch.optim.SGD(groups, lr=0.125, momentum=0.5)


def fused_adamw(model: nn.Module) -> torch.optim.Optimizer:
    return optimizers.FusedAdamW(model.parameters(), lr=0.01)


def start(level: str, make: Callable, *, sharded: bool, seed: int | None = None, **options: Any):
    """(model, optimizer); each rank another model, unless DistributedDataParallel is to share
    them."""
    torch.manual_seed(distributed.get_rank() if seed is None else seed)
    model = Net()
    optimizer = make(model)
    if sharded:
        options["shard_masters"] = distributed.group.WORLD
    options = {"loss_scale": "dynamic", "verbosity": 0, **options}
    amp.initialize(model, optimizer, opt_level=level, **options)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 1024.0, "unskipped": 0}})
    return model, optimizer


def seed_of(step: int, micro: int = 0) -> int:
    return 100 * step + 10 * distributed.get_rank() + micro


def backward(model, optimizer, seed: int, **options) -> None:
    with amp.scale_loss(loss_of(model, seed), optimizer, **options) as scaled_loss:
        scaled_loss.backward()


def train(model, optimizer, steps, *, forward=None, clip: bool = False) -> None:
    module = model.module if isinstance(model, DistributedDataParallel) else model
    for step in steps:
        optimizer.zero_grad()
        here = (step, distributed.get_rank())
        bad = overflow_at(module.last.bias) if here == OVERFLOW else contextlib.nullcontext()
        with bad:
            backward(model, optimizer, seed_of(step))
        if clip:
            amp.clip_grad_norm_(optimizer, 0.125)
        optimizer.step()


def by_ddp(level: str, make: Callable, steps=range(STEPS), train=train) -> dict[str, torch.Tensor]:
    """The float32 weights."""
    model, optimizer = start(level, make, sharded=False)
    train(DistributedDataParallel(model, broadcast_buffers=False), optimizer, steps)
    return model.state_dict()


def are_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    params = [name for name in one if "running" not in name and "num" not in name]
    return all(torch.equal(one[name], other[name]) for name in params)


def equal_to_ddp(level: str, make: Callable) -> None:
    expected = by_ddp(level, make)
    scale = amp.state_dict()
    model, optimizer = start(level, make, sharded=True)
    train(model, optimizer, range(STEPS))
    assert gloo.are_same(list(model.parameters()))
    assert are_equal(model.state_dict(), expected)
    assert amp.state_dict() == scale


def near_to_ddp(level: str, make: Callable) -> None:
    """Of more than two ranks, whose grads the two sum in another order, in 16 bits."""
    begun = by_ddp(level, make, steps=())
    expected = by_ddp(level, make)
    scale = amp.state_dict()
    model, optimizer = start(level, make, sharded=True)
    train(model, optimizer, range(STEPS))
    assert gloo.are_same(list(model.parameters()))
    assert amp.state_dict() == scale
    moved, off = (
        torch.cat(
            [(values[name] - expected[name]).flatten() for name, _ in model.named_parameters()]
        )
        for values in (begun, model.state_dict())
    )
    assert off.norm() <= 0.02 * moved.norm()


def accumulate(model, optimizer, steps, *, delays: bool) -> None:
    """Three micro-batches a step."""
    wrapper = model if isinstance(model, DistributedDataParallel) else None
    for step in steps:
        optimizer.zero_grad()
        for micro in range(3):
            waits = delays and micro < 2
            unsynced = wrapper.no_sync() if wrapper and waits else contextlib.nullcontext()
            with unsynced:
                backward(model, optimizer, seed_of(step, micro), delay_unscale=waits)
        optimizer.step()


def accumulation(level: str, make: Callable, delays: bool) -> None:
    """Grads are reduced once a step if all but the last micro-batch delay it."""
    run = functools.partial(accumulate, delays=delays)
    expected = by_ddp(level, make, range(4), run)
    model, optimizer = start(level, make, sharded=True)
    with counted() as calls:
        run(model, optimizer, range(4))
    assert are_equal(model.state_dict(), expected)
    count = 2  # buckets: of 16 bits, and the batch norm
    assert len(calls["reduce_scatter_single"]) == count * 4 * (1 if delays else 3)


@contextlib.contextmanager
def counted() -> Iterator[dict[str, list[int]]]:
    """The bytes of the larger tensor of each collective."""
    earlier = {"reduce_scatter_single": "reduce_scatter_tensor"}
    earlier["all_gather_single"] = "all_gather_into_tensor"  # before torch 2.13
    names = {name: name for name in ("all_reduce", "broadcast")}
    names |= {new: new if hasattr(distributed, new) else old for new, old in earlier.items()}
    calls: dict[str, list[int]] = {name: [] for name in names}
    originals = {name: getattr(distributed, actual) for name, actual in names.items()}

    def counting(name: str) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name].append(max(a.nbytes for a in args if isinstance(a, torch.Tensor)))
            return originals[name](*args, **kwargs)

        return call

    for name, actual in names.items():
        setattr(distributed, actual, counting(name))
    try:
        yield calls
    finally:
        for name, actual in names.items():
            setattr(distributed, actual, originals[name])


def wide_net() -> nn.Sequential:
    """Of sizes that need no padding, on four ranks either."""
    return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32))


def initialized(make: Callable, level: str = "O2", model: nn.Module | None = None, **options: Any):
    model = wide_net() if model is None else model
    optimizer = make(model)
    options = {"shard_masters": distributed.group.WORLD, "verbosity": 0, **options}
    return amp.initialize(model, optimizer, opt_level=level, **options)


def bytes_on_the_wire() -> None:
    """Those of an all-reduce of the 16-bit grads, and the four of the ranks' agreement."""
    model, optimizer = initialized(fused_adamw, loss_scale="dynamic")
    backward(model, optimizer, 0)  # the first compares the ranks' scales
    optimizer.step()
    with counted() as calls:
        optimizer.zero_grad()
        backward(model, optimizer, 0)
        optimizer.step()
    all_reduced = sum(2 * param.numel() for param in model.parameters())
    assert calls["reduce_scatter_single"] == calls["all_gather_single"] == [all_reduced]
    assert calls["all_reduce"] == [4]
    assert not calls["broadcast"]


def memory() -> None:
    """Of masters and moments."""
    model, optimizer = initialized(fused_adamw)
    backward(model, optimizer, 0)
    optimizer.step()
    total = sum(param.numel() for param in model.parameters())
    share = total // distributed.get_world_size()
    masters = list(amp.master_params(optimizer))
    assert sum(master.numel() for master in masters) == share
    assert all(master.untyped_storage().nbytes() == 4 * master.numel() for master in masters)
    for name in ("exp_avg", "exp_avg_sq"):
        assert sum(optimizer.state[master][name].numel() for master in masters) == share


def overlap() -> None:
    """The last layer's grads are on their way before the first layer's are there."""
    model, optimizer = initialized(fused_adamw)
    started = []
    with counted() as calls:
        hook = model[0].weight.register_hook(
            lambda grad: started.append(len(calls["reduce_scatter_single"]))
        )
        backward(model, optimizer, 0)
        hook.remove()
    assert started[0] >= 1
    assert len(calls["reduce_scatter_single"]) > started[0]


def in_small_buckets(case: Callable[[], None]) -> None:
    before, buckets.BUCKET_BYTES = buckets.BUCKET_BYTES, 256
    try:
        case()
    finally:
        buckets.BUCKET_BYTES = before


def resumed(level: str, make: Callable) -> None:
    """From a checkpoint of each rank, bit for bit; that of another rank is refused."""
    model, optimizer = start(level, make, sharded=True)
    train(model, optimizer, range(3))
    file = io.BytesIO()
    amp.save(model, optimizer, file)
    states = [None] * distributed.get_world_size()
    distributed.all_gather_object(states, file.getvalue())
    train(model, optimizer, range(5, 8))
    expected = model.state_dict()

    model, optimizer = start(level, make, sharded=True)
    before = model.state_dict()
    with pytest.raises(RuntimeError, match=r"expected the state of shard . of ., .* got that of s"):
        amp.load(model, optimizer, io.BytesIO(states[1 - distributed.get_rank()]))
    assert are_equal(model.state_dict(), before)
    amp.load(model, optimizer, io.BytesIO(states[distributed.get_rank()]))
    train(model, optimizer, range(5, 8))
    assert are_equal(model.state_dict(), expected)


def whole_weights(level: str) -> None:
    """state_dict gives the whole masters, which load with and without shards."""
    model, optimizer = start(level, adamw, sharded=True)
    train(model, optimizer, range(3))
    saved = model.state_dict()
    masters = torch.cat([master.detach() for master in amp.master_params(optimizer)])
    whole = torch.cat([saved[name].flatten() for name, _ in model.named_parameters()])
    assert torch.isin(masters, whole).all()
    assert not torch.equal(whole, torch.cat([p.float().flatten() for p in model.parameters()]))
    for sharded in (True, False):
        other, _ = start(level, adamw, sharded=sharded, seed=7)
        other.load_state_dict(saved)
        assert are_equal(other.state_dict(), saved)


def writes(level: str) -> None:
    """Those of the program to the model reach the masters, also by new memory."""
    model, optimizer = start(level, adamw, sharded=True)
    train(model, optimizer, range(2))
    with torch.no_grad():
        model.first.weight.fill_(0.5)
        model.last.weight.data = torch.full_like(model.last.weight, 0.25)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.param_groups[0]["weight_decay"] = 0.0
    train(model, optimizer, range(2, 3))
    saved = model.state_dict()
    assert (saved["first.weight"] == 0.5).all()
    assert (saved["last.weight"] == 0.25).all()
    assert (model.last.weight == 0.25).all()


def zeroed(spelling: str) -> None:
    """However the program zeroes grads, the next step is by the next backward's."""
    zero: dict[str, Callable[[nn.Module, torch.optim.Optimizer], object]] = {
        "optimizer": lambda model, optimizer: optimizer.zero_grad(),
        "zeros": lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
        "model": lambda model, optimizer: model.zero_grad(),
        "model-zeros": lambda model, optimizer: model.zero_grad(set_to_none=False),
    }
    saved = []
    for twice in (False, True):
        model, optimizer = start("O2", momentum, sharded=True)
        for step in range(3):
            if twice:
                delays = step == 1 and spelling != "model-zeros"
                backward(model, optimizer, 50 + step, delay_unscale=delays)
            zero[spelling](model, optimizer)
            backward(model, optimizer, step)
            optimizer.step()
        saved.append({name: value for name, value in model.state_dict().items()})
    assert are_equal(*saved)


def raising() -> None:
    """An exception after a reduction has started leaves the grads as they were."""
    saved = []
    for raises in (False, True):
        model, optimizer = start("O2", momentum, sharded=True)
        for step in range(3):
            optimizer.zero_grad()
            backward(model, optimizer, seed_of(step), delay_unscale=True)
            if raises:
                hook = model.first.weight.register_hook(lambda grad: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    backward(model, optimizer, 60)
                hook.remove()
            backward(model, optimizer, seed_of(step, 1))
            optimizer.step()
        saved.append(model.state_dict())
    assert are_equal(*saved)


def rescaled() -> None:
    """Grads that wait for their reduction are divided by their own scale."""
    saved = []
    for scales in ((1024.0, 1024.0), (1024.0, 256.0)):
        model, optimizer = start("O2", momentum, sharded=True)
        for step in range(3):
            optimizer.zero_grad()
            for micro, scale in enumerate(scales):
                amp.load_state_dict({"loss_scaler0": {"loss_scale": scale, "unskipped": 0}})
                backward(model, optimizer, seed_of(step, micro), delay_unscale=micro == 0)
            optimizer.step()
        saved.append(model.state_dict())
    for name, value in saved[0].items():
        torch.testing.assert_close(value, saved[1][name], rtol=1e-3, atol=1e-4)


def frozen() -> None:
    """Frozen parameters stay, and take part in nothing; thawed ones are trained."""
    model = wide_net()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    with torch.no_grad():
        distributed.broadcast(before, 0)
    model, optimizer = initialized(adamw, model=model)
    with counted() as calls:
        backward(model, optimizer, 0)
        optimizer.step()
    assert calls["reduce_scatter_single"] == [2 * (32 * 32 + 32)]
    assert torch.equal(model[0].weight, before.half())
    model[0].requires_grad_(True)
    optimizer.zero_grad()
    backward(model, optimizer, 1)
    optimizer.step()
    assert not torch.equal(model[0].weight, before.half())
    assert gloo.are_same(list(model.parameters()))


def clipped() -> None:
    """By the norm of all ranks' grads."""
    run = functools.partial(train, clip=True)
    expected = by_ddp("O5", fused_adamw, range(3), run)
    model, optimizer = start("O5", fused_adamw, sharded=True)
    run(model, optimizer, range(3))
    for name, value in model.state_dict().items():
        if "running" not in name:
            torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)
    optimizer.zero_grad()
    backward(model, optimizer, 0)
    norm = amp.clip_grad_norm_(optimizer, 1e9)
    grads = torch.cat([master.grad for master in amp.master_params(optimizer)])
    squares = grads.double().square().sum()
    distributed.all_reduce(squares)
    torch.testing.assert_close(norm.double(), squares.sqrt())
    with pytest.raises(ValueError, match="expected norm_type to be 2 with shard_masters"):
        amp.clip_grad_norm_(optimizer, 1.0, norm_type=1.0)


def channels_last() -> None:
    """Parameters keep their strides, and convolutions train as with DistributedDataParallel."""

    def convolution() -> nn.Module:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8 * 4, 3))
        return net.to(memory_format=torch.channels_last)

    model, optimizer = initialized(momentum, "O5", convolution())
    plain, other = initialized(momentum, "O5", convolution(), shard_masters=None)
    assert model[0].weight.stride() == plain[0].weight.stride()
    parallel = DistributedDataParallel(plain)
    for step in range(3):
        x = torch.randn(2, 4, 4, 4, generator=torch.Generator().manual_seed(seed_of(step)))
        for net, its in ((model, optimizer), (parallel, other)):
            its.zero_grad()
            with amp.scale_loss(net(x).float().square().sum(), its) as scaled_loss:
                scaled_loss.backward()
            its.step()
    assert are_equal(model.state_dict(), plain.state_dict())


def refused() -> None:
    """Bad input gets one error, and changes nothing."""
    world = distributed.group.WORLD
    alone = [distributed.new_group([rank]) for rank in range(distributed.get_world_size())]
    others = alone[1 - distributed.get_rank()]
    lamb = lambda model: optimizers.FusedLAMB(model.parameters(), lr=0.01)  # noqa: E731
    bad = [
        (adamw, "O1", world, RuntimeError, "expected shard_masters at an opt_level with masters"),
        (adamw, "O2", "world", TypeError, "expected shard_masters to be a torch.distributed.Proc"),
        (adamw, "O2", others, ValueError, "expected shard_masters to be one that this rank"),
        (lamb, "O2", world, TypeError, "expected an optimizer that steps each element by itself"),
    ]
    for make, level, group, error, message in bad:
        model = wide_net()
        with pytest.raises(error, match=message):
            amp.initialize(model, make(model), opt_level=level, shard_masters=group, verbosity=0)
        assert model[0].weight.dtype == torch.float32
    model = nn.Linear(4, 3 + distributed.get_rank())
    with pytest.raises(RuntimeError, match="expected all ranks of shard_masters to have the same"):
        initialized(adamw, model=model)
    assert model.weight.dtype == torch.float32
    model = wide_net()
    with pytest.raises(ValueError, match="expected one optimizer with shard_masters, got 2"):
        split = [torch.optim.SGD(layer.parameters(), lr=1.0) for layer in (model[0], model[2])]
        amp.initialize(model, split, opt_level="O2", shard_masters=world, verbosity=0)


def misused() -> None:
    """What cannot be done with shards says so."""
    model, optimizer = initialized(adamw, loss_scale=128.0)
    with pytest.raises(RuntimeError, match="expected all groups before initialize with shard"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    with pytest.raises(RuntimeError, match="release: expected whole masters"):
        amp.release(model)
    with pytest.raises(RuntimeError, match="expected one backward in each scale_loss"):
        with amp.scale_loss(loss_of(model), optimizer) as scaled_loss:
            scaled_loss.backward(retain_graph=True)
            scaled_loss.backward()
    loss_of(model).backward()
    with pytest.raises(RuntimeError, match="step: expected grads of backwards in scale_loss"):
        optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="expected the backward of the scaled loss, got grads"):
        with amp.scale_loss(loss_of(model), optimizer):
            loss_of(model).backward()
    with pytest.raises(RuntimeError, match="expected no DistributedDataParallel around the model"):
        backward(DistributedDataParallel(model), optimizer, 0)
    embedding, its = initialized(momentum, model=nn.Embedding(8, 4, sparse=True))
    with pytest.raises(TypeError, match="expected dense grads with shard_masters, got a sparse"):
        with amp.scale_loss(embedding(torch.arange(3)).float().sum(), its) as scaled_loss:
            scaled_loss.backward()
    with pytest.raises(RuntimeError, match="expected masters not to be sharded"):
        amp.accumulate_weight_grads(model)(torch.zeros(2, 4))


def forgotten() -> None:
    """The model and its memory go with the last reference."""
    model, optimizer = initialized(adamw)
    backward(model, optimizer, 0)
    optimizer.step()
    gone = weakref.ref(model), weakref.ref(model[0].weight)
    gc.collect()
    gc.disable()
    try:
        del model, optimizer
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()


def tiny() -> None:
    """Ranks that own nothing train all the same."""
    model, optimizer = initialized(momentum, model=nn.Linear(4, 2), loss_scale="dynamic")
    for _ in range(3):
        with amp.scale_loss(model(torch.ones(2, 4)).float().sum(), optimizer) as scaled_loss:
            scaled_loss.backward()
        norm = amp.clip_grad_norm_(optimizer, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert gloo.are_same([*model.parameters(), torch.tensor(scale_of()), norm])
    assert amp.telemetry(optimizer).skipped_steps == 0


def scale_of() -> float:
    return amp.state_dict()["loss_scaler0"]["loss_scale"]


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    for level, make in itertools.product(("O2", "O5"), (adamw, momentum, fused_adamw)):
        yield f"ddp-{level}-{make.__name__}", functools.partial(equal_to_ddp, level, make)
    for level, delays in itertools.product(("O2", "O5"), (True, False)):
        for make in (momentum, fused_adamw):
            name = f"accumulation-{level}-{make.__name__}-{'delayed' if delays else 'finished'}"
            yield name, functools.partial(accumulation, level, make, delays)
    for level, make in itertools.product(("O2", "O5"), (adamw, fused_adamw)):
        yield f"resumed-{level}-{make.__name__}", functools.partial(resumed, level, make)
    for spelling in ("optimizer", "zeros", "model", "model-zeros"):
        yield f"zeroed-{spelling}", functools.partial(zeroed, spelling)
    small = (overlap, functools.partial(equal_to_ddp, "O2", fused_adamw), raising)
    for name, case in zip(("overlap", "small_buckets", "raising"), small):
        yield name, functools.partial(in_small_buckets, case)
    for level in ("O2", "O5"):
        yield f"whole_weights-{level}", functools.partial(whole_weights, level)
        yield f"writes-{level}", functools.partial(writes, level)
    for case in (bytes_on_the_wire, memory, rescaled, frozen, clipped, channels_last, tiny):
        yield case.__name__, case
    for case in (refused, misused, forgotten):
        yield case.__name__, case


CASES = dict(cases())
OF_FOUR = {
    **{f"near-{level}": functools.partial(near_to_ddp, level, momentum) for level in ("O2", "O5")},
    **{name: CASES[name] for name in ("resumed-O5-fused_adamw", "memory", "tiny")},
}


test_two_ranks = gloo.tests_on(2, CASES)
test_four_ranks = gloo.tests_on(4, OF_FOUR)
