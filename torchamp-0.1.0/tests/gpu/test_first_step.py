"""A process's first step: in a thread that has not used the card, into a graph, without waiting, on
a device that is not current; and its duration if kernels must be compiled."""

from __future__ import annotations

import pathlib

import fresh_process
import pytest
from on_card import needs_card, needs_two_cards
from own_kernels import chooses_its_kernels

pytestmark = [needs_card, chooses_its_kernels]

PROGRAM = """
import threading
import torch
from on_card import CARD, CPU, assert_same_bits, captured
from optimizer_run import OptimizerRun

def run_on(device):
    run = OptimizerRun(device, count=10)
    run.renew_grads(0)
    return run

expected = run_on(CPU)
expected.optimizer.step()
run = run_on(torch.device({device!r}))
step = run.optimizer.step
torch.cuda.synchronize()
{first_step}
torch.cuda.synchronize(run.params[0].device)
assert_same_bits(run.written(), expected.written())
"""

IN_A_THREAD = """
thread = threading.Thread(target=step)
thread.start()
thread.join()
"""

IN_A_CAPTURE = """
captured(step).replay()
"""

WITHOUT_WAITING = """
torch.cuda.set_sync_debug_mode("error")
step()
torch.cuda.set_sync_debug_mode("default")
"""

ON_A_SIDE_STREAM = """
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    step()
"""

FIRST_STEPS = {
    "thread": IN_A_THREAD,
    "capture": IN_A_CAPTURE,
    "without waiting": WITHOUT_WAITING,
    "side stream": ON_A_SIDE_STREAM,
}


@pytest.mark.parametrize("kernels", ["auto", "nvrtc"])
@pytest.mark.parametrize("first_step", FIRST_STEPS)
def test_it_is_right(first_step, kernels, tmp_path):
    program = PROGRAM.format(device="cuda:0", first_step=FIRST_STEPS[first_step])
    fresh_process.run(program, TORCHAMP_KERNELS=kernels, TORCHAMP_CACHE=str(tmp_path / "kernels"))


@needs_two_cards
@pytest.mark.parametrize("first_step", ["thread", "without waiting"])
def test_on_another_device_than_the_current_one(first_step):
    fresh_process.run(PROGRAM.format(device="cuda:1", first_step=FIRST_STEPS[first_step]))


TIMED = """
import time
import torch
from amp_run import AmpRun
from on_card import CARD

run = AmpRun(CARD, [1000] * 10)
grads = [torch.ones_like(param) for param in run.model.parameters()]
run.model().backward()  # torch's own start
run.optimizer.zero_grad()
torch.cuda.synchronize()
begin = time.perf_counter()
run.step(grads)
torch.cuda.synchronize()
print(time.perf_counter() - begin)
"""


def seconds_of_a_first_step(cache: pathlib.Path) -> float:
    environment = {"TORCHAMP_KERNELS": "nvrtc", "TORCHAMP_CACHE": str(cache)}
    return float(fresh_process.run(TIMED, **environment).splitlines()[-1])


def test_compiling_takes_seconds_once(tmp_path, capsys):
    cold, warm = (seconds_of_a_first_step(tmp_path / "kernels") for _ in range(2))
    with capsys.disabled():
        print(f"\nfirst step of Adam at O2 on NVRTC: {cold:.2f} s cold, {warm:.3f} s warm")
    assert cold <= 5.0
    assert warm <= 0.5
