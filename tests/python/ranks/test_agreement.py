"""process_group: ranks whose grads differ skip the same steps and keep one loss scale."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from nets import backward, batch, file_by, linear_net, loss_of, master_values, overflow_at, sgd
from processes import gloo
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import torchamp
from torchamp import amp, optimizers

pytestmark = [
    pytest.mark.skipif(not distributed.is_available(), reason="torch has no distributed"),
    pytest.mark.xdist_group("agreement"),
]

STEPS = 5
#: The step of an overflow, on the last rank.
OVERFLOW = 2
START = {"loss_scaler0": {"loss_scale": 1024.0, "unskipped": 0}}


MAKERS = {
    "adamw": functools.partial(torch.optim.AdamW, lr=0.01),
    "adamw_of_torch_fused": functools.partial(torch.optim.AdamW, lr=0.01, fused=True),
    "fused_adamw": functools.partial(optimizers.FusedAdamW, lr=0.01),
    "fused_sgd": functools.partial(optimizers.FusedSGD, lr=0.125, momentum=0.5),
}


def here() -> int:
    return distributed.get_rank()


def is_last_rank() -> bool:
    return here() == distributed.get_world_size() - 1


def overflowing(model: nn.Module, step: int, ranks: str = "last") -> Any:
    """A context for a backward, which overflows in one step: on the last rank alone, or all."""
    overflows = step == OVERFLOW and (ranks == "all" or is_last_rank())
    return overflow_at(model[0].bias) if overflows else contextlib.nullcontext()


def started(
    level: str, make: str = "fused_adamw", model: nn.Module | None = None, **options: Any
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A pair that is the same on every rank, unless another model is given."""
    if model is None:
        model = seeded_net()
    optimizer = MAKERS[make](model.parameters())
    options = {"loss_scale": "dynamic", "verbosity": 0, **options}
    amp.initialize(model, optimizer, opt_level=level, **options)
    if options.get("num_losses", 1) == 1:
        amp.load_state_dict(START)
    return model, optimizer


def seeded_net() -> nn.Sequential:
    torch.manual_seed(0)
    return linear_net()


def together(level: str, *args: Any, **options: Any) -> tuple:
    return started(level, *args, process_group=distributed.group.WORLD, **options)


def scaler_together(make: str, scale: float = 1024.0) -> tuple:
    model = seeded_net()
    scaler = torchamp.GradScaler("cpu", scale, process_group=distributed.group.WORLD)
    return model, MAKERS[make](model.parameters()), scaler


def states_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [
        torch.as_tensor(value)
        for state in optimizer.state_dict()["state"].values()
        for value in state.values()
    ]


def scale_of() -> float:
    return amp.state_dict()["loss_scaler0"]["loss_scale"]


def counting() -> Any:
    """A context that records calls of all_reduce."""
    return mock.patch.object(distributed, "all_reduce", wraps=distributed.all_reduce)


def bytes_of(all_reduce: mock.Mock) -> list[int]:
    return [call.args[0].nbytes for call in all_reduce.call_args_list]


def plain(model, optimizer, step: int, ranks: str) -> None:
    with overflowing(model, step, ranks):
        backward(model, optimizer, step)


def of_micro_batches(model, optimizer, step: int, ranks: str) -> None:
    """The overflow is in one that leaves the grads scaled."""
    for micro in range(3):
        with overflowing(model, step if micro == 0 else -1, ranks):
            backward(model, optimizer, 10 * step + micro, delay_unscale=micro < 2)


def of_late_checks(model, optimizer, step: int, ranks: str) -> None:
    """The overflow is in a backward that leaves the scale to a later one."""
    for micro in range(2):
        with overflowing(model, step if micro == 0 else -1, ranks):
            backward(model, optimizer, 10 * step + micro, delay_overflow_check=micro == 0)


def clipped(model, optimizer, step: int, ranks: str) -> None:
    plain(model, optimizer, step, ranks)
    amp.clip_grad_norm_(optimizer, 0.1)


def trains(level: str, make: str, backwards: Callable = plain, **options: Any) -> None:
    """Ranks that have the same batches, and an overflow on one of them: they train as each does
    alone if all of them overflow."""
    expected = trained(*started(level, make, **options), backwards, ranks="all")
    found = trained(*together(level, make, **options), backwards, ranks="last")
    assert gloo.are_same(found), "the ranks part"
    assert all(map(torch.equal, found, expected)), "another training than due"


def trained(model, optimizer, backwards: Callable, ranks: str) -> list[torch.Tensor]:
    for step in range(STEPS):
        optimizer.zero_grad()
        backwards(model, optimizer, step, ranks)
        optimizer.step()
        if step == OVERFLOW:
            assert scale_of() == 512, "the scale has not backed off once"
    known = amp.telemetry(optimizer)
    assert (known.steps, known.skipped_steps, known.stepped) == (STEPS, 1, True)
    assert known.loss_scales == (512,)
    return [*master_values(optimizer), *states_of(optimizer), *model.parameters()]


def trainings() -> Iterator[tuple[str, Callable[[], None]]]:
    for level, make in itertools.product(("O0", "O1", "O2", "O5"), MAKERS):
        yield f"{level}-{make}", functools.partial(trains, level, make)
    for backwards in (of_micro_batches, of_late_checks, clipped):
        for level, make in itertools.product(("O1", "O2"), ("adamw", "fused_adamw")):
            name = f"{backwards.__name__}-{level}-{make}"
            yield name, functools.partial(trains, level, make, backwards)
    of_one_pass = functools.partial(trains, "O2", "fused_adamw", materialize_master_grads=False)
    yield "one-pass-O2", of_one_pass


def of_two_losses() -> None:
    """Grads that wait under the scale of one loss are unscaled where another's backward opens."""
    model, optimizer = together("O2", num_losses=2)
    backward(model, optimizer, loss_id=0)
    optimizer.step()
    optimizer.zero_grad()
    before = master_values(optimizer)
    with overflowing(model, OVERFLOW):
        backward(model, optimizer, loss_id=0, delay_unscale=True)
    backward(model, optimizer, loss_id=1)
    optimizer.step()
    assert all(map(torch.equal, master_values(optimizer), before)), "not skipped"
    optimizer.zero_grad()
    backward(model, optimizer, loss_id=0)
    optimizer.step()
    assert not any(map(torch.equal, master_values(optimizer), before)), "skipped"
    assert gloo.are_same(master_values(optimizer))
    assert [entry["loss_scale"] for entry in amp.state_dict().values()] == [32768, 65536]


def counted(level: str) -> None:
    """One all-reduce of 4 bytes a backward, none for micro-batches; one more compares scales."""
    model, optimizer = together(level)
    counts = []
    for step in range(3):
        optimizer.zero_grad()
        with counting() as all_reduce:
            of_micro_batches(model, optimizer, step, "last")
            optimizer.step()
        counts.append(bytes_of(all_reduce))
    compared = 8 * distributed.get_world_size()
    assert counts == [[compared, 4], [4], [4]]


def skipped_elsewhere() -> None:
    """The ranks' words: logged in the first, so not a parameter of its own."""
    model, optimizer = together("O2", verbosity=1)
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        plain(model, optimizer, OVERFLOW, "last")
        optimizer.step()
        amp.telemetry(optimizer)
    said = "gradient overflow in loss 0 on another rank: step skipped, loss scale now 512"
    if here() == 0:
        assert said in printed.getvalue(), printed.getvalue()


def skipped_too_often() -> None:
    """All ranks raise, in the same step."""
    model, optimizer = together("O2", max_consecutive_skips=2)
    plain(model, optimizer, OVERFLOW, "last")
    optimizer.step()
    optimizer.zero_grad()
    plain(model, optimizer, OVERFLOW, "last")
    with pytest.raises(RuntimeError, match="max_consecutive_skips = 2 skipped steps in a row"):
        optimizer.step()


def in_groups_of_a_mesh() -> None:
    """Rows and columns: one after the other they reach all ranks."""
    half = distributed.get_world_size() // 2
    rows = [distributed.new_group([2 * i, 2 * i + 1]) for i in range(half)]
    columns = [distributed.new_group(list(range(i, 2 * half, 2))) for i in range(2)]
    groups = [rows[here() // 2], columns[here() % 2]]
    model, optimizer = started("O2", process_group=groups)
    for step in range(STEPS):
        optimizer.zero_grad()
        plain(model, optimizer, step, "last")
        optimizer.step()
    assert gloo.are_same(master_values(optimizer))
    assert scale_of() == 512


def with_ignored_params() -> None:
    """Parameters that DistributedDataParallel leaves to each rank."""
    model, optimizer = together("O2")
    ignored = "0.bias"
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, [ignored])
    parallel = DistributedDataParallel(model)
    shared = [i for i, (name, _) in enumerate(model.named_parameters()) if name != ignored]
    for step in range(STEPS):
        optimizer.zero_grad()
        with overflowing(model, step):
            backward(parallel, optimizer, 10 * step + here())
        optimizer.step()
        masters = master_values(optimizer)
        assert gloo.are_same([masters[i] for i in shared]), f"the ranks part in step {step}"
        assert gloo.are_same([torch.tensor(scale_of())])
    assert not gloo.are_same(masters), "nothing was ignored"


def other_scales() -> None:
    """Raise on every rank, before anything has changed; with the same the training goes on."""
    model, optimizer = together("O2")
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 64.0 + here(), "unskipped": 3}})
    file = file_by(lambda file: amp.save(model, optimizer, file))
    for _ in range(2):
        with refused("one loss scale, got 64 on rank 0 and 65 on rank 1"):
            backward(model, optimizer)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 1024.0, "unskipped": here()}})
    with refused("one growth tracker, got 0 on rank 0 and 1 on rank 1"):
        backward(model, optimizer)
    amp.load_state_dict(START)
    plain(model, optimizer, OVERFLOW, "last")
    optimizer.step()
    assert scale_of() == 512
    amp.load(model, optimizer, file)
    with refused("one loss scale, got 64 on rank 0 and 65 on rank 1"):
        backward(model, optimizer)


def refused(what: str) -> Any:
    message = f"expected the ranks of process_group to have {what}; load the same state on every"
    return pytest.raises(RuntimeError, match=message)


def scaler_training(make: str, unscales: bool) -> None:
    """torchamp.GradScaler."""
    model, optimizer, scaler = scaler_together(make)
    before = None
    for step in range(STEPS):
        optimizer.zero_grad()
        with overflowing(model, step):
            scaler.scale(loss_of(model, step)).backward()
        with counting() as all_reduce:
            if unscales:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        compared = [8 * distributed.get_world_size()] if step == 0 else []
        assert bytes_of(all_reduce) == [*compared, 4]
        after = [param.detach().clone() for param in model.parameters()]
        assert gloo.are_same([*after, *states_of(optimizer)]), f"the ranks part in step {step}"
        if step == OVERFLOW:
            assert all(map(torch.equal, before, after)), "not skipped"
        before = after
    assert scaler.get_scale() == 512
    assert bool(scaler.overflowed_params(optimizer)) is False


def scaler_without_grads() -> None:
    """A rank that has none goes by the others' flag."""
    model, optimizer, scaler = scaler_together("fused_sgd")
    scaled_loss = scaler.scale(loss_of(model))
    if is_last_rank():
        with overflowing(model, OVERFLOW):
            scaled_loss.backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 512


def scalers_of_other_scales() -> None:
    model, optimizer, scaler = scaler_together("fused_sgd", 64.0)
    scaler.scale(loss_of(model)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    scaler.load_state_dict({**scaler.state_dict(), "scale": 64.0 + here()})
    scaler.scale(loss_of(model)).backward()
    with refused("one loss scale, got 64 on rank 0 and 65 on rank 1"):
        scaler.step(optimizer)


def wrong_groups() -> None:
    """A wrong group is refused before anything has changed."""
    of_others = [distributed.new_group([rank]) for rank in range(distributed.get_world_size())]
    others = of_others[(here() + 1) % distributed.get_world_size()]
    cases = [
        (others, ValueError, f"one that this rank, {here()}, is in"),
        ("gloo", TypeError, "a torch.distributed.ProcessGroup or a list of them, got 'gloo'"),
        ([distributed.group.WORLD, 3], TypeError, "a torch.distributed.ProcessGroup or a list"),
    ]
    model = linear_net()
    optimizer = sgd(model)
    for group, error, message in cases:
        with pytest.raises(error, match=f"^initialize: expected process_group to be {message}"):
            amp.initialize(model, optimizer, opt_level="O2", process_group=group)
        with pytest.raises(error, match=f"^GradScaler: expected process_group to be {message}"):
            torchamp.GradScaler("cpu", process_group=group)
    assert not hasattr(model, "_torchamp")


class Stage:
    """A half of a model on each of two ranks: micro-batches go forward, their grads back."""

    def __init__(self, model: nn.Sequential) -> None:
        self.is_last = here() == 1
        self.model = model[2:] if self.is_last else model[:2]

    def run(self, step: int) -> None:
        for micro in range(2):
            x, target = batch(10 * step + micro)
            self.last(target) if self.is_last else self.first(x)

    def first(self, x: torch.Tensor) -> None:
        output = self.model(x).float()  # O1 gives float16
        distributed.send(output.detach(), 1)
        grad = torch.empty_like(output)
        distributed.recv(grad, 1)
        output.backward(grad)

    def last(self, target: torch.Tensor) -> None:
        received = torch.empty(len(target), 8)
        distributed.recv(received, 0)
        received.requires_grad_()
        amp.scale(nn.functional.cross_entropy(self.model(received), target)).backward()
        distributed.send(received.grad, 0)


def pipelined(level: str, make: str) -> None:
    """Stages train as the whole model does in one process, with an overflow in the second's own
    grads alone."""
    expected = whole(level, make)
    stage = Stage(seeded_net())
    _, optimizer = together(level, make, stage.model)
    for step in range(STEPS):
        optimizer.zero_grad()
        overflows = step == OVERFLOW and stage.is_last
        with overflow_at(stage.model[0].bias) if overflows else contextlib.nullcontext():
            stage.run(step)
        amp.finish(optimizer)
        optimizer.step()
        assert gloo.are_same([torch.tensor(scale_of())]), f"the scales part in step {step}"
    assert scale_of() == 512
    found = master_values(optimizer)
    mine = expected[2:] if stage.is_last else expected[:2]
    assert all(map(torch.equal, found, mine)), "another training than due"


def whole(level: str, make: str) -> list[torch.Tensor]:
    model, optimizer = started(level, make)
    for step in range(STEPS):
        optimizer.zero_grad()
        with overflow_at(model[2].bias) if step == OVERFLOW else contextlib.nullcontext():
            for micro in range(2):
                backward(model, optimizer, 10 * step + micro, delay_unscale=micro == 0)
        optimizer.step()
    return master_values(optimizer)


def finished_twice() -> None:
    """Raises on every rank and changes nothing, as unscaled grads must not be unscaled again."""
    model, optimizer = together("O2")
    amp.scale(loss_of(model)).backward()
    amp.finish(optimizer)
    amp.scale(loss_of(model)).backward()
    both = [param.grad.clone() for param in model.parameters()]
    with pytest.raises(RuntimeError, match="finish: expected grads of backwards since the last"):
        amp.finish(optimizer)
    assert all(map(torch.equal, (param.grad for param in model.parameters()), both))
    optimizer.zero_grad()
    amp.scale(loss_of(model)).backward()
    amp.finish(optimizer)
    optimizer.step()


def delayed_on_one_rank() -> None:
    """The others reduce as often, though they have no grad of that loss."""
    model, optimizer = together("O2", num_losses=2)
    if distributed.get_rank() == 0:
        loss = model[2].weight.float().sum()
    else:
        loss = torch.ones(1, requires_grad=True).sum()
    amp.scale_loss(loss, optimizer, loss_id=0, delay_unscale=True).backward()
    amp.scale_loss(model[2].bias.float().sum(), optimizer, loss_id=1).backward()
    optimizer.step()
    assert gloo.are_same([master_values(optimizer)[-1]])


def cases_of_two() -> Iterator[tuple[str, Callable[[], None]]]:
    yield from trainings()
    for level in ("O0", "O2"):
        yield f"counted-{level}", functools.partial(counted, level)
    for make, unscales in itertools.product(MAKERS, (False, True)):
        name = f"scaler-{make}{'-unscale_' if unscales else ''}"
        yield name, functools.partial(scaler_training, make, unscales)
    for level, make in itertools.product(("O0", "O1", "O2", "O5"), ("adamw", "fused_adamw")):
        yield f"pipelined-{level}-{make}", functools.partial(pipelined, level, make)
    for case in (
        of_two_losses,
        skipped_elsewhere,
        skipped_too_often,
        finished_twice,
        delayed_on_one_rank,
        with_ignored_params,
        other_scales,
        scaler_without_grads,
        scalers_of_other_scales,
        wrong_groups,
    ):
        yield case.__name__, case


CASES = dict(cases_of_two())
OF_FOUR = {"in_groups_of_a_mesh": in_groups_of_a_mesh, "O2-fused_adamw": CASES["O2-fused_adamw"]}


test_two_ranks = gloo.tests_on(2, CASES)
test_four_ranks = pytest.mark.soak(gloo.tests_on(4, OF_FOUR))


def test_a_process_group_needs_init_process_group():
    with pytest.raises(RuntimeError, match="expected torch.distributed to be initialized"):
        torchamp.GradScaler("cpu", process_group=distributed.ProcessGroup(0, 1))
