"""Ranks that agree about overflows by NCCL: one rank, as NCCL takes no two on one card."""

import pytest
import torch
from iteration import Iteration, captured
from torch import distributed

from torchamp import amp, optimizers

pytestmark = pytest.mark.skipif(
    not (
        torch.cuda.is_available() and distributed.is_available() and distributed.is_nccl_available()
    ),
    reason="needs a GPU and NCCL",
)


def fused_adamw(params):
    return optimizers.FusedAdamW(params, 0.01, eps=1e-4)


@pytest.fixture
def group():
    store, device = distributed.HashStore(), torch.device("cuda", 0)
    distributed.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=device)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


def test_agreement_waits_for_nothing(group):
    run = Iteration(fused_adamw, process_group=group)
    run()  # compares the ranks' loss scales
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(50):
            run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] < 2.0**24, "no step overflowed"


def test_agreeing_iterations_are_those_without_a_group(group):
    alone, agreeing = Iteration(fused_adamw), Iteration(fused_adamw, process_group=group)
    for _ in range(30):
        alone()
        agreeing()
    assert torch.equal(alone.weights(), agreeing.weights())


def test_a_captured_iteration_agrees(group):
    run = Iteration(fused_adamw, process_group=group)
    graph = captured(run)
    before = run.weights()
    for _ in range(30):  # the first ones overflow
        graph.replay()
    torch.cuda.synchronize()
    assert not torch.equal(run.weights(), before)
