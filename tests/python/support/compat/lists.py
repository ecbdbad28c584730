"""Lists of tensors for amp_C's steps, and the results of torchamp's optimizers for them."""

import torch
from torch import nn

#: Seeds of the grads of three steps.
GRADS = [1, 2, 3]
SIZES = [(3,), (17, 5), (0,), ()]


def draw(device, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator).to(device, dtype) for size in SIZES]


def zeros(tensors, dtype=torch.float32):
    return [torch.zeros_like(tensor, dtype=dtype) for tensor in tensors]


def stepped_by(make, values, grads):
    """The result of a torchamp optimizer for `values`, with a step for each list of grads."""
    params = [nn.Parameter(value.clone()) for value in values]
    optimizer = make(params)
    for step in grads:
        for param, grad in zip(params, step):
            param.grad = grad.clone()
        optimizer.step()
    return [param.detach() for param in params]
