"""keep_fp32: modules, buffers and arguments that are float32 at every level."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from nets import LEVELS, Net, adam, initialized, train_step
from torch import nn
from torch.ao import quantization

from torchamp import amp

LOW = {"O1": torch.float16, "O2": torch.float16, "O3": torch.float16}
LOW |= {"O4": torch.bfloat16, "O5": torch.bfloat16}
CAST_LEVELS = ["O2", "O3", "O5"]


class Seen(nn.Linear):
    """A linear layer that notes what its forward works with."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = super().forward(x)
        self.dtypes = x.dtype, self.weight.dtype, result.dtype
        return result


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Seen(4, 8)
        self.norm = nn.LayerNorm(8)
        self.middle = nn.Sequential(Seen(8, 8), nn.ReLU())
        self.head = Seen(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.norm(self.first(x))))


def trained(opt_level, keep, device, **options):
    model, optimizer = initialized(
        opt_level, Parts(), adam, device, keep_fp32=keep, **{"loss_scale": 4.0, **options}
    )
    x = torch.randint(-8, 9, (5, 4), device=device) / 4  # which 16 bits hold
    for _ in range(2):
        optimizer.zero_grad()
        amp.scale_loss(model(x).float().pow(2).mean(), optimizer).backward()
        optimizer.step()
    return model


RULES = {
    "a name": "middle",
    "a name of an inner module": "middle.0",
    "a predicate": lambda name, module: name.startswith("middle"),
    "several": ["middle", nn.LayerNorm],
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("opt_level", LOW)
def test_kept_modules_compute_in_float32(opt_level, rule, device):
    model = trained(opt_level, rule, device)
    assert model.middle[0].dtypes == (torch.float32,) * 3
    assert model.first.dtypes[2] == model.head.dtypes[2] == LOW[opt_level]
    assert all(param.dtype == torch.float32 for param in model.middle.parameters())


@pytest.mark.parametrize("opt_level", LOW)
def test_classes(opt_level, device):
    model = trained(opt_level, Seen, device)
    for layer in (model.first, model.middle[0], model.head):
        assert layer.dtypes == (torch.float32,) * 3
    assert opt_level not in CAST_LEVELS or model.norm.weight.dtype == LOW[opt_level]


@pytest.mark.parametrize("opt_level", LOW)
def test_a_head_keeps_the_precision_of_its_output(opt_level, device):
    model = trained(opt_level, "head", device)
    output = model(torch.randn(5, 4, device=device))
    assert output.dtype == torch.float32
    assert not torch.equal(output, output.to(LOW[opt_level]).float())


@pytest.mark.parametrize("opt_level", LEVELS)
def test_everything_kept_trains_as_float32_does(opt_level, device):
    torch.manual_seed(3)
    plain = trained("O0", (), device)
    torch.manual_seed(3)
    kept = trained(opt_level, ["first", "norm", "middle", "head"], device)
    torch.testing.assert_close([*kept.parameters()], [*plain.parameters()], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opt_level", LOW)
def test_what_a_kept_module_calls_is_not_cast(opt_level, device):
    """Functions of the module too, not only modules in it."""

    class Product(nn.Module):
        def forward(self, x):
            self.dtype = (x @ x.t()).dtype
            return x

    model = nn.Sequential(nn.Linear(4, 4), Product())
    model, _ = initialized(opt_level, model, device=device, keep_fp32=Product)
    model(torch.randn(2, 4, device=device))
    assert model[1].dtype == torch.float32


@pytest.mark.parametrize("opt_level", CAST_LEVELS)
def test_kept_parameters_need_no_masters(opt_level, device):
    model = Net()
    optimizer = adam(model.to(device))
    head = model.last.weight
    amp.initialize(model, optimizer, opt_level=opt_level, keep_fp32="last", verbosity=0)
    assert any(param is head for param in amp.master_params(optimizer))


@pytest.mark.parametrize("opt_level", LOW)
def test_released_models_are_plain(opt_level, device):
    model = trained(opt_level, ["middle", nn.LayerNorm], device)
    amp.release(model)
    assert [type(module) for module in model.modules()] == [
        type(module) for module in Parts().modules()
    ]
    assert not any("_torchamp" in vars(module) for module in model.modules())
    again = amp.initialize(model, adam(model), opt_level=opt_level, keep_fp32="head", verbosity=0)
    again[0](torch.randn(5, 4, device=device))
    assert model.head.dtypes[1] == torch.float32 and model.first.dtypes[2] == LOW[opt_level]


@pytest.mark.parametrize("opt_level", LOW)
def test_recurrent_modules(opt_level, device):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.lstm(nn.utils.rnn.pack_sequence(list(x)))[0].data)

    for keep in ("lstm", "head"):
        model, optimizer = initialized(opt_level, Recurrent(), device=device, keep_fp32=keep)
        amp.scale_loss(model(torch.randn(2, 3, 4, device=device)).sum(), optimizer).backward()
        optimizer.step()


@pytest.mark.parametrize("opt_level", ["O2", "O5"])
def test_compiled_in_one_graph(opt_level):
    model, _ = initialized(opt_level, Parts(), keep_fp32="middle")
    x = torch.randn(5, 4)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))


def test_what_nothing_matches_is_an_error(device):
    model = Net().to(device)
    before = copy.deepcopy(model.state_dict())
    names = "to name modules or buffers in the models, or arguments of their forward"
    kinds = "to be names, classes of modules or functions of name and module"
    for wrong, error, expected, got in (
        ("tail", ValueError, names, "'tail'"),
        ([nn.Linear, nn.Conv2d], ValueError, names, "<class 'torch.nn.modules.conv.Conv2d'>"),
        (3, TypeError, kinds, "3"),
        ([nn.Linear, 3], TypeError, kinds, "3"),
        (int, TypeError, kinds, "<class 'int'>"),
        (len, TypeError, kinds, "<built-in function len>"),
    ):
        message = re.escape(f"initialize: expected keep_fp32 {expected}, got {got}")
        with pytest.raises(error, match=f"^{message}$"):
            amp.initialize(model, opt_level="O2", keep_fp32=wrong, verbosity=0)
    assert type(model) is Net
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


class Rotary(nn.Module):
    """Tables and counters, and arguments that 16 bits would round."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 10000 ** (-torch.arange(0, 16, 2) / 16))
        self.inner = nn.Module()
        self.inner.register_buffer("count", torch.zeros(()))
        self.last = nn.Linear(8, 2)

    def forward(self, x, positions, *, offset=0.0):
        self.inner.count += len(x)
        self.seen = x.dtype, positions.dtype, torch.as_tensor(offset).dtype
        return self.last(torch.outer(positions + offset, self.frequencies).cos() * x)


BUFFERS = ["frequencies", "inner.count"]


@pytest.mark.parametrize("opt_level", LOW)
def test_buffers_stay_float32_by_name(opt_level, device):
    model, _ = initialized(opt_level, Rotary(), device=device, keep_fp32=BUFFERS)
    x, positions = torch.ones(300, 8, device=device), torch.arange(300.0, device=device)
    for _ in range(16):
        model(x, positions)
    assert model.frequencies.dtype == model.inner.count.dtype == torch.float32
    assert torch.equal(model.frequencies, Rotary().frequencies.to(device))
    assert model.inner.count == 4800


@pytest.mark.parametrize("opt_level", CAST_LEVELS)
def test_arguments_stay_float32_by_name(opt_level, device):
    keep = ["frequencies", "positions", "offset"]
    model, _ = initialized(opt_level, Rotary(), device=device, keep_fp32=keep)
    x, positions = torch.ones(3, 8, device=device), torch.tensor([1.0, 2.0, 2049.0], device=device)
    by_place = model(x, positions, offset=torch.ones((), device=device))
    assert model.seen == (LOW[opt_level], torch.float32, torch.float32)
    by_name = model(x=x, positions=positions.double(), offset=torch.ones((), device=device))
    assert model.seen == (LOW[opt_level], torch.float32, torch.float32)
    assert torch.equal(by_place, by_name)


def test_a_module_comes_before_an_argument_of_its_name():
    class Same(nn.Linear):
        def forward(self, head):
            self.seen = head.dtype
            return super().forward(head) + self.head(head)

    model = Same(4, 4)
    model.head = nn.Linear(4, 4)
    model, _ = initialized("O2", model, keep_fp32="head")
    model(torch.ones(2, 4))
    assert model.seen == torch.float16 and model.head.weight.dtype == torch.float32


@pytest.mark.parametrize("opt_level", CAST_LEVELS)
def test_arguments_and_buffers_compiled_in_one_graph(opt_level):
    model, _ = initialized(opt_level, Rotary(), keep_fp32=[*BUFFERS, "positions"])
    x, positions = torch.ones(3, 8), torch.tensor([1.0, 2.0, 2049.0])
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, positions=positions), model(x, positions))


def test_a_forward_of_the_object_has_its_own_arguments(device):
    model = Net().to(device)
    seen = []
    model.forward = lambda images, mask: seen.extend([images.dtype, mask.dtype]) or mask
    amp.initialize(model, opt_level="O2", keep_fp32="mask", verbosity=0)
    model(torch.ones(1, device=device), torch.ones(1, device=device))
    assert seen == [torch.float16, torch.float32]


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
@pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")
@pytest.mark.parametrize("opt_level", LOW)
def test_fake_quantization(opt_level):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    keep = [quantization.FusedMovingAvgObsFakeQuantize]
    if opt_level in CAST_LEVELS:
        keep.append(torch.ao.nn.qat.Linear)
    model, optimizer = initialized(
        opt_level, quantization.prepare_qat(model), keep_fp32=keep, loss_scale=1.0
    )
    before = model[0].weight.clone()
    train_step(model, optimizer)
    assert not torch.equal(before, model[0].weight)
    amp.release(model)
