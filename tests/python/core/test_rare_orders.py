"""Orders of events that drawn programs seldom have: overflows, edits of groups, two optimizers."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from torchamp import amp


class Two(nn.Module):
    """Parameters that losses take one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.ones(2)) for _ in range(3))


def sgd_of(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([param for model in models for param in model.parameters()], 0.5)


def initialized(*models: nn.Module, **options):
    """The models with an optimizer each."""
    optimizers = [sgd_of(model) for model in models]
    amp.initialize([*models], optimizers, opt_level="O2", verbosity=0, **options)
    return optimizers


def backward(loss: torch.Tensor, *optimizers: torch.optim.Optimizer) -> None:
    amp.scale_loss(loss, [*optimizers]).backward()


def total(param: torch.Tensor) -> torch.Tensor:
    return param.float().sum()


def overflow(param: torch.Tensor) -> torch.Tensor:
    """A finite loss whose grads are not, in float16."""
    return (param.float() * 1e30).sum()


def remove(optimizer: torch.optim.Optimizer, param: torch.Tensor) -> None:
    group = optimizer.param_groups[0]
    group["params"] = [each for each in group["params"] if each is not param]


def is_untouched(param: torch.Tensor) -> bool:
    return torch.equal(param.detach().float(), torch.ones(2))


def test_an_overflow_outlasts_a_later_backward_and_an_edit():
    """Of a parameter that stays in the groups."""
    model = Two()
    (optimizer,) = initialized(model)
    backward(overflow(model.a), optimizer)
    backward(total(model.b), optimizer)
    remove(optimizer, model.c)
    optimizer.step()
    assert is_untouched(model.a) and is_untouched(model.b)


def test_an_overflow_of_a_removed_parameter_skips_nothing_after_a_shared_backward():
    one, other = Two(), Two()
    first, second = initialized(one, other)
    backward(total(one.a) + total(other.a), first, second)
    for optimizer in (first, second):
        optimizer.step()
        optimizer.zero_grad()
    backward(overflow(one.a) + total(one.b), first)
    remove(first, one.a)
    first.step()
    assert not is_untouched(one.b)


def test_float32_params_show_what_the_model_was_given_before():
    model = Two()
    initialized(model)
    with torch.no_grad():
        model.a.fill_(3.0)
    with amp.float32_params(model):
        assert model.a.tolist() == [3.0, 3.0]
    assert model.a.tolist() == [3.0, 3.0]


def test_a_backward_in_a_worker_thread_leaves_strays_to_an_optimizer_that_steps_there():
    models = Two(), Two()
    (first,), (second,) = (initialized(model) for model in models)
    errors: list[str] = []

    def work() -> None:
        backward(total(models[1].b), second)
        second.step()
        second.zero_grad()
        backward(total(models[0].a) + total(models[1].a), first)
        with pytest.raises(RuntimeError) as raised:
            second.step()
        errors.append(str(raised.value))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(errors) == 1 and errors[0].startswith("step: expected ")
    assert is_untouched(models[1].a)


def test_zeroing_another_models_grads_applies_no_overflow():
    """What a step then does is left open, but it applies no grad that is not finite."""
    models = Two(), Two()
    optimizer = sgd_of(*models)
    amp.initialize([*models], optimizer, opt_level="O2", verbosity=0)
    backward(overflow(models[0].a) + total(models[1].a), optimizer)
    models[1].zero_grad()
    optimizer.step()
    assert all(bool(param.isfinite().all()) for model in models for param in model.parameters())
