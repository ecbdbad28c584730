"""Programs of several threads."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from nets import adam, in_thread, linear_net, loss_of

import torchamp
from torchamp import amp, optimizers


def is_casting() -> bool:
    product = torch.ones(2, 2) @ torch.ones(2, 2)
    return product.dtype != torch.float32


@pytest.mark.parametrize("ends", ["closes", "drops"])
@pytest.mark.parametrize("in_main_thread", [True, False])
def test_o1_ends_in_its_thread_when_another_closes_or_drops_it(ends, in_main_thread):
    held, casts = [], []

    def make() -> None:
        model = linear_net()
        held.append(torchamp.Amp(model, adam(model), "O1", verbosity=0))

    def end() -> None:
        if ends == "closes":
            held[0].close()
        held.clear()
        gc.collect()

    def work() -> None:
        make()
        casts.append(is_casting())
        in_thread(end)
        casts.append(is_casting())

    work() if in_main_thread else in_thread(work)
    assert casts == [True, False]


def test_an_ended_thread_s_o1_may_be_closed():
    made = []

    def work() -> None:
        model = linear_net()
        made.append(torchamp.Amp(model, adam(model), "O1", verbosity=0))

    in_thread(work)
    made[0].close()
    assert not is_casting()


def test_o1_that_is_open_elsewhere_stays_open():
    models = [linear_net(), linear_net()]
    first, second = (torchamp.Amp(model, adam(model), "O1", verbosity=0) for model in models)
    in_thread(first.close)
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
    with ThreadPoolExecutor(2) as executor:
        results = list(executor.map(train, levels, [make] * 2, range(2)))
    for i in range(2):
        assert all(map(torch.equal, results[i], expected[i]))
