"""Where O1 casts outside of the thread that opened it: other threads, and copies."""

import copy
import pickle

import pytest
import torch
from nets import batch, in_thread, initialized, linear_net

from torchamp import Amp, amp

LEVELS = {"O1": torch.float16, "O4": torch.bfloat16}


# Threads.


@pytest.mark.parametrize("level", LEVELS)
def test_forwards_in_other_threads_are_cast(level, device):
    model, _ = initialized(level, linear_net(), device=device)
    x, _ = batch(device=device)

    def work():
        out = model(x)
        return out.dtype, torch.is_autocast_enabled(device.type), (x @ x.t()).dtype

    assert in_thread(work) == (LEVELS[level], False, torch.float32)


@pytest.mark.parametrize("level", LEVELS)
def test_replicas_get_the_dtype_that_data_parallel_does_not_hand_over(level, device):
    model, _ = initialized(level, linear_net(), device=device)
    enabled = torch.is_autocast_enabled(device.type)
    replica = model._replicate_for_data_parallel()
    x, _ = batch(device=device)

    def work():
        with torch.autocast(device.type, enabled=enabled):
            return replica(x).dtype, torch.get_autocast_dtype(device.type)

    out, dtype_before = in_thread(work)
    assert out == LEVELS[level]
    assert dtype_before == in_thread(lambda: torch.get_autocast_dtype(device.type))


def test_a_thread_may_refuse(device):
    model, _ = initialized("O1", linear_net(), device=device)
    x, _ = batch(device=device)

    def refused():
        with torch.autocast(device.type, enabled=False):
            return model(x).dtype

    def without_casts():
        with amp.disable_casts():
            return model(x).dtype

    assert in_thread(refused) == in_thread(without_casts) == torch.float32


def test_a_closed_model_is_not_cast_anywhere():
    model = linear_net()
    with Amp(model, opt_level="O1", verbosity=0):
        pass
    x, _ = batch()
    evaluate = torch.no_grad()(lambda: model(x).dtype)
    assert in_thread(evaluate) == torch.float32


def test_a_thread_with_o4_of_its_own_keeps_it():
    model, _ = initialized("O1", linear_net())
    x, _ = batch()

    def work():
        with Amp(linear_net(), opt_level="O4", verbosity=0):
            return model(x).dtype

    assert in_thread(work) == torch.bfloat16


# Copies.


@pytest.mark.parametrize("make", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_cast_while_the_original_lives(make):
    model, optimizer = initialized("O1", linear_net())
    x, _ = batch()
    twin = make(model)
    assert torch.equal(twin(x), model(x)) and twin(x).dtype == torch.float16
    del model, optimizer
    assert twin(x).dtype == torch.float32, "a copy kept O1 open"
