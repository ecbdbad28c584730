"""amp.trace_overflow: the op, the module and the parameters of an overflow."""

from __future__ import annotations

import pytest
import torch
from nets import Net, Planted, Steep, initialized

from torchamp import amp

HALF_LEVELS = ["O1", "O2", "O3"]


NOTHING = "no iteration was watched: run some inside of `with amp.trace_overflow(model) as trace:`"


def trained(function, opt_level, device, steps=1, **options):
    options = {"loss_scale": "dynamic", **options}
    model, optimizer = initialized(opt_level, Planted(function), device=device, **options)
    x = torch.ones(2, 4, device=device)
    with amp.trace_overflow(model) as trace:
        for _ in range(steps):
            optimizer.zero_grad()
            amp.scale_loss(model(x).float().mean(), optimizer).backward()
            optimizer.step()
    return trace


@pytest.mark.parametrize("opt_level", HALF_LEVELS)
def test_an_overflow_in_the_forward(opt_level, device):
    trace = trained(lambda x: x.half() * 3e4 * 1e3, opt_level, device)
    (origin,) = trace.origins
    assert (origin.module, origin.op, origin.is_backward) == ("middle", "mul", False)
    assert origin.dtype == torch.float16 and not origin.is_nan
    assert 1e2 < origin.magnitude < 65504 and origin.loss_scale == 65536
    assert "after.weight" in origin.params
    assert "mul of 'middle' in the forward makes inf in float16 of inputs up to" in str(trace)


@pytest.mark.parametrize("opt_level", HALF_LEVELS)
def test_an_overflow_in_every_backward(opt_level, device):
    """The origin is the same each time; the scale has a history."""
    trace = trained(lambda x: Steep.apply(x.half()), opt_level, device, steps=4)
    for origin in trace.origins:
        assert (origin.module, origin.op, origin.is_backward) == ("middle", "mul", True)
        assert set(origin.params) == {"before.weight", "before.bias"}
    assert [origin.iteration for origin in trace.origins] == [0, 1, 2, 3]
    assert "loss scale 65536: mul of 'middle' in the backward makes inf" in str(trace)
    assert trace.loss_scales == [65536.0, 32768.0, 16384.0, 8192.0]
    assert str(trace).endswith("loss scales: 65536, 32768, 16384, 8192")


@pytest.mark.parametrize("opt_level", HALF_LEVELS)
def test_masks_are_meant(opt_level, device):
    def masked(x):
        mask = torch.eye(4, dtype=torch.bool, device=x.device)[:2]
        return x.masked_fill(mask, -torch.inf).softmax(-1).to(x.dtype)

    trace = trained(masked, opt_level, device, loss_scale=16.0)
    assert trace.origins == [] and trace.loss_scales == [16.0]
    assert str(trace).startswith("no overflow")


def test_nan_of_finite_numbers(device):
    trace = trained(lambda x: (-x.abs() - 1).log(), "O1", device)
    assert trace.origins[0].op == "log" and trace.origins[0].is_nan


def test_tracing_changes_nothing(device):
    runs = []
    for traces in (False, True):
        torch.manual_seed(2)
        model, optimizer = initialized("O2", Net(), device=device)
        x = torch.randn(8, 4, device=device)
        trace = amp.trace_overflow(model)
        for _ in range(3):
            if traces:
                trace.__enter__()
            optimizer.zero_grad()
            amp.scale_loss(model(x).float().mean(), optimizer).backward()
            optimizer.step()
            if traces:
                trace.__exit__(None, None, None)
        runs.append(list(model.state_dict().values()))
    assert all(torch.equal(a, b) for a, b in zip(*runs))


def test_a_plain_model(device):
    model = Planted(lambda x: x * torch.inf if x.sum() > 1e9 else x * 3e38 * 10).to(device)
    with amp.trace_overflow(model) as trace:
        model(torch.ones(2, 4, device=device)).mean().backward()
    assert trace.origins[0].loss_scale is None and trace.origins[0].module == "middle"


def test_a_trace_that_has_watched_nothing_says_so():
    model = Net()
    trace = amp.trace_overflow(model)
    model(torch.full((2, 4), float("inf"))).sum().backward()
    assert str(trace) == NOTHING
    with amp.trace_overflow(model) as trace:
        pass
    assert repr(trace) == NOTHING
