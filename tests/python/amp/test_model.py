"""The model that initialize returns is the same object; test_copies.py is about copies."""

import copy
import inspect
import re
import weakref

import pytest
import torch
from nets import Net, batch, initialized, linear_net, loss_of, train_step
from torch import nn

from torchamp import amp
from torchamp.amp._model.model import AmpModel

LEVELS = ["O0", "O1", "O2", "O3", "O5"]


def test_it_is_the_same_object_of_the_same_class():
    model = Net()
    kind = type(model)
    assert amp.initialize(model, opt_level="O2", verbosity=0) is model
    assert isinstance(model, Net) and type(model).__name__ == "Net"
    assert (type(model).__module__, type(model).__qualname__) == (kind.__module__, "Net")
    assert inspect.signature(model.forward) == inspect.signature(Net().forward)


@pytest.mark.parametrize("then", ["O0", "O1", "O2", "O3", "O5"])
@pytest.mark.parametrize("first", ["O0", "O1"])
def test_a_float32_model_may_be_initialized_again(first, then):
    """As in programs that call initialize for every fit, with another optimizer."""
    model = linear_net()
    itself = weakref.ref(model)
    model.forward = lambda x: 2 * nn.Sequential.forward(itself(), x)
    model, earlier = initialized(first, model)
    train_step(model, earlier)
    model, optimizer = initialized(then, model)
    losses = []
    for _ in range(8):
        train_step(model, optimizer)
        losses.append(loss_of(model).item())
    assert losses[-1] < losses[0] and type(model).__mro__.count(AmpModel) == 1
    low = {"O2": torch.float16, "O3": torch.float16, "O5": torch.bfloat16}
    assert model[0].weight.dtype == low.get(then, torch.float32)
    plain = nn.Sequential.forward(model, batch()[0].to(model[0].weight.dtype))
    torch.testing.assert_close(model(batch()[0]).float(), 2 * plain.float(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_model_around_one_of_o1(level):
    inner, earlier = initialized("O1", linear_net())
    outer, optimizer = initialized(level, nn.Sequential(inner, nn.Softplus()))
    train_step(outer, optimizer)
    assert inner[0].weight.dtype == (torch.float32 if level == "O1" else torch.float16)
    del earlier


def test_a_model_that_knows_its_parent():
    model = Net()
    model.last.__dict__["parent"] = model
    amp.initialize(model, opt_level="O2", verbosity=0)
    other = copy.deepcopy(model)
    assert other.last.parent is other


def test_replicas_run_their_own_forward():
    model, _ = initialized("O2", linear_net())
    replica = model._replicate_for_data_parallel()
    first, relu, last = (module._replicate_for_data_parallel() for module in model)
    first.weight, first.bias = torch.zeros_like(model[0].weight), torch.zeros_like(model[0].bias)
    last.weight, last.bias = model[2].weight, model[2].bias
    replica._modules = {"0": first, "1": relu, "2": last}
    x, _ = batch()
    bias_only = model[2](torch.zeros(16, 8).half()).float()
    assert torch.equal(replica(x), bias_only) and not torch.equal(model(x), bias_only)


def test_hooks_and_keywords():
    class Named(nn.Linear):
        def forward(self, *, x, mask=None):
            return {"y": super().forward(x), "mask": mask}

    seen = []
    model = amp.initialize(Named(4, 2), opt_level="O2", verbosity=0)
    model.register_forward_hook(lambda module, args, outputs: seen.append(outputs["y"].dtype))
    outputs = model(x=torch.ones(1, 4), mask=torch.ones(1, dtype=torch.bool))
    assert outputs["mask"].dtype == torch.bool and outputs["y"].dtype == torch.float32
    assert seen == [torch.float32]


def test_traced_after_initialize():
    model, _ = initialized("O2", linear_net())
    x, _ = batch()
    traced = torch.jit.trace(model, x)
    assert torch.equal(traced(x), model(x))


@pytest.mark.parametrize("level", LEVELS)
def test_scripted_after_initialize(level):
    model, _ = initialized(level, linear_net())
    message = (
        "torch.jit.script: expected a model that is not of amp, got one that initialize returned, "
        "whose forward it cannot read; use torch.compile, torch.jit.trace, or "
        "torch.export.export"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        torch.jit.script(model)


@pytest.mark.parametrize("level", LEVELS)
def test_spectral_norm(level):
    net = linear_net()
    nn.utils.parametrizations.spectral_norm(net[0])
    model, optimizer = initialized(level, net)
    before = net[2].weight.detach().clone()
    train_step(model, optimizer)
    assert net[2].weight.isfinite().all() and not torch.equal(net[2].weight, before)


def test_swap_tensors_works_once_released():
    """torch refuses to swap a tensor that others hold."""
    model, _ = initialized("O2", Net())
    weight = model.first.weight
    with pytest.raises(RuntimeError, match="use_count|weakref"):
        torch.utils.swap_tensors(weight, nn.Parameter(torch.ones_like(weight)))
    amp.release(model)
    torch.utils.swap_tensors(weight, nn.Parameter(torch.ones_like(weight)))
    assert weight.eq(1).all()


@pytest.mark.parametrize("level", LEVELS)
def test_a_model_that_was_on_meta(level):
    with torch.device("meta"):
        model = Net()
    model.to_empty(device="cpu")
    model.load_state_dict(Net().state_dict())
    model, optimizer = initialized(level, model)
    before = [param.detach().clone() for param in model.parameters()]
    train_step(model, optimizer)
    assert not all(map(torch.equal, before, model.parameters()))
