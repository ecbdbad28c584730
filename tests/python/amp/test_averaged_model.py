"""amp.AveragedModel: torch's, in float32, of the masters. Averages that live within the model."""

import copy

import pytest
import torch
from nets import LEVELS, MASTER_LEVELS, Net, batch, changed, initialized, sgd, train_step, warned
from torch import nn
from torch.optim import swa_utils

from torchamp import amp

DECAY = 0.75
STEPS = 8

MEANS = {
    "ema": lambda: {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(DECAY)},
    "ema, one by one": lambda: {"avg_fn": swa_utils.get_ema_avg_fn(DECAY)},
    "equal": dict,
}


def weight_of(mean: str, step: int) -> float:
    """The weight of the step's values."""
    return 1 / (step + 1) if mean == "equal" else 1 if step == 0 else 1 - DECAY


def masters_of(model) -> list[torch.Tensor]:
    return [model.state_dict()[name].clone() for name, _ in model.named_parameters()]


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("level", LEVELS)
def test_averages_are_those_of_float32_masters_by_hand(level, mean):
    model, optimizer = initialized(level, loss_scale=128.0)
    averaged = amp.AveragedModel(model, **MEANS[mean]())
    expected = [torch.zeros_like(master, dtype=torch.float64) for master in masters_of(model)]
    for step in range(STEPS):
        train_step(model, optimizer, step)
        averaged.update_parameters(model)
        for average, master in zip(expected, amp.master_params(optimizer)):
            average.lerp_(master.detach().double(), weight_of(mean, step))
    for average, wanted in zip(averaged.parameters(), expected):
        assert average.dtype == torch.float32
        torch.testing.assert_close(average.double(), wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("level", LEVELS)
def test_it_starts_from_the_masters(level):
    model, optimizer = initialized(level)
    train_step(model, optimizer)
    assert all(map(torch.equal, amp.AveragedModel(model).parameters(), masters_of(model)))


@pytest.mark.parametrize("level", LEVELS)
def test_one_made_before_initialize_is_the_same(level):
    model = Net()
    before = amp.AveragedModel(model, **MEANS["ema"]())
    model, optimizer = initialized(level, model)
    after = amp.AveragedModel(model, **MEANS["ema"]())
    for step in range(3):
        train_step(model, optimizer, step)
        before.update_parameters(model)
        after.update_parameters(model)
    assert not changed(before.state_dict(), after.state_dict())


@pytest.mark.parametrize("level", LEVELS)
def test_it_runs_in_float32_and_can_be_torchs(level):
    model, optimizer = initialized(level)
    averaged = amp.AveragedModel(model)
    train_step(model, optimizer)
    averaged.update_parameters(model)
    plain = swa_utils.AveragedModel(Net())
    plain.load_state_dict(averaged.state_dict())
    averaged.eval(), plain.eval()
    x, _ = batch()
    for inputs in (x, x.to(next(model.parameters()).dtype)):
        with amp.disable_casts():
            assert torch.equal(averaged(inputs), plain(inputs.float()))


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_buffers_are_copied_or_averaged_in_float32(level):
    model, optimizer = initialized(level, keep_batchnorm_fp32=False)
    copied = amp.AveragedModel(model)
    averaged = amp.AveragedModel(model, use_buffers=True)
    means = []
    for step in range(3):
        train_step(model, optimizer, step)
        copied.update_parameters(model)
        averaged.update_parameters(model)
        means.append(model.norm.running_mean.float())
    assert copied.module.norm.running_mean.dtype == torch.float32
    assert torch.equal(copied.module.norm.running_mean, means[-1])
    torch.testing.assert_close(averaged.module.norm.running_mean, sum(means) / 3)


@pytest.mark.parametrize("level", LEVELS)
def test_update_bn_takes_it(level):
    model, optimizer = initialized(level)
    averaged = amp.AveragedModel(model)
    train_step(model, optimizer)
    averaged.update_parameters(model)
    x, _ = batch()
    with amp.disable_casts():
        swa_utils.update_bn([x], averaged)
        first = averaged.module.first(x)
    torch.testing.assert_close(averaged.module.norm.running_mean, first.mean(0))


def test_float64_and_integers_keep_their_dtype():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).double()
    averaged = amp.AveragedModel(model)
    averaged.update_parameters(model)
    averaged.update_parameters(model)
    assert {param.dtype for param in averaged.parameters()} == {torch.float64}
    assert averaged.module[1].num_batches_tracked.dtype == torch.int64


def test_recurrent_modules_average():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.last = nn.LSTM(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.last(self.lstm(x)[0])

    model, optimizer = initialized("O5", Recurrent())
    averaged = amp.AveragedModel(model)
    averaged.update_parameters(model)
    x, _ = batch()
    plain = Recurrent()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(averaged(x), plain(x))


def test_one_of_a_model_for_inference():
    model = amp.cast_for_inference(Net(), torch.bfloat16, keep_batchnorm_fp32=False)
    averaged = amp.AveragedModel(model)
    assert all(param.dtype == torch.float32 for param in averaged.parameters())
    assert averaged(batch()[0].bfloat16()).dtype == torch.float32


class Momentum(nn.Module):
    """A model that has an average of a part of it."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.online = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.online(x) - self.target(x).detach()

    def average(self, decay: float) -> None:
        for mean, param in zip(self.target.parameters(), self.online.parameters()):
            mean.data.mul_(decay).add_(param.data, alpha=1 - decay)


def warned_of(model: nn.Module, **options) -> list[str]:
    trained = sgd(nn.ParameterList(p for p in model.parameters() if p.requires_grad))
    with warned() as texts:
        amp.initialize(model, trained, verbosity=0, **options)
    return texts


@pytest.mark.parametrize("level", ["O2", "O3", "O5"])
def test_an_average_within_the_model_is_told_by_name(level):
    assert warned_of(Momentum(), opt_level=level) == [
        'initialize: expected an optimizer to step "target" of models[0], got a copy of "online" '
        'that none steps; if it averages "online", its averages stall in 16 bits: name "target" in '
        "keep_fp32"
    ]


@pytest.mark.parametrize("level", LEVELS)
def test_no_average_is_told_of_other_parts_that_do_not_train(level):
    frozen = Momentum()
    for layer in frozen.target.layers:  # norms and biases stay equal, as of any two layers
        nn.init.normal_(layer.self_attn.in_proj_weight)
        nn.init.normal_(layer.linear1.weight)
    for layer in (*frozen.target.layers, *frozen.online.layers):
        nn.init.zeros_(layer.self_attn.out_proj.weight)
        nn.init.zeros_(layer.linear2.weight)
    assert warned_of(frozen, opt_level=level) == []
    assert warned_of(Momentum(), opt_level=level, keep_fp32="target") == []


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_an_average_that_is_kept_in_float32_does_not_stall(level):
    model = Momentum()
    optimizer = sgd(model.online)
    model, optimizer = amp.initialize(
        model, optimizer, opt_level=level, keep_fp32="target", verbosity=0
    )
    with torch.no_grad():
        for param in amp.master_params(optimizer):
            param.add_(1.0)
    assert model(torch.ones(2, 3, 8)).isfinite().all()  # which also writes the masters to the model
    for _ in range(1000):
        model.average(0.995)
    for mean, param in zip(model.target.parameters(), model.online.parameters()):
        torch.testing.assert_close(mean, param.float(), rtol=0, atol=0.0068)
