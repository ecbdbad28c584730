"""Stage 2: which parameters and buffers are cast, and that they stay the same objects."""

import re

import pytest
import torch
from nets import LEVELS, Net, batch, initialized
from torch import nn

from torchamp import amp

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


class Zoo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.embedding = nn.Embedding(3, 2)
        self.batch_norm = nn.BatchNorm1d(2)
        self.plain_batch_norm = nn.BatchNorm1d(2, affine=False)
        self.synced = nn.SyncBatchNorm(2)
        self.layer_norm = nn.LayerNorm(2)
        self.group_norm = nn.GroupNorm(1, 2)
        self.instance_norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
        self.register_buffer("scale", torch.ones(2, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


def dtypes(model: nn.Module) -> dict[str, torch.dtype]:
    return {name: t.dtype for name, t in [*model.named_parameters(), *model.named_buffers()]}


def test_keep_batchnorm_fp32():
    kept = dtypes(amp.initialize(Zoo(), opt_level="O2", verbosity=0))
    floating = {name for name, dtype in kept.items() if dtype.is_floating_point}
    norms = ("batch_norm.", "plain_batch_norm.", "synced.")
    assert {name for name in floating if kept[name] == F32} == {
        name for name in floating if name.startswith(norms)
    }
    assert kept["scale"] == F16
    assert kept["count"] == torch.int64


@pytest.mark.parametrize("level", ["O2", "O5"])
@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.SyncBatchNorm])
def test_statistics_of_batch_norms_without_weights_are_those_of_float32(norm, level, device):
    plain, model = norm(4, affine=False).to(device), norm(4, affine=False).to(device)
    model = amp.initialize(nn.Sequential(model), opt_level=level, verbosity=0)
    for seed in range(500):
        x = (batch(seed, device)[0] + 1).to(BF16).float()
        plain(x)
        model(x.requires_grad_()).sum().backward()
    torch.testing.assert_close(model[0].running_mean, plain.running_mean)
    torch.testing.assert_close(model[0].running_var, plain.running_var)
    torch.testing.assert_close(model.eval()(x), plain.eval()(x), rtol=1e-2, atol=1e-2)


class Tables(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.rope = nn.Module()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        for i in range(count):
            self.rope.register_buffer(f"cos_{i}", torch.ones(2))


def said(heard, *args, **options) -> str:
    """What initialize logs beside its settings."""
    amp.initialize(*args, **options)
    return re.sub(r"INFO: opt_level .*\n(  .*\n)+", "", heard.take())


def test_buffers_that_are_cast_are_said(heard):
    remedy = "; keep_fp32 takes the names of those that must stay in float32\n"
    assert said(heard, Tables(2), opt_level="O2") == (
        'INFO: initialize: buffers cast to float16: "rope.cos_0", "rope.cos_1"' + remedy
    )
    assert said(heard, [Tables(6), Tables(3)], opt_level="O5") == (
        'INFO: initialize: buffers cast to bfloat16: "rope.cos_0", "rope.cos_1", '
        '"rope.cos_2", "rope.cos_3" and 2 others' + remedy
    )
    assert said(heard, Tables(2), opt_level="O3", keep_batchnorm_fp32=True, keep_fp32="rope") == ""
    names = ["rope.cos_0", "rope.cos_1"]
    assert said(heard, Tables(2), opt_level="O2", keep_fp32=names) == ""
    assert said(heard, Tables(0), opt_level="O2") == said(heard, Tables(2), opt_level="O0") == ""
    assert said(heard, Tables(2), opt_level="O2", verbosity=0) == ""
    for level in ("O1", "O4"):
        assert said(heard, Tables(2), opt_level=level) == ""


@pytest.mark.parametrize("level, dtype", [("O3", F16), ("O0", F32)])
def test_everything_is_cast(level, dtype):
    model = amp.initialize(Zoo(), opt_level=level, verbosity=0)
    assert {d for d in dtypes(model).values() if d.is_floating_point} == {dtype}


@pytest.mark.parametrize("level", ["O1", "O4"])
def test_nothing_is_cast(level):
    model = Zoo()
    before = dtypes(model)
    with_autocast = amp.initialize(model, opt_level=level, verbosity=0)
    assert dtypes(with_autocast) == before
    assert torch.is_autocast_enabled("cpu")


def test_tensors_keep_their_identity():
    model = Net()
    tensors = [*model.parameters(), *model.buffers()]
    initialized("O2", model)
    now = [*model.parameters(), *model.buffers()]
    assert all(a is b for a, b in zip(tensors, now))


def test_grads_are_cast_with_their_parameters():
    model = Net()
    model(batch()[0]).sum().backward()
    initialized("O2", model)
    assert model.first.weight.grad.dtype == F16 and model.norm.weight.grad.dtype == F32


def test_a_shared_parameter_is_cast_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    initialized("O2", model)
    assert model[0].weight is model[1].weight and model[0].weight.dtype == F16


@pytest.mark.parametrize("level", LEVELS)
def test_what_forward_gives(level):
    model, _ = initialized(level)
    assert model(batch()[0]).dtype == {"O1": F16, "O4": BF16}.get(level, F32)


@pytest.mark.parametrize("level", ["O0", "O2", "O3", "O5"])
def test_forward_takes_any_floating_type(level):
    model, _ = initialized(level)
    x, _ = batch()
    assert torch.equal(model(x.double()), model(x))


@pytest.mark.parametrize("dtype", [F16, BF16, torch.float64])
@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_cast_model_outputs(level, dtype):
    model, _ = initialized(level, cast_model_outputs=dtype)
    assert model(batch()[0]).dtype == dtype


def test_bfloat16_and_float64_models_are_taken():
    for dtype in (BF16, torch.float64):
        model, optimizer = initialized("O2", Net().to(dtype))
        masters = list(amp.master_params(optimizer))
        assert model.first.weight.dtype == F16 and masters[0].dtype == F32
