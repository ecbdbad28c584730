"""A skip flag that another stream writes while steps run: the result of those steps is undefined,
but later steps are counted correctly."""

from __future__ import annotations

import copy

import torch
from on_card import CARD, assert_same_bits, needs_card
from own_kernels import needs_own_kernels
from torch import nn

from torchamp import optimizers

pytestmark = [needs_card, needs_own_kernels]

#: Large enough that a step takes much longer than a change of the flag.
COUNT, ELEMENTS = 32, 1 << 19


def run_beside(step, flag: torch.Tensor) -> None:
    """Steps on one stream, while another sets and clears the flag."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(200):
        with torch.cuda.stream(streams[0]):
            step()
        with torch.cuda.stream(streams[1]):
            for value in (1, 0, 1, 0, 1, 0, 1):
                flag.fill_(value)
    torch.cuda.synchronize()


def counts_of(optimizer: torch.optim.Optimizer) -> set[float]:
    return {state["step"].item() for state in optimizer.state.values()}


def copied_to_the_cpu(optimizer: optimizers.FusedAdam) -> optimizers.FusedAdam:
    params = []
    for param in optimizer.param_groups[0]["params"]:
        params.append(nn.Parameter(param.detach().cpu()))
        params[-1].grad = param.grad.cpu()
    copied = optimizers.FusedAdam(params)
    copied.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return copied


def test_steps_are_counted_on():
    params = [nn.Parameter(torch.ones(ELEMENTS, device=CARD)) for _ in range(COUNT)]
    for param in params:
        param.grad = torch.full_like(param, 0.5)
    optimizer = optimizers.FusedAdam(params)
    optimizer.found_inf = torch.zeros((), device=CARD)
    optimizer.step()
    run_beside(optimizer.step, optimizer.found_inf)
    (count,) = counts_of(optimizer)
    assert 1 <= count <= 201
    optimizer.found_inf.zero_()
    for done in range(1, 4):
        optimizer.step()
        assert counts_of(optimizer) == {count + done}
    reference = copied_to_the_cpu(optimizer)
    for each in (optimizer, reference):
        each.step()
    assert_same_bits(params, reference.param_groups[0]["params"])
    optimizer.found_inf.fill_(1)
    optimizer.step()
    assert_same_bits(params, reference.param_groups[0]["params"])
    assert counts_of(optimizer) == {count + 4}
