"""O1 and O4: casts op by op, in this thread, from initialize until closed."""

import pytest
import torch
from nets import LEVELS, Net, batch, initialized, linear_net, loss_of, train_step
from torch import nn

from torchamp import Amp, amp

DTYPES = {"O1": torch.float16, "O4": torch.bfloat16}


def is_on() -> bool:
    return torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("level", DTYPES)
def test_it_is_on_outside_of_forward_too(level):
    model, _ = initialized(level)
    weight = torch.randn(3, 3)
    assert (weight @ weight).dtype == nn.functional.linear(weight, weight).dtype == DTYPES[level]
    low = weight.to(DTYPES[level])
    assert nn.functional.mse_loss(low, low).dtype == torch.float32
    assert not torch.is_autocast_cache_enabled()


def test_close():
    model = Net()
    with Amp(model, opt_level="O1", verbosity=0) as owner:
        assert is_on()
    assert not is_on()
    owner.close()
    with torch.no_grad():
        assert model(batch()[0]).dtype == torch.float32


def test_other_levels_are_shielded():
    keeper = initialized("O1")
    inside = []
    model, optimizer = initialized("O0", linear_net())
    model[0].register_forward_hook(lambda module, args, out: inside.append(out.dtype))
    outputs = model(batch()[0])
    assert inside == [torch.float32] and outputs.dtype == torch.float32
    assert is_on(), "the shield was taken down too late"
    train_step(model, optimizer)
    del keeper


@pytest.mark.parametrize("level", LEVELS)
def test_backward_runs_without_it(level):
    seen = []
    model, optimizer = initialized(level)
    keeper = initialized("O1") if level != "O4" else None
    loss = loss_of(model)
    loss.register_hook(lambda grad: seen.append(is_on()))
    amp.scale_loss(loss, optimizer).backward()
    assert seen == [False] and is_on()
    del keeper


def test_disable_casts():
    model, _ = initialized("O1")
    weight = torch.randn(3, 3)
    with amp.disable_casts():
        assert (weight @ weight).dtype == torch.float32
        with amp.disable_casts():
            pass
        assert (weight @ weight).dtype == torch.float32, "an inner one turned it on again"
    assert (weight @ weight).dtype == torch.float16
    with pytest.raises(KeyError), amp.disable_casts():
        raise KeyError
    assert is_on()


def test_weights_edited_in_place_are_not_served_from_a_cache():
    model, _ = initialized("O1", linear_net())
    x, _ = batch()
    with torch.no_grad():
        before = model(x)
        model[2].bias.add_(1)
        model[0].weight.mul_(2)
        assert not torch.equal(model(x), before + 1)
