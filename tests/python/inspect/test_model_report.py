"""amp.report: dtypes, casts and bytes, module by module."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from nets import LEVELS, MASTER_LEVELS, Net, batch, initialized, train_step
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from torchamp import amp, optimizers

MAKERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1),
    "SGD with momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "AdamW": torch.optim.AdamW,
    "fused Adam with amsgrad": lambda params: torch.optim.Adam(params, amsgrad=True, fused=True),
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": lambda params: torch.optim.RMSprop(params, centered=True, momentum=0.5),
    "FusedSGD": lambda params: optimizers.FusedSGD(params, lr=0.1),
    "FusedAdamW": optimizers.FusedAdamW,
    "small FusedAdamW": lambda params: optimizers.FusedAdamW(params, state_dtype=torch.bfloat16),
    "FusedLAMB": optimizers.FusedLAMB,
}


class Blocks(nn.Module):
    """A network with a shared block, a norm in float32 and casts of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU())
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.block(self.block(x)))
        return self.head(x).double().softmax(-1).float()


class CastCounter(TorchDispatchMode):
    """Counts casts from one floating dtype to another."""

    def __init__(self) -> None:
        super().__init__()
        self.down = self.up = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and args[0].is_floating_point():
            self.down += result.dtype.itemsize < args[0].dtype.itemsize
            self.up += result.dtype.itemsize > args[0].dtype.itemsize
        return result


def row(report: amp.Report, name: str):
    return next(each for each in report.rows if each.name == name)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("net", [Net, Blocks])
def test_casts_are_those_that_torch_dispatches(level, net, device):
    model, optimizer = initialized(level, net(), device=device)
    x, _ = batch(device=device)
    with CastCounter() as counted:
        model(x)
    report = amp.report(model, optimizer, x)
    assert sum(each.casts_down for each in report.rows) == counted.down
    assert sum(each.casts_up for each in report.rows) == counted.up
    assert (counted.down > 0) == (level != "O0" or net is Blocks)


@pytest.mark.parametrize(
    ("level", "linear", "norm"),
    [
        ("O0", torch.float32, torch.float32),
        ("O1", torch.float16, torch.float32),
        ("O2", torch.float16, torch.float16),
        ("O4", torch.bfloat16, torch.float32),
        ("O5", torch.bfloat16, torch.bfloat16),
    ],
)
def test_what_modules_compute_in(level, linear, norm, device):
    model, optimizer = initialized(level, Blocks(), device=device)
    report = amp.report(model, optimizer, batch(device=device)[0])
    assert set(row(report, "block.0").compute_dtypes) == {linear}
    assert set(row(report, "block.1").compute_dtypes) == {norm}
    assert row(report, "block.0").calls == 2 and row(report, "").calls == 1
    assert set(row(report, "norm").weight_dtypes) == {torch.float32, torch.int64}
    assert report.level == level and f"{level} on {device}" in str(report)


@pytest.mark.parametrize("level", MASTER_LEVELS)
@pytest.mark.parametrize("name", MAKERS)
def test_bytes_are_those_that_a_step_leaves(level, name, device):
    model, optimizer = initialized(level, Blocks(), lambda m: MAKERS[name](m.parameters()), device)
    before = amp.report(model, optimizer).bytes
    train_step(model, optimizer)
    after = amp.report(model, optimizer).bytes
    constants = 4 * len(list(model.parameters())) * 4  # step counts and the like
    assert abs(before.state - after.state) <= constants
    del after.state, before.state
    assert vars(after) == vars(before)


def test_a_slice_of_the_data_counts_as_itself(device):
    data = torch.randn(1000, 4, device=device)
    of_slice, alone = (
        amp.report(nn.Linear(4, 4).to(device), None, x) for x in (data[:3], data[:3].clone())
    )
    assert of_slice.bytes == alone.bytes and alone.bytes.activations == 3 * 4 * 4


def test_bytes_of_each_kind(device):
    count = sum(param.numel() for param in Net().parameters())
    kept = sum(param.numel() for param in Net().norm.parameters())
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in Net().buffers())
    cast = count - kept
    model, optimizer = initialized("O2", Net(), lambda m: torch.optim.Adam(m.parameters()), device)
    report = amp.report(model, optimizer)
    assert report.bytes.weights == 2 * cast + 4 * kept + buffers
    assert report.bytes.grads == 4 * count
    assert report.bytes.masters == 4 * cast
    assert report.bytes.state == 8 * count
    assert report.float32_bytes.weights == 4 * count + buffers
    assert report.float32_bytes.grads == 4 * count
    assert report.float32_bytes.masters == 0
    assert report.float32_bytes.state == 8 * count
    assert report.saved_bytes == -2 * cast, "copies in 16 bits"


@pytest.mark.parametrize(("level", "loss_scale"), [("O5", None), ("O2", 1.0)])
def test_grads_of_unscaled_losses_have_16_bits(level, loss_scale, device):
    model, optimizer = initialized(level, Net(), device=device, loss_scale=loss_scale)
    sizes = [param.numel() * param.element_size() for param in model.parameters()]
    assert amp.report(model, optimizer).bytes.grads == sum(sizes)
    list(amp.master_params(optimizer))
    train_step(model, optimizer)
    assert amp.report(model, optimizer).bytes.grads == 4 * sum(
        p.numel() for p in Net().parameters()
    )


def test_looking_does_not_materialize_master_grads(device):
    make = lambda m: optimizers.FusedAdamW(m.parameters())  # noqa: E731
    model, optimizer = initialized("O2", Net(), make, device, materialize_master_grads=False)
    train_step(model, optimizer)
    for _ in range(2):
        report = amp.report(model, optimizer, batch(device=device)[0])
        assert optimizer._torchamp.core.lazy
    cast = sum(p.numel() for p in model.parameters() if p.dtype == torch.float16)
    assert report.bytes.masters == 4 * cast
    assert report.bytes.grads == sum(p.numel() * p.element_size() for p in model.parameters())


def test_frozen_parameters_have_no_grads():
    model = nn.Linear(4, 4)
    model.weight.requires_grad_(False)
    report = amp.report(model, torch.optim.SGD([model.bias], lr=0.1))
    assert report.bytes.grads == 16 and report.bytes.weights == 80


def test_shared_parameters_count_once():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert amp.report(model, torch.optim.Adam(model.parameters())).bytes.total == 16 * (4 + 4 + 8)


@pytest.mark.parametrize("level", ["O1", "O4"])
def test_float32_activations_are_those_of_o0(level, device):
    x, _ = batch(device=device)
    plain = amp.report(*initialized("O0", Blocks(), device=device), x)
    report = amp.report(*initialized(level, Blocks(), device=device), x)
    assert report.float32_bytes == plain.bytes == plain.float32_bytes
    assert plain.bytes.activations > 0


def test_activations_are_what_autograd_keeps(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh()).to(device)
    report = amp.report(model, None, batch(device=device)[0])
    assert row(report, "0").bytes.activations == 16 * 4 * 4, "the linear layer's input"
    assert row(report, "1").bytes.activations == 16 * 8 * 4, "tanh's output"


def test_checkpointed_activations_are_not_kept(device):
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    x = batch(device=device)[0]
    model = Checkpointed().to(device)
    assert amp.report(model, None, x).bytes.activations <= x.numel() * 4
    assert amp.report(model.inner, None, x).bytes.activations == 2 * x.numel() * 4


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_models_are_freed_with_their_last_reference(level):
    model, optimizer = initialized(level, Blocks())
    amp.report(model, optimizer, batch()[0])
    seen = weakref.ref(model)
    gc.disable()
    try:
        del model, optimizer
        assert seen() is None
    finally:
        gc.enable()


def test_nothing_changes(device):
    model, optimizer = initialized("O2", nn.Sequential(Net(), nn.Dropout()), device=device)
    train_step(model, optimizer)
    grads = [param.grad.clone() for param in model.parameters()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    amp.report(model, optimizer, batch(device=device)[0])
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(a, before[name]) for name, a in model.state_dict().items())
    assert all(torch.equal(a, param.grad) for a, param in zip(grads, model.parameters()))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_forward_that_raises_leaves_nothing_behind():
    model = Net()
    with pytest.raises(RuntimeError):
        amp.report(model, None, torch.ones(2, 5))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_batches_are_called_as_they_are_given():
    class Sum(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a + b

    one = torch.ones(3)
    for given in [(one, one), [one, one], {"a": one, "b": one}]:
        assert row(amp.report(Sum(), None, given), "").compute_dtypes == {torch.float32: 1}


def test_tf32_is_named():
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert "TF32 allowed" in str(amp.report(Net()))
    finally:
        torch.set_float32_matmul_precision(precision)
    assert "TF32" not in str(amp.report(Net()))


def test_wrong_arguments():
    with pytest.raises(TypeError, match="^report: expected model to be a torch.nn.Module, got a "):
        amp.report([Net()])
