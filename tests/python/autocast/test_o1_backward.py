"""O1 and O4: a backward computes in the dtypes of its forward, as under torch.amp."""

import contextlib
import functools

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from torchamp import amp

DTYPES = {"O1": torch.float16, "O4": torch.bfloat16}


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return (grad @ weight).to(x.dtype), (grad.t() @ x).to(weight.dtype)


def as_forward(function, device):
    """The function, cast by torch.amp in its backward as in its forward."""
    return type(
        "AsForward",
        (function,),
        {
            "forward": staticmethod(torch.amp.custom_fwd(function.forward, device_type=device)),
            "backward": staticmethod(torch.amp.custom_bwd(function.backward, device_type=device)),
        },
    )


class Net(nn.Module):
    """Three layers, of which the second is an island: `casts_nothing` and then float32."""

    def __init__(self, function, casts_nothing, checkpointed):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(3))
        self.function, self.casts_nothing = function, casts_nothing
        self.checkpointed = checkpointed

    def block(self, x):
        first, island, last = self.layers
        x = self.layer(first, x)
        with self.casts_nothing():
            x = self.layer(island, x.float()) if self.casts_nothing is not same else island(x)
        return self.layer(last, x)

    def layer(self, layer, x):
        return layer(x) if self.function is None else self.function.apply(x, layer.weight)

    def forward(self, x):
        return self.checkpointed(self.block, x)


same = contextlib.nullcontext
ISLANDS = ["none", "autocast off", "disable_casts", "keep_fp32"]
CHECKPOINTS = {
    "no checkpoint": lambda block, x: block(x),
    "reentrant": functools.partial(checkpoint, use_reentrant=True),
    "not reentrant": functools.partial(checkpoint, use_reentrant=False),
}


def backward(loss, inputs):
    loss.backward()


def scaled_backward(loss, inputs, optimizer):
    amp.scale_loss(loss, optimizer).backward()


def grad(loss, inputs):
    torch.autograd.grad(loss, inputs)


def penalty(loss, inputs):
    grads = torch.autograd.grad(loss, inputs, create_graph=True)
    sum(each.float().pow(2).sum() for each in grads).backward()


ENGINES = {"backward": backward, "grad": grad, "penalty": penalty, "scale_loss": scaled_backward}
#: torch supports only backward() of reentrant checkpoints.
RUNS = [
    (checkpointed, engine)
    for checkpointed in CHECKPOINTS
    for engine in ENGINES
    if checkpointed != "reentrant" or engine in ("backward", "scale_loss")
]


class MatmulDtypes(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.default:
            self.seen.append(args[0].dtype)
        return func(*args, **(kwargs or {}))


def loss_and_inputs(net, device):
    torch.manual_seed(0)
    x = torch.randn(2, 4, device=device, requires_grad=True)
    return net(x).float().sum(), [x, *net.parameters()]


def of_torch_amp(level, function, island, checkpointed, engine, device):
    own = function and as_forward(function, device)
    without_autocast = functools.partial(torch.autocast, device, enabled=False)
    casts_nothing = same if island == "none" else without_autocast
    net = Net(own, casts_nothing, CHECKPOINTS[checkpointed]).to(device)
    with torch.autocast(device, DTYPES[level]):
        loss, inputs = loss_and_inputs(net, device)
    with MatmulDtypes() as dtypes:
        (backward if engine == "scale_loss" else ENGINES[engine])(loss, inputs)
    return dtypes.seen


def of_torchamp(level, function, island, checkpointed, engine, device):
    casts_nothing = {
        "autocast off": functools.partial(torch.autocast, device, enabled=False),
        "disable_casts": amp.disable_casts,
    }.get(island, same)
    net = Net(function, casts_nothing, CHECKPOINTS[checkpointed]).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    kept = ["layers.1"] if island == "keep_fp32" else []
    net, optimizer = amp.initialize(net, optimizer, opt_level=level, verbosity=0, keep_fp32=kept)
    loss, inputs = loss_and_inputs(net, device)
    with MatmulDtypes() as dtypes:
        if engine == "scale_loss":
            scaled_backward(loss, inputs, optimizer)
        else:
            ENGINES[engine](loss, inputs)
    return dtypes.seen


@pytest.mark.parametrize(("checkpointed", "engine"), RUNS)
@pytest.mark.parametrize("island", ISLANDS)
@pytest.mark.parametrize("function", [None, Linear])
@pytest.mark.parametrize("level", DTYPES)
def test_matmuls_run_as_under_torch_amp(level, function, island, checkpointed, engine, device):
    arguments = (level, function, island, checkpointed, engine, torch.device(device).type)
    seen = of_torchamp(*arguments)
    assert seen == of_torch_amp(*arguments)
    expected = {DTYPES[level]} if island == "none" else {DTYPES[level], torch.float32}
    assert set(seen) == expected, "the case does not tell the two apart"
