"""Long runs hold no more memory, objects, files and threads than short ones."""

from __future__ import annotations

import gc
import os
import resource
import threading

import pytest
import torch
from nets import LEVELS, adam, initialized, linear_net, loss_of

from torchamp import amp, optimizers

#: Multiples of 150 each, as is a tenth, after which what train() does recurs.
FEW, MANY = 300, 90_000
#: Bytes that a run of any length may take more than a short one: allocators keep some.
SLACK = 4 << 20


def fused(model):
    return optimizers.FusedAdam(model.parameters(), 1e-3)


def train(model, optimizer, steps: int) -> None:
    """With an overflow now and then, micro-batches, clipping and a look at the telemetry."""
    for i in range(steps):
        if i % 2 == 0:
            optimizer.zero_grad()
        loss = loss_of(model) * (float("inf") if i % 50 == 7 else 1.0)
        amp.scale_loss(loss, optimizer, delay_unscale=i % 10 == 2).backward()
        if i % 10 == 2:
            continue
        if i % 3 == 0:
            amp.clip_grad_norm_(optimizer, 1.0)
        optimizer.step()
        amp.telemetry(optimizer)


def held() -> dict[str, int]:
    gc.collect()
    objects = gc.get_objects()
    return {
        "tensors": sum(isinstance(each, torch.Tensor) for each in objects),
        "objects": len(objects),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.soak
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads Linux's /proc")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [adam, fused])
@pytest.mark.parametrize("level", LEVELS)
def test_runs_of_any_length(level, make):
    model, optimizer = initialized(level, linear_net(), make)
    train(model, optimizer, FEW)
    before, bytes_before = held(), resident()
    train(model, optimizer, int(os.environ.get("TORCHAMP_STEPS", MANY // 10)))
    after = held()
    assert after["tensors"] == before["tensors"]
    assert after["objects"] <= before["objects"] + 20
    assert (after["files"], after["threads"]) == (before["files"], before["threads"])
    assert resident() <= bytes_before + SLACK
