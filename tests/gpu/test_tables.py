"""Tables kept on the card between steps: moved tensors are detected, pending work is safe."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from on_card import CARD, CPU, assert_same_bits, captured, needs_card
from optimizer_run import OptimizerRun
from own_kernels import needs_own_kernels

from torchamp import optimizers

pytestmark = [needs_card, needs_own_kernels]

STEPS = 20
#: Keeps the card busy while the host queues many steps.
LONG = 500_000_000


def expected_of(seed: int, steps: int = STEPS) -> list[torch.Tensor]:
    return OptimizerRun(CPU, seed=seed).steps(steps).written()


def parameters_move(run, step):
    run.step(step)
    for param in run.params[step :: STEPS // 2]:
        param.data = param.data.clone()


def states_move(run, step):
    run.step(step)
    if step % 3 == 0:
        run.optimizer.load_state_dict(run.optimizer.state_dict())


def grads_come_and_go(run, step):
    run.renew_grads(step)
    for param in run.params[step :: 1 + step % 4]:
        param.grad = None
    run.optimizer.step()


@pytest.mark.parametrize("iterate", [parameters_move, states_move, grads_come_and_go])
def test_tensors_that_change_between_steps(iterate):
    runs = OptimizerRun(CARD), OptimizerRun(CPU)
    for run in runs:
        for step in range(STEPS):
            iterate(run, step)
    assert_same_bits(*(run.written() for run in runs))


def test_grads_at_new_addresses_while_the_host_runs_ahead():
    run = OptimizerRun(CARD)
    run.step(0)
    grads = []
    for step in range(1, 100):
        run.renew_grads(step)
        grads.append([param.grad for param in run.params])
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    for each in grads:
        for param, grad in zip(run.params, each):
            param.grad = grad
        run.optimizer.step()
    assert_same_bits(run.written(), expected_of(0, 100))


def test_two_optimizers_take_turns():
    runs = [OptimizerRun(CARD, seed=seed) for seed in (1, 2)]
    for step in range(STEPS):
        for run in runs:
            run.step(step)
    for seed, run in zip((1, 2), runs):
        assert_same_bits(run.written(), expected_of(seed))


MAKERS = [
    lambda params: optimizers.FusedSGD(params, 0.1),
    lambda params: optimizers.FusedSGD(params, 0.1, 0.9),
    lambda params: optimizers.FusedAdam(params),
]


def test_optimizers_of_every_kind_take_turns_on_several_streams():
    """More tables than the cache keeps."""

    def turns(device, streams):
        runs = [OptimizerRun(device, make, seed=seed) for seed, make in enumerate(MAKERS)]
        torch.cuda.synchronize()
        for step in range(STEPS):
            for number, run in enumerate(runs):
                stream = streams[(step + number) % len(streams)]
                stream.wait_stream(streams[(step + number - 1) % len(streams)])
                with torch.cuda.stream(stream):
                    run.step(step)
        torch.cuda.synchronize()
        return [tensor for run in runs for tensor in run.written()]

    expected = [OptimizerRun(CPU, make, seed=seed) for seed, make in enumerate(MAKERS)]
    expected = [tensor for run in expected for tensor in run.steps(STEPS).written()]
    streams = [torch.cuda.Stream() for _ in range(4)]
    assert_same_bits(turns(CARD, streams), expected)


@pytest.mark.parametrize("count", [2, 12])
def test_each_optimizer_on_its_own_stream(count):
    runs = [OptimizerRun(CARD, seed=seed) for seed in range(count)]
    streams = [torch.cuda.Stream() for _ in runs]
    torch.cuda.synchronize()
    for step in range(STEPS):
        for run, stream in zip(runs, streams):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(1_000_000)
                run.step(step)
    torch.cuda.synchronize()
    for seed, run in enumerate(runs):
        assert_same_bits(run.written(), expected_of(seed))


def test_each_optimizer_in_its_own_thread():
    begin = threading.Barrier(4)

    def stepped(seed):
        run = OptimizerRun(CARD, seed=seed)
        torch.cuda.synchronize()
        begin.wait(60)
        with torch.cuda.stream(torch.cuda.Stream()):
            run.steps(STEPS)
            torch.cuda.current_stream().synchronize()
        return run.written()

    with ThreadPoolExecutor(4) as threads:
        for seed, written in enumerate(threads.map(stepped, range(4))):
            assert_same_bits(written, expected_of(seed))


def test_graphs_stay_right_beside_other_steps():
    """Other steps of the same optimizer and of another, with grads moved since the capture."""
    run, other = OptimizerRun(CARD, seed=1), OptimizerRun(CARD, seed=2)
    run.step(0)
    captured_grads = [param.grad for param in run.params]
    graph = captured(run.optimizer.step)
    for step in range(1, STEPS):
        other.step(step - 1)
        if step % 3 == 0:
            run.step(step)
            continue
        for param, grad in zip(run.params, captured_grads):
            param.grad = grad
        run.refill_grads(step)
        graph.replay()
    assert_same_bits(run.written(), expected_of(1))
    assert_same_bits(other.written(), expected_of(2, STEPS - 1))


def test_states_that_a_replay_uses_are_not_given_away():
    param = torch.ones(2**20, device=CARD, requires_grad=True)
    param.grad = torch.ones_like(param)
    optimizer = optimizers.FusedAdam([param])
    graph = captured(optimizer.step)
    states = optimizer.state[param]
    used = {states[name].data_ptr() for name in ("exp_avg", "exp_avg_sq")}
    torch.cuda._sleep(LONG)
    graph.replay()
    del optimizer, states
    gc.collect()
    given = []
    for _ in range(64):  # more than there are streams in torch's pool
        with torch.cuda.stream(torch.cuda.Stream()):
            given.append(torch.empty_like(param))
    assert used.isdisjoint(each.data_ptr() for each in given)
    torch.cuda.synchronize()


def test_a_first_step_of_many_can_be_captured():
    run = OptimizerRun(CARD)
    run.renew_grads(0)
    graph = captured(run.optimizer.step)
    for step in range(STEPS):
        run.refill_grads(step)
        graph.replay()
    assert_same_bits(run.written(), expected_of(0))
