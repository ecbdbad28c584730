"""Training goes on as ever while a dispatch mode of torch, such as FlopCounterMode, looks on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from nets import LEVELS, Net, loss_of, overflow_at
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from torchamp import amp, optimizers

MAKERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.125, momentum=0.5),
    "fused_sgd": lambda params: optimizers.FusedSGD(params, lr=0.125, momentum=0.5),
    "fused_adamw": lambda params: optimizers.FusedAdamW(params, lr=0.01),
    "fused_lamb": lambda params: optimizers.FusedLAMB(params, lr=0.01),
}


class LookingOn(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def trained(level: str, make: Callable) -> list[torch.Tensor]:
    """The masters after steps of which one overflows; a parameter never has a grad."""
    torch.manual_seed(0)
    model = Net()
    model.unused = torch.nn.Linear(2, 2)
    optimizer = make(model.parameters())
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    for step in range(3):
        optimizer.zero_grad()
        with overflow_at(model.last.bias, float("inf") if step == 1 and level == "O2" else 0.0):
            amp.scale_loss(loss_of(model, step), optimizer).backward()
        amp.clip_grad_norm_(optimizer, 1.0)
        optimizer.step()
    return [master.detach().clone() for master in amp.master_params(optimizer)]


@pytest.mark.parametrize("mode", [LookingOn, lambda: FlopCounterMode(display=False)])
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_mode_changes_nothing(level, name, mode, one_thread):
    expected = trained(level, MAKERS[name])
    with mode():
        looked_at = trained(level, MAKERS[name])
    assert all(map(torch.equal, looked_at, expected))
