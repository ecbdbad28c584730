"""Stage 7: steps and skipped steps."""

from __future__ import annotations

import copy

import pytest
import torch
from nets import (
    Net,
    adam,
    backward,
    changed,
    everything,
    initialized,
    linear_net,
    loss_of,
    overflow_at,
    sgd,
    train_step,
    warned,
)

from torchamp import amp, optimizers

DYNAMIC = {"O0": {"loss_scale": "dynamic"}, "O1": {}, "O2": {}, "O5": {"loss_scale": "dynamic"}}
OPTIMIZERS = {
    "SGD": sgd,
    "SGD fused": lambda m: sgd(m, fused=True),
    "SGD dampened": lambda m: sgd(m, dampening=0.25),
    "SGD dampened fused": lambda m: sgd(m, dampening=0.25, fused=True),
    "Adam": adam,
    "Adam fused": lambda m: adam(m, fused=True),
    "AdamW fused": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, fused=True),
    "Adagrad fused": lambda m: torch.optim.Adagrad(  # which torch has fused on the CPU alone
        m.parameters(), lr=0.01, fused=next(m.parameters()).is_cpu
    ),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("level", DYNAMIC)
def test_a_skipped_step_changes_nothing(device, level, name):
    model, optimizer = initialized(level, Net(), OPTIMIZERS[name], device, **DYNAMIC[level])
    train_step(model, optimizer)
    before = everything(model, optimizer)
    optimizer.zero_grad()
    with overflow_at(model.norm.bias):
        backward(model, optimizer)
    assert optimizer.step() is None
    assert changed(before, everything(model, optimizer)) == set()
    train_step(model, optimizer)
    assert changed(before, everything(model, optimizer)) != set(), "the next one is not skipped"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_first_step_leaves_no_trace(name):
    """torch's fused SGD leaves its momentum uninitialised there."""

    def run(overflow_first: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(5)
        options = {"loss_scale": "dynamic"}
        model, optimizer = initialized("O0", linear_net(), OPTIMIZERS[name], **options)
        if overflow_first:
            with overflow_at(model[0].weight):
                backward(model, optimizer)
            optimizer.step()
        optimizer._torchamp.session.scalers[0].load_state(2.0**16, 0)
        for seed in range(3):
            train_step(model, optimizer, seed)
        return everything(model, optimizer)

    assert changed(run(False), run(True)) == set()


def test_a_fixed_scale_never_skips():
    model, optimizer = initialized("O2", linear_net(), loss_scale=128.0)
    with overflow_at(model[0].weight):
        backward(model, optimizer)
    optimizer.step()
    assert not torch.isfinite(model[0].weight).all()


class GradsOfItsOwn(torch.optim.SGD):
    """Its step drops the first parameter's grad, and gives the others another one."""

    def step(self, closure=None):
        super().step()
        first, *others = self.param_groups[0]["params"]
        first.grad = None
        for param in others:
            param.grad = torch.ones_like(param)


@pytest.mark.parametrize("level", ["O0", "O2", "O5"])
def test_grads_that_a_step_has_dropped_or_replaced_are_not_put_back(level):
    model, optimizer = initialized(
        level, optimizer=lambda m: GradsOfItsOwn(m.parameters(), lr=0.1), loss_scale=8.0
    )
    backward(model, optimizer)
    optimizer.step()
    first, *others = model.parameters()
    assert first.grad is None
    for param in others:
        assert torch.equal(param.grad.float(), torch.ones(param.shape))


@pytest.mark.parametrize("level", DYNAMIC)
def test_grads_that_are_all_zero_are_stepped_in_silence(level, heard):
    model, optimizer = initialized(level, linear_net(), **{**DYNAMIC[level], "verbosity": 1})
    heard.take()
    amp.scale_loss(loss_of(model) * 0, optimizer).backward()
    optimizer.step()
    taken = amp.telemetry(optimizer)
    assert (taken.steps, taken.skipped_steps) == (1, 0) and heard.take() == ""


@pytest.mark.parametrize("clear", ["zero_grad", "step"])
def test_an_overflow_without_grads_is_cleared_by_a_zeroing_and_by_a_step(clear):
    models = [linear_net(), linear_net()]
    both = [sgd(model) for model in models]
    amp.initialize(models, both, opt_level="O2", verbosity=0)
    with overflow_at(models[1][0].weight), amp.scale_loss(loss_of(models[1]), both) as scaled_loss:
        scaled_loss.backward()
    getattr(both[0], clear)()
    before = everything(models[0], both[0])
    backward(models[0], both[0])
    both[0].step()
    assert changed(before, everything(models[0], both[0])) != set()


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_an_overflow_beside_another_optimizer_outlives_a_backward_alone_and_an_edit(level):
    models = [linear_net(), linear_net()]
    both = [sgd(model) for model in models]
    amp.initialize(models, both, opt_level=level, verbosity=0)
    with overflow_at(models[1][0].weight):
        with amp.scale_loss(sum(map(loss_of, models)), both) as scaled_loss:
            scaled_loss.backward()
    backward(models[0], both[0])
    both[0].param_groups[0]["params"].pop()
    before = everything(models[0], both[0])
    both[0].step()
    assert changed(before, everything(models[0], both[0])) == set()


def test_an_overflow_is_cleared_for_all_that_share_the_parameters_whose_grads_are_dropped():
    model = linear_net()
    both = [sgd(model), sgd(model)]
    amp.initialize(model, both, opt_level="O0", loss_scale="dynamic", verbosity=0)
    train_step(model, both[1])
    with overflow_at(model[0].weight):
        backward(model, both[0])
    for param in model.parameters():
        param.grad = None
    backward(model, both[0])
    before = everything(model, both[1])
    both[1].step()
    assert changed(before, everything(model, both[1])) != set()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, optimizers.FusedAdamW])
@pytest.mark.parametrize("level", ["O2", "O5"])
def test_a_compiled_step_steps_masters(level, kind):
    net = linear_net()
    plain, expected = initialized(level, copy.deepcopy(net), lambda m: kind(m.parameters()))
    model, optimizer = initialized(level, net, lambda m: kind(m.parameters()))
    step = torch.compile(optimizer.step, backend="eager")
    for seed in range(2):
        train_step(plain, expected, seed)
        optimizer.zero_grad()
        backward(model, optimizer, seed)
        step()
    assert not changed(everything(plain, expected), everything(model, optimizer))


def test_steps_run_outside_autocast():
    seen = []

    class Watching(torch.optim.SGD):
        def step(self, closure=None):
            seen.append(torch.is_autocast_enabled("cpu"))
            return super().step(closure)

    model, optimizer = initialized("O1", linear_net(), lambda m: Watching(m.parameters(), lr=0.1))
    assert torch.is_autocast_enabled("cpu")
    train_step(model, optimizer)
    assert seen == [False] and torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O5"])
def test_a_first_step_by_grads_that_no_scale_loss_has_scaled_is_told_once(level):
    """Where the loss scale is dynamic."""

    def told(is_scaled: bool, **options) -> list[str]:
        model, optimizer = initialized(level, Net(), **options)
        with warned() as texts:
            if is_scaled:
                train_step(model, optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                loss_of(model).backward()
                optimizer.step()
        return texts

    message = (
        "step: expected a backward in scale_loss before the first step, since the loss scale is "
        "dynamic, got grads of one outside of it, in which small numbers are lost to 16 bits; run "
        "it in scale_loss. If the program scales losses itself, give initialize a loss_scale of 1"
    )
    assert told(False) == [message] * (level in ("O1", "O2"))
    assert told(False, loss_scale=1) == [] and told(True) == []
