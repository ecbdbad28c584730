"""16-bit bases that stay frozen beside float32 adapters, and complex parameters."""

from __future__ import annotations

import re

import pytest
import torch
from nets import LEVELS, MASTER_LEVELS, batch, initialized, loss_of, sgd, train_step
from torch import nn
from torch.utils._pytree import tree_map_only

from torchamp import amp

LOW = {"O1": torch.float16, "O2": torch.float16, "O4": torch.bfloat16, "O5": torch.bfloat16}


class Adapted(nn.Module):
    """A frozen base and what is added to its output."""

    def __init__(self, dtype: torch.dtype, norm: type[nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(4, 8), norm(8), nn.Linear(8, 3)).to(dtype)
        self.base.register_buffer("scale", torch.ones((), dtype=dtype))
        self.base.requires_grad_(False).eval()
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        base = self.base(x.to(self.base[0].weight.dtype))
        return base * self.base.scale + self.up(self.down(x))


def trainable(model: nn.Module) -> torch.optim.Optimizer:
    params = [param for param in model.parameters() if param.requires_grad]
    return torch.optim.SGD(params, lr=0.1)


def values(module: nn.Module) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in (*module.parameters(), *module.buffers())]


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d])
@pytest.mark.parametrize("optimizer", [trainable, sgd])
@pytest.mark.parametrize("level", LOW)
def test_a_base_stays_as_it_is_beside_adapters_that_train(level, optimizer, norm, device):
    model = Adapted(LOW[level], norm).to(device)
    before = values(model.base)
    model, optimizer = initialized(level, model, optimizer, device)
    first = float(loss_of(model))
    for _ in range(20):
        train_step(model, optimizer)
    assert float(loss_of(model)) < first
    now = values(model.base)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(now, before))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_base_of_any_16_bit_type_is_taken_at_every_level(dtype, level):
    model, optimizer = initialized(level, Adapted(dtype), trainable)
    train_step(model, optimizer)
    kept = dtype if level in ("O1", "O4") else LOW.get(level.replace("O3", "O2"), torch.float32)
    assert model.base[0].weight.dtype == kept


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_a_base_has_no_masters_where_no_optimizer_has_it(level):
    model, optimizer = initialized(level, Adapted(LOW[level]), trainable)
    masters = list(amp.master_params(optimizer))
    assert [tuple(each.shape) for each in masters] == [(2, 4), (3, 2)]


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_what_masters_of_frozen_parameters_take_is_said(level, heard):
    model = Adapted(LOW[level])
    initialized(level, model, verbosity=1)
    assert (
        "INFO: initialize: float32 masters of 6 frozen parameters take 0.0 MiB; leave them out of "
        "the optimizer, and pass them to add_param_group when they are to train\n"
    ) in heard.take()
    amp.release(model)
    initialized(level, model, trainable, verbosity=1)
    assert "frozen" not in heard.take()


@pytest.mark.parametrize("level", MASTER_LEVELS)
@pytest.mark.parametrize("is_in_optimizer", [True, False])
def test_a_base_that_is_thawed_trains_by_masters(is_in_optimizer, level):
    model = Adapted(LOW[level])
    model, optimizer = initialized(level, model, sgd if is_in_optimizer else trainable)
    train_step(model, optimizer)
    weight = model.base[2].weight.requires_grad_(True)
    if not is_in_optimizer:
        optimizer.add_param_group({"params": [weight]})
    optimizer.param_groups[-1]["lr"] = 1e-5
    before = {each: each.detach().clone() for each in amp.master_params(optimizer)}
    train_step(model, optimizer)
    moved = [each for each in before if each.shape == weight.shape]
    assert len(moved) == 1 and moved[0].dtype == torch.float32
    assert not torch.equal(moved[0], before[moved[0]])


class Spectral(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.last = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        weight = weight if weight.is_complex() else torch.view_as_complex(weight.float())
        x = torch.fft.ifft(torch.fft.fft(x.float()) * weight).real
        return self.last(x.to(self.last.weight.dtype))


def phases() -> torch.Tensor:
    return torch.ones(4, dtype=torch.complex64)


@pytest.mark.parametrize("options", [{"opt_level": "O1"}, {"opt_level": "O2"}, {"opt_level": "O5"}])
def test_complex_parameters_that_train_are_refused(options):
    model = Spectral(phases())
    message = (
        'initialize: expected parameter "weight" of models[0] to be real, got a complex one, '
        "whose grads cannot be unscaled; make view_as_real of it the parameter, and use "
        "view_as_complex in forward"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        amp.initialize(model, sgd(model), verbosity=0, **options)
    assert type(model) is Spectral and model.last.weight.dtype == torch.float32


@pytest.mark.parametrize("level", LEVELS)
def test_real_views_of_complex_parameters_train(level):
    model, optimizer = initialized(level, Spectral(torch.view_as_real(phases())))
    before = model.weight.clone()
    train_step(model, optimizer)
    assert not torch.equal(model.weight, before)


@pytest.mark.parametrize("level", LEVELS)
def test_complex_parameters_that_no_optimizer_steps_stay_as_they_are(level):
    model = Spectral(phases())
    model.weight.requires_grad_(False)
    model, optimizer = initialized(level, model)
    train_step(model, optimizer)
    assert torch.equal(model.weight, phases())


@pytest.mark.parametrize("level", LEVELS)
def test_complex_parameters_are_taken_without_an_optimizer(level):
    model = amp.initialize(Spectral(phases()), opt_level=level, verbosity=0)
    assert model(batch()[0]).isfinite().all()


@pytest.mark.parametrize("level", ["O0", "O3", "O4"])
def test_complex_parameters_train_where_nothing_is_unscaled(level):
    model, optimizer = initialized(level, Spectral(phases()))
    train_step(model, optimizer)
    assert not torch.equal(model.weight, phases())


class Quantized(torch.Tensor):
    """8 bits and a scale, of the dtype that it widens to."""

    @staticmethod
    def __new__(cls, bits, scale, dtype):
        return torch.Tensor._make_wrapper_subclass(cls, bits.shape, dtype=dtype)

    def __init__(self, bits, scale, dtype):
        self.bits, self.scale = bits, scale

    def widened(self):
        return (self.bits.float() * self.scale).to(self.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0].bits, args[0].scale, args[0].dtype)
        args, kwargs = tree_map_only(Quantized, Quantized.widened, (args, kwargs or {}))
        return func(*args, **kwargs)


class QuantizedBase(nn.Module):
    """QLoRA's: a base of 8 bits that is frozen, and adapters."""

    def __init__(self, dtype):
        super().__init__()
        self.base = nn.Linear(4, 3, bias=False)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 3, bias=False)
        weight = self.base.weight.detach()
        scale = weight.abs().max() / 127
        quantized = Quantized((weight / scale).round().to(torch.int8), scale, dtype)
        self.base.weight = nn.Parameter(quantized, requires_grad=False)

    def forward(self, x):
        return self.base(x.to(self.base.weight.dtype)) + self.up(self.down(x))


@pytest.mark.parametrize("level", LEVELS)
def test_quantized_bases_stay_as_they_are(level):
    for dtype in {torch.float32, LOW.get(level, torch.float32)}:
        model = QuantizedBase(dtype)
        model, optimizer = initialized(level, model, trainable)
        own, before = model.base.weight, model.down.weight.detach().clone()
        train_step(model, optimizer)
        assert model.base.weight is own and type(own.data) is Quantized and own.dtype == dtype
        assert not torch.equal(model.down.weight, before)
        assert type(model.state_dict()["base.weight"]) is Quantized
        amp.release(model)
        assert model.base.weight is own and own.dtype == dtype
