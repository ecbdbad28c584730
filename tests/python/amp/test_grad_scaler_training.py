"""Training loops with torchamp.GradScaler, against the same loops in float32 without a scale that
omit the overflowed steps."""

from __future__ import annotations

import math

import pytest
import torch
from nets import linear_net
from torch import nn

import torchamp
from torchamp import GradScaler, optimizers

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.25),
    "momentum": lambda p: torch.optim.SGD(p, 0.25, 0.5, foreach=False),
    "torch_fused": lambda p: torch.optim.SGD(p, 0.25, 0.5, fused=True),
    "torch_adam": lambda p: torch.optim.Adam(p, 0.02, fused=True),
    "ours": lambda p: optimizers.FusedSGD(p, 0.25, 0.5),
    "adamw": lambda p: optimizers.FusedAdamW(p, 0.01),
}
STEPS, OVERFLOWED = 5, 2


class Plain:
    """A scaler's methods for loops without scaling."""

    def scale(self, outputs):
        return outputs

    def unscale_(self, optimizer) -> None:
        pass

    def step(self, optimizer) -> None:
        optimizer.step()

    def update(self) -> None:
        pass

    def get_scale(self) -> float:
        return 1.0


def batches(device) -> list:
    generator = torch.Generator().manual_seed(3)
    pairs = [torch.randn(2, 8, 4, generator=generator).to(device) for _ in range(STEPS)]
    return [(x, target[:, :3]) for x, target in pairs]


def make_net(device, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return linear_net().to(device)


def mse(net, batch) -> torch.Tensor:
    return nn.functional.mse_loss(net(batch[0]), batch[1])


def clipping_what_is_scaled(scaler, net, optimizer, batch, overflow):
    scaler.scale(mse(net, batch)).backward()
    nn.utils.clip_grad_value_(net.parameters(), 0.0625 * scaler.get_scale())
    overflow(net)
    scaler.step(optimizer)


def penalty(scaler, net, optimizer, batch, overflow):
    loss = mse(net, batch)
    scaled = torch.autograd.grad(scaler.scale(loss), net.parameters(), create_graph=True)
    grads = [grad / scaler.get_scale() for grad in scaled]
    norm = sum(grad.pow(2).sum() for grad in grads).sqrt()
    scaler.scale(loss + norm).backward()
    overflow(net)
    scaler.step(optimizer)


def run(loop, scaler, make, device, overflows: bool) -> tuple:
    """`loop` with an overflow in one step or, if not `overflows`, without that step."""
    net = make_net(device)
    optimizer = make(net.parameters())
    for i, batch in enumerate(batches(device)):
        if i == OVERFLOWED and not overflows:
            continue

        def overflow(net, now=i == OVERFLOWED):
            if now:
                net[2].weight.grad[1, 1] = math.inf

        optimizer.zero_grad()
        loop(scaler, net, optimizer, batch, overflow)
        scaler.update()
    return net, optimizer


def assert_same_training(got: list, expected: list) -> None:
    for a, b in zip(got, expected):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-6, atol=1e-7)


#: Beside what test_fuzz.py draws.
LOOPS = [clipping_what_is_scaled, penalty]


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_loops(loop, make, device):
    scaler = GradScaler(device.type, init_scale=128.0, growth_interval=2)
    net, optimizer = run(loop, scaler, OPTIMIZERS[make], device, overflows=True)
    expected, _ = run(loop, Plain(), OPTIMIZERS[make], device, overflows=False)
    assert_same_training(net.parameters(), expected.parameters())
    assert scaler.get_scale() == 256.0
    assert scaler.overflowed_params(optimizer) == []


@pytest.mark.parametrize("make", ["momentum", "torch_adam", "ours"])
@pytest.mark.parametrize("half", [False, True])
def test_training_in_float16_learns(make, half, device):
    """Under autocast, and with a float16 model, which torch's GradScaler rejects."""
    net = make_net(device)
    net = net.half() if half else net
    optimizer = OPTIMIZERS[make](net.parameters())
    scaler = GradScaler(device.type, init_scale=2.0**24)
    x, target = batches(device)[0]
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        with torchamp.autocast(device.type, dtype=torch.float16):
            output = net(x)
            loss = nn.functional.mse_loss(output, target)
        assert output.dtype == torch.float16
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0] and scaler.get_scale() < 2.0**24


def test_autocast_is_a_decorator_and_restores():
    @torchamp.autocast("cpu", dtype=torch.bfloat16)
    def multiply(x):
        return x @ x

    x = torch.ones(2, 2)
    assert multiply(x).dtype == torch.bfloat16
    with pytest.raises(KeyError), torchamp.autocast("cpu", dtype=torch.float16):
        raise KeyError
    assert (x @ x).dtype == torch.float32


def settings_of(context: torch.autocast) -> tuple:
    return context.device, context.fast_dtype, context._enabled, context._cache_enabled


@pytest.mark.filterwarnings("ignore")  # torch's, that there is no CUDA
@pytest.mark.parametrize(
    "torchs, args, kwargs",
    [
        (torch.cuda.amp.autocast, (), {}),
        (torch.cuda.amp.autocast, (False,), {}),
        (torch.cuda.amp.autocast, (True, torch.bfloat16), {}),
        (torch.cuda.amp.autocast, (True, torch.bfloat16, False), {}),
        (torch.cuda.amp.autocast, (), {"enabled": False}),
        (torch.cuda.amp.autocast, (), {"dtype": torch.bfloat16, "cache_enabled": False}),
        (torch.autocast, ("cpu",), {}),
        (torch.autocast, ("cpu", torch.float16), {}),
        (torch.autocast, ("cpu", torch.bfloat16, False), {}),
        (torch.autocast, (), {"device_type": "cpu", "cache_enabled": False}),
    ],
)
def test_autocast_takes_what_torchs_take(torchs, args, kwargs):
    context = torchamp.autocast(*args, **kwargs)
    assert type(context) is torch.autocast
    assert settings_of(context) == settings_of(torchs(*args, **kwargs))


def test_autocast_is_captured_in_one_graph():
    def multiply(x):
        with torchamp.autocast("cpu", dtype=torch.bfloat16):
            return x @ x

    compiled = torch.compile(multiply, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2, 2)).dtype == torch.bfloat16
