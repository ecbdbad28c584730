"""The nodes that accumulate grads, which wrappers hook and keep, outlive changes of dtype."""

import pytest
import torch
from nets import LEVELS, initialized, sgd
from torch import nn

from torchamp import amp


def accumulator(param):
    return param.expand_as(param).grad_fn.next_functions[0][0]


def backward(model, optimizer):
    amp.scale_loss(model(torch.ones(2, 4)).float().square().sum(), optimizer).backward()


@pytest.mark.parametrize("level", LEVELS)
def test_hooks_from_before_initialize_and_release_are_called(level):
    """Horovod's order, and that of gradient buckets of one's own."""
    model, called = nn.Linear(4, 3), []
    nodes = [accumulator(param) for param in model.parameters()]
    for node, param in zip(nodes, model.parameters()):
        node.register_hook(lambda *_, param=param: called.append(param.grad.dtype))
    model, optimizer = initialized(level, model, sgd, loss_scale=1.0)
    backward(model, optimizer)
    assert called == [model.weight.dtype] * 2
    optimizer.step()
    amp.release(model)
    model(torch.ones(2, 4)).sum().backward()
    assert called[2:] == [torch.float32] * 2


class Mixed(nn.Module):
    """Its weight gets a float32 grad, which autograd rounds."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x.float() * self.weight


def test_one_made_beside_a_float32_grad_takes_16_bits():
    """As DistributedDataParallel makes them: its buckets have the dtype of the parameters."""
    model, optimizer = initialized("O2", Mixed(), sgd, loss_scale=64.0)
    backward(model, optimizer)
    assert model.weight.grad.dtype == torch.float32, "unscaled"
    seen, node = [], accumulator(model.weight)
    node.register_hook(lambda *_: seen.append(model.weight.grad.dtype))
    optimizer.step()
    optimizer.zero_grad()
    backward(model, optimizer)
    assert seen == [torch.float16]
