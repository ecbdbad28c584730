"""What torch.compile returns is taken wherever a model is, as the model that it was given."""

import copy
import io

import pytest
import torch
from nets import LEVELS, Net, batch, initialized, linear_net, loss_of, sgd, train_step
from torch import nn
from torch.nn.parallel import DataParallel

import torchamp
from torchamp import amp


def compiled(model: nn.Module) -> nn.Module:
    torch._dynamo.reset()
    return torch.compile(model, backend="eager", fullgraph=True)


class Layers(nn.Sequential):
    """torch.compile captures what calls a class of torch's, not the class itself."""

    def __init__(self) -> None:
        super().__init__(*linear_net())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def trained(level: str) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer]:
    model, optimizer = initialized(level, Layers())
    wrapper = compiled(model)
    train_step(wrapper, optimizer)
    return model, wrapper, optimizer


WRAPPERS = [lambda model: model, compiled, lambda model: DataParallel(compiled(model))]


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize("level", LEVELS)
def test_checkpoints_are_those_of_the_model(level, wrap):
    model, _, optimizer = trained(level)
    file, expected = io.BytesIO(), io.BytesIO()
    amp.save(wrap(model), optimizer, file)
    amp.save(model, optimizer, expected)
    assert file.getvalue() == expected.getvalue()
    other, other_optimizer = initialized(level, Layers())
    for each in (other, wrap(other)):
        file.seek(0)
        amp.load(each, other_optimizer, file)
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    amp.release([model]), amp.release(other)


@pytest.mark.parametrize("level", LEVELS)
def test_release(level):
    model, wrapper, _ = trained(level)
    amp.release(wrapper)
    assert type(model) is Layers and model[0].weight.dtype == torch.float32
    assert wrapper(batch()[0]).dtype == torch.float32


@pytest.mark.parametrize("called_before", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_initialize_is_that_of_the_model(level, called_before):
    torch.manual_seed(0)
    model = linear_net()
    twin = copy.deepcopy(model)
    wrapper = compiled(model)
    if called_before:
        wrapper(batch()[0])
    returned, optimizer = amp.initialize(wrapper, sgd(wrapper), opt_level=level, verbosity=0)
    assert returned is wrapper and model._torchamp.session is optimizer._torchamp.session
    assert wrapper(batch()[0]).dtype == model(batch()[0]).dtype
    train_step(wrapper, optimizer)
    amp.release(wrapper)
    twin, other = initialized(level, twin)
    train_step(twin, other)
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0, atol=0)
    amp.release(twin)


def test_amp_takes_it():
    model = linear_net()
    wrapper = compiled(model)
    handle = torchamp.Amp(wrapper, sgd(wrapper), "O2", verbosity=0)
    handle.scale_loss(loss_of(wrapper)).backward()
    handle.release()
    assert type(model) is nn.Sequential


def test_initialize_refuses_what_is_in_training():
    _, wrapper, _ = trained("O2")
    with pytest.raises(RuntimeError, match=r"expected models\[0\] \(Layers\) not to be init"):
        amp.initialize(wrapper, sgd(wrapper), opt_level="O2", verbosity=0)


@pytest.mark.parametrize("level", ["O0", "O2", "O5"])
def test_averages(level):
    model, wrapper, optimizer = trained(level)
    averaged, expected = amp.AveragedModel(wrapper), amp.AveragedModel(model)
    for _ in range(2):
        train_step(wrapper, optimizer)
        averaged.update_parameters(wrapper)
        expected.update_parameters(model)
    assert averaged.state_dict().keys() == expected.state_dict().keys()
    torch.testing.assert_close(averaged.state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_report_and_trace_name_the_models_own_modules():
    model, wrapper, optimizer = trained("O2")
    x, _ = batch()
    assert str(amp.report(wrapper, x)) == str(amp.report(model, x))
    with torch.no_grad():
        model[0].weight.fill_(6e4)
    wrapper = torch.compile(model, backend="eager")
    with amp.trace_overflow(wrapper) as trace:
        train_step(wrapper, optimizer)
    assert "'0'" in str(trace) and "_orig_mod" not in str(trace)


def test_preflight():
    model = linear_net()
    loss = nn.CrossEntropyLoss()
    x, target = batch()
    found = amp.preflight(compiled(model), x, lambda outputs: loss(outputs, target))
    assert str(found).startswith("preflight of Sequential on cpu")


def test_cast_for_inference():
    model = Net().eval()
    wrapper = compiled(model)
    assert amp.cast_for_inference(wrapper, torch.bfloat16) is wrapper
    assert model.first.weight.dtype == torch.bfloat16
    x, _ = batch()
    assert torch.equal(wrapper(x), model(x)) and wrapper(x).dtype == torch.float32


def test_copies():
    _, wrapper, _ = trained("O2")
    other = copy.deepcopy(wrapper)
    assert next(other.parameters()).dtype == torch.float32
    initialized("O2", other)
