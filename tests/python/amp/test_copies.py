"""Copies and whole-model files of a model in training: plain float32 models of the masters."""

import copy
import pickle

import pytest
import torch
from nets import LEVELS, Net, adam, backward, batch, file_by, initialized, loss_of, sgd, train_step
from torch import nn

from torchamp import amp, optimizers


def through_pickle(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


def through_torch_save(model: nn.Module) -> nn.Module:
    file = file_by(lambda file: torch.save(model, file))
    return torch.load(file, weights_only=False)


HOWS = {"deepcopy": copy.deepcopy, "pickle": through_pickle, "torch.save": through_torch_save}

LEVELS_AND_KEPT = [(level, kept) for level in LEVELS for kept in ((), "norm", "last")]


def make(level: str, kept: str, **options) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = initialized(level, keep_fp32=kept, loss_scale=128.0, **options)
    for seed in range(2):
        train_step(model, optimizer, seed)
    return model, optimizer


def assert_plain(model: nn.Module) -> None:
    assert [type(module) for module in model.modules()] == [type(m) for m in Net().modules()]
    for module in model.modules():
        assert not module._state_dict_hooks and "_torchamp" not in vars(module)
        assert not module._load_state_dict_pre_hooks and not module._load_state_dict_post_hooks
    assert {param.dtype for param in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("level", "kept"), LEVELS_AND_KEPT)
def test_it_is_what_release_makes_of_the_model(level, kept, how):
    model, _ = make(level, kept)
    other = HOWS[how](model)
    assert_plain(other)
    amp.release(model)
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert torch.equal(other(batch()[0]), model(batch()[0]))


@pytest.mark.parametrize("level", LEVELS)
def test_a_pickle_of_a_copy_is_read_without_torchamp(level):
    model, optimizer = make(level, "last")
    model.state_dict()
    for other in (copy.deepcopy(model), copy.deepcopy((model, optimizer))):
        assert b"torchamp" not in pickle.dumps(other)


def initialize_again(model: nn.Module, level: str) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model, optimizer = initialized(level, model)
    for name, value in model.state_dict().items():
        rounded = before[name].half().float() if value.is_floating_point() else value
        assert torch.equal(value, rounded if level == "O3" else before[name]), name
    losses = [loss_of(model).item()]
    for _ in range(4):
        train_step(model, optimizer)
    assert loss_of(model).item() < losses[0]
    amp.release(model)


def use_in_float32(model: nn.Module, level: str) -> None:
    assert model.float()(batch()[0]).dtype == torch.float32
    assert model.to(torch.float64)(batch()[0].double()).dtype == torch.float64


def train_without_amp(model: nn.Module, level: str) -> None:
    optimizer, before = sgd(model), loss_of(model).item()
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    assert loss_of(model).item() < before


def preflight(model: nn.Module, level: str) -> None:
    x, target = batch()
    amp.preflight(model, x, lambda outputs: nn.functional.cross_entropy(outputs, target))


def cast_for_inference(model: nn.Module, level: str) -> None:
    amp.cast_for_inference(model, torch.bfloat16)
    assert model.first.weight.dtype == torch.bfloat16
    assert model(batch()[0]).dtype == torch.float32


def copy_again(model: nn.Module, level: str) -> None:
    assert_plain(copy.deepcopy(model))


THEN = [
    initialize_again, use_in_float32, train_without_amp, preflight, cast_for_inference, copy_again,
]  # fmt: skip


@pytest.mark.parametrize("then", THEN)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("level", "kept"), LEVELS_AND_KEPT)
def test_what_a_program_does_with_it(level, kept, how, then):
    model, optimizer = make(level, kept)
    other = HOWS[how](model)
    model._torchamp.session.casts.close()
    weights = model.first.weight.detach().clone()
    then(other, level)
    assert torch.equal(model.first.weight, weights)
    if level not in ("O1", "O4"):
        train_step(model, optimizer)


@pytest.mark.parametrize("how", HOWS)
def test_tensors_and_modules_that_others_hold_stay_shared(how):
    model, _ = make("O2", "last")
    other, first, params = HOWS[how]([model, model.first, list(model.parameters())])
    assert other.first is first
    assert all(a is b for a, b in zip(params, other.parameters()))


@pytest.mark.parametrize("how", HOWS)
def test_a_copy_within_other_modules(how):
    model, _ = make("O2", "last")
    outer = HOWS[how](nn.Sequential(model, nn.Softplus()))
    assert_plain(outer[0])
    initialized("O5", outer)


def test_a_shallow_copy_is_in_training():
    model, optimizer = make("O2", "last")
    other = copy.copy(model)
    assert other.first is model.first and model.first.weight.dtype == torch.float16
    assert torch.equal(other(batch()[0]), model(batch()[0]))
    train_step(other, optimizer)
    weights = [model.first.weight.detach().clone(), model.state_dict()["first.weight"].clone()]
    backward(model, optimizer)
    copy.copy(optimizer).step()
    assert not torch.equal(model.first.weight, weights[0])
    assert not torch.equal(model.state_dict()["first.weight"], weights[1])


def test_an_average_by_hand_has_no_rounding():
    model, optimizer = initialized("O2", loss_scale=1.0)
    average = copy.deepcopy(model)
    with torch.no_grad():
        for param in amp.master_params(optimizer):
            param.add_(1.0)
        gaps = [value - mean for value, mean in zip(values_of(model), average.parameters())]
        for _ in range(1000):
            for mean, value in zip(average.parameters(), values_of(model)):
                mean.lerp_(value, 0.005)
    for gap, value, mean in zip(gaps, values_of(model), average.parameters()):
        assert (value - mean).norm() <= 0.0068 * gap.norm()


def values_of(model: nn.Module) -> list[torch.Tensor]:
    return [model.state_dict()[name] for name, _ in model.named_parameters()]


def test_one_that_is_cast_for_inference_stays_so_and_is_not_trained():
    model = amp.cast_for_inference(Net(), torch.float16)
    for how in HOWS.values():
        other = how(model)
        assert other.first.weight.dtype == torch.float16
        assert other(batch()[0]).dtype == torch.float32
        with pytest.raises(RuntimeError) as caught:
            initialized("O2", other)
        assert str(caught.value) == (
            "initialize: expected models[0] (Net) to be in float32, got one that "
            "cast_for_inference has cast; load its state_dict() into a new model"
        )
        new = Net()
        new.load_state_dict(other.state_dict())
        initialized("O2", new)


# With the optimizer.

MAKERS = {
    "sgd": sgd,
    "adam": adam,
    "fused": lambda model: optimizers.FusedAdamW(model.parameters(), lr=0.01),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.01),
}


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("level", LEVELS)
def test_both_are_what_release_makes_of_them(level, how, maker, order):
    pair = make(level, (), optimizer=MAKERS[maker])
    twins = HOWS[how](pair[::order])[::order]
    amp.release(pair[0])
    for model, optimizer in (pair, twins):
        assert_plain(model)
        for param, stepped in zip(model.parameters(), optimizer.param_groups[0]["params"]):
            assert param is stepped
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    assert all(map(torch.equal, pair[0].parameters(), twins[0].parameters()))
    assert type(twins[1]) is type(pair[1]) and "_torchamp" not in vars(twins[1])
    initialized(level, twins[0], lambda model: twins[1])


@pytest.mark.parametrize("level", LEVELS)
def test_a_deep_copy_of_a_part_is_a_plain_float32_one(level):
    model, _ = initialized(level, nn.Sequential(Net(), nn.Softplus()), keep_fp32="0.last")
    with torch.no_grad():
        model[0].first.weight.add_(0.01)
    part = copy.deepcopy(model[0])
    assert {param.dtype for param in part.parameters()} == {torch.float32}
    torch.testing.assert_close(part.state_dict(), model[0].state_dict(), rtol=0, atol=0)
    with amp.disable_casts():
        assert torch.equal(part(batch()[0]), copy.deepcopy(model)[0](batch()[0]))
    part.load_state_dict(model[0].state_dict(), assign=True)
    assert {value.dtype for value in part.half().state_dict().values()} <= {torch.half, torch.long}
