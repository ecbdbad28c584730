"""Programs of several threads."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest
import torch
from nets import adam, linear_net, loss_of

import torchamp
from torchamp import amp, optimizers


def in_thread(action: Callable[[], None]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def is_casting() -> bool:
    product = torch.ones(2, 2) @ torch.ones(2, 2)
    return product.dtype != torch.float32


def wait_for_the_main_thread() -> None:
    """Pending calls run between two of its instructions."""
    for _ in range(100):
        if not is_casting():
            return
        time.sleep(0.001)


def test_o1_ends_in_the_main_thread_when_another_closes_it():
    model = linear_net()
    opened = torchamp.Amp(model, adam(model), "O1", verbosity=0)
    assert is_casting()
    in_thread(opened.close)
    wait_for_the_main_thread()
    assert not is_casting()


def test_o1_ends_in_the_main_thread_when_another_drops_it():
    held = []
    model = linear_net()
    held.append(torchamp.Amp(model, adam(model), "O1", verbosity=0))
    del model
    assert is_casting()

    def drop() -> None:
        held.clear()
        gc.collect()

    in_thread(drop)
    wait_for_the_main_thread()
    assert not is_casting()


def test_closing_what_a_live_thread_opened_warns_that_it_goes_on():
    opened, closed = threading.Event(), threading.Event()
    made, casts = [], []

    def work() -> None:
        model = linear_net()
        made.append(torchamp.Amp(model, adam(model), "O1", verbosity=0))
        opened.set()
        closed.wait()
        casts.append(is_casting())
        with amp.disable_casts():
            pass
        casts.append(is_casting())

    thread = threading.Thread(target=work, name="the worker")
    thread.start()
    opened.wait()
    with pytest.warns(UserWarning, match="close: the casts go on in the worker"):
        made[0].close()
    closed.set()
    thread.join()
    assert casts == [True, False]


def test_closing_what_an_ended_thread_opened_does_not_warn(recwarn):
    made = []

    def work() -> None:
        model = linear_net()
        made.append(torchamp.Amp(model, adam(model), "O1", verbosity=0))

    in_thread(work)
    made[0].close()
    assert not recwarn.list


def test_o1_that_is_open_elsewhere_stays_open():
    models = [linear_net(), linear_net()]
    first, second = (torchamp.Amp(model, adam(model), "O1", verbosity=0) for model in models)
    in_thread(first.close)
    time.sleep(0.01)
    assert is_casting()
    second.close()


def train(level: str, make: Callable, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    model = linear_net()
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator))
    optimizer = make(model.parameters(), lr=0.01)
    session = torchamp.Amp(model, optimizer, level, verbosity=0)
    for step in range(20):
        optimizer.zero_grad()
        with session.scale_loss(loss_of(model, step)) as scaled_loss:
            scaled_loss.backward()
        amp.clip_grad_norm_(optimizer, 1.0)
        optimizer.step()
    session.close()
    return [param.detach().clone() for param in model.parameters()]


@pytest.mark.parametrize(
    "levels", [("O1", "O1"), ("O1", "O4"), ("O1", "O2"), ("O2", "O5")], ids=str
)
@pytest.mark.parametrize("make", [torch.optim.SGD, optimizers.FusedAdam])
def test_two_threads_train_two_nets(levels, make):
    expected = [train(level, make, seed) for seed, level in enumerate(levels)]
    results: dict[int, list[torch.Tensor]] = {}
    threads = [
        threading.Thread(target=lambda i=i: results.update({i: train(levels[i], make, i)}))
        for i in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(2):
        assert all(map(torch.equal, results[i], expected[i]))
