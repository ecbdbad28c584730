"""Learning rates that change around a capture: floats are captured as constants, each replay reads
tensors, and steps outside of the graph use the current value."""

from __future__ import annotations

import pytest
import torch
from on_card import CARD, CPU, assert_same_bits, captured, needs_card
from optimizer_run import MANY, OptimizerRun
from own_kernels import needs_own_kernels

from torchamp import optimizers

pytestmark = [needs_card, needs_own_kernels]

counts = pytest.mark.parametrize("count", [40, MANY])


def set_lr(run: OptimizerRun, lr: float) -> None:
    run.optimizer.param_groups[0]["lr"] = lr


def expected_of(count: int, lrs: list[float]) -> list[torch.Tensor]:
    """Steps with the same grads at the given rates."""
    run = OptimizerRun(CPU, count=count)
    run.renew_grads(0)
    for lr in lrs:
        set_lr(run, lr)
        run.optimizer.step()
    return run.written()


@counts
@pytest.mark.parametrize("rates", [[0.01], [0.3, 0.003, 0.03]])
def test_floats_are_captured_as_they_are(count, rates):
    """Also several within one capture."""
    run = OptimizerRun(CARD, count=count)
    run.renew_grads(0)
    set_lr(run, 0.1)
    run.optimizer.step()

    def some_steps():
        for lr in rates:
            set_lr(run, lr)
            run.optimizer.step()

    graph = captured(some_steps)
    graph.replay()
    set_lr(run, 0.5)
    graph.replay()
    run.optimizer.step()
    graph.replay()
    assert_same_bits(run.written(), expected_of(count, [0.1, *rates * 2, 0.5, *rates]))


def test_captured_floats_survive_what_comes_after():
    """The graph owns their memory: a thousand steps at other rates do not overwrite it."""
    run, other = OptimizerRun(CARD, count=40), OptimizerRun(CARD, count=40, seed=1)
    run.renew_grads(0)
    set_lr(run, 0.02)
    graph = captured(run.optimizer.step)
    for step in range(1000):
        set_lr(other, 1 / (1 + step))
        other.step(step)
        torch.empty(12, dtype=torch.float64, pin_memory=True).fill_(9.0)
    graph.replay()
    assert_same_bits(run.written(), expected_of(40, [0.02]))


@counts
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tensor_is_read_by_each_replay(count, dtype):
    run = OptimizerRun(CARD, count=count)
    run.renew_grads(0)
    lr = torch.tensor(0.5, dtype=dtype, device=CARD)
    set_lr(run, lr)
    graph = captured(run.optimizer.step)
    rates = [0.25, 0.125, 0.0625, 0.5]
    for rate in rates:
        lr.fill_(rate)
        graph.replay()
    lr.fill_(0.375)
    run.optimizer.step()
    set_lr(run, 0.75)
    run.optimizer.step()
    graph.replay()
    assert_same_bits(run.written(), expected_of(count, [*rates, 0.375, 0.75, 0.375]))


def test_a_tensor_on_the_cpu_is_taken_as_a_float_is():
    run = OptimizerRun(CARD, count=40)
    run.renew_grads(0)
    lr = torch.tensor(0.25)
    set_lr(run, lr)
    graph = captured(run.optimizer.step)
    graph.replay()
    lr.fill_(0.5)
    graph.replay()
    run.optimizer.step()
    set_lr(run, 0.0)
    run.optimizer.step()
    assert_same_bits(run.written(), expected_of(40, [0.25, 0.25, 0.5, 0.0]))


def test_hundreds_of_groups_each_with_its_own():
    def of_groups(params):
        groups = [{"params": [param], "lr": 0.01 / (1 + i)} for i, param in enumerate(params)]
        return optimizers.FusedAdamW(groups)

    def stepped(device):
        run = OptimizerRun(device, of_groups, count=400)
        for step in range(10):
            for group in run.optimizer.param_groups[step::7]:
                group["lr"] *= 0.75
            run.step(step)
        return run.written()

    assert_same_bits(stepped(CARD), stepped(CPU))
