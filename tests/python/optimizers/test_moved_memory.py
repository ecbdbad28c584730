"""Fused optimizers remember where tensors lie: what a program moves by `.data` is stepped there."""

from __future__ import annotations

import weakref

import numpy
import torch
from torch import nn

from torchamp import optimizers


def step_with_ones(optimizer, param) -> None:
    param.grad = torch.ones_like(param)
    optimizer.step()


def test_a_state_may_move_within_its_memory():
    param = nn.Parameter(torch.zeros(4))
    optimizer = optimizers.FusedSGD([param], lr=1.0, momentum=0.5)
    step_with_ones(optimizer, param)
    buffer, memory = optimizer.state[param]["momentum_buffer"], torch.zeros(8)
    buffer.data = memory[:4]
    step_with_ones(optimizer, param)
    buffer.data = memory[4:]
    step_with_ones(optimizer, param)
    assert memory.tolist() == [1.0] * 8


def test_a_parameter_may_turn_within_its_memory():
    param, expected = (nn.Parameter(torch.arange(9.0).view(3, 3)) for _ in range(2))
    ours, theirs = optimizers.FusedSGD([param], lr=1.0), torch.optim.SGD([expected], lr=1.0)
    for _ in range(2):
        for optimizer, stepped in ((ours, param), (theirs, expected)):
            stepped.grad = torch.arange(9.0).view(3, 3).sqrt()
            optimizer.step()
            stepped.data = stepped.data.t()
    assert torch.equal(param, expected)


def test_a_parameter_may_shrink_within_its_memory():
    param = nn.Parameter(torch.zeros(6))
    memory = param.data
    optimizer = optimizers.FusedSGD([param], lr=1.0)
    step_with_ones(optimizer, param)
    param.data = memory[:4]
    param.grad = None
    step_with_ones(optimizer, param)
    assert memory.tolist() == [-2.0] * 4 + [-1.0] * 2


def test_a_step_keeps_no_memory_that_the_program_replaces():
    param, memory = nn.Parameter(torch.zeros(4)), numpy.zeros(4, numpy.float32)
    optimizer = optimizers.FusedSGD([param], lr=1.0)
    param.data = torch.from_numpy(memory)
    step_with_ones(optimizer, param)
    is_kept = weakref.ref(memory)
    param.data = torch.zeros(4)
    del memory
    assert is_kept() is None
