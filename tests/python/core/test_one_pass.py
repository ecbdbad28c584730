"""Masters stepped without materialized grads: the same numbers as with them, and no visible
difference."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch
from nets import (
    MASTER_LEVELS,
    Net,
    backward,
    changed,
    everything,
    initialized,
    linear_net,
    loss_of,
    overflow_at,
    own_masters,
    train_step,
)

from torchamp import amp, ops, optimizers

MAKERS = {
    "adamw": lambda model: optimizers.FusedAdamW(model.parameters(), 0.01, eps=1e-4),
    "sgd": lambda model: optimizers.FusedSGD(model.parameters(), 0.1, 0.5),
    "plain_sgd": lambda model: optimizers.FusedSGD(model.parameters(), 0.1),
    "adagrad": lambda model: optimizers.FusedAdagrad(model.parameters()),
    "lars": lambda model: optimizers.FusedLARS(model.parameters(), 0.1),
    "novograd": lambda model: optimizers.FusedNovoGrad(model.parameters()),
    "lamb": lambda model: optimizers.FusedLAMB(model.parameters()),
}


def pair(level, name="adamw", model=Net, **options):
    """The same training twice: without master grads, and with them."""
    net = model()
    lazy = initialized(level, copy.deepcopy(net), MAKERS[name], **options)
    eager = initialized(level, copy.deepcopy(net), MAKERS[name], **options)
    list(amp.master_params(eager[1]))
    return lazy, eager


def snapshot(model, optimizer):
    """everything(), which does not count as an access."""
    with optimizer._torchamp.accesses.suppress():
        return everything(model, optimizer)


def test_materialized_grads_are_an_option():
    model, optimizer = initialized("O2", Net(), MAKERS["adamw"], materialize_master_grads=True)
    backward(model, optimizer)
    assert all(master.grad is not None for master in own_masters(optimizer))


def assert_same(lazy, eager):
    assert not changed(snapshot(*lazy), snapshot(*eager))


def assert_close(lazy, eager):
    torch.testing.assert_close(snapshot(*lazy), snapshot(*eager), rtol=1e-3, atol=1e-5)


def has_master_grads(optimizer) -> bool:
    """Does not count as an access."""
    with optimizer._torchamp.accesses.suppress():
        return any(master.grad is not None for master in own_masters(optimizer))


@pytest.mark.parametrize("level", MASTER_LEVELS)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("loss_scale", ["dynamic", 64.0])
def test_the_same_numbers(level, name, loss_scale):
    lazy, eager = pair(level, name, loss_scale=loss_scale)
    for step in range(5):
        for model, optimizer in (lazy, eager):
            optimizer.zero_grad()
            backward(model, optimizer, step)
        assert not has_master_grads(lazy[1]) and has_master_grads(eager[1])
        for _, optimizer in (lazy, eager):
            optimizer.step()
        assert_same(lazy, eager)


@pytest.mark.parametrize("level", MASTER_LEVELS)
@pytest.mark.parametrize("name", MAKERS)
def test_an_overflow_skips(level, name):
    model, optimizer = initialized(level, Net(), MAKERS[name], loss_scale="dynamic")
    train_step(model, optimizer)
    before = snapshot(model, optimizer)
    with overflow_at(model.first.weight):
        train_step(model, optimizer, 1)
    assert not changed(before, snapshot(model, optimizer))
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 32768
    train_step(model, optimizer, 2)
    assert changed(before, snapshot(model, optimizer))


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_a_step_uses_grads_up(level):
    lazy, eager = pair(level)
    for step in range(3):
        for model, optimizer in (lazy, eager):
            backward(model, optimizer, step)  # without zero_grad
            optimizer.step()
        assert not has_master_grads(lazy[1])
        assert_same(lazy, eager)


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="torch has no grad_dtype")
@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_grads_that_add_up_in_float32(level):
    """Grads of one scale: a 16-bit sum loses what float32 keeps."""

    def gradient_of(dtype):
        weight = torch.nn.Parameter(torch.ones(1))
        model = torch.nn.Module()
        model.weight = weight
        made = lambda model: optimizers.FusedSGD(model.parameters(), 1.0)  # noqa: E731
        model, optimizer = initialized(level, model, made, loss_scale=1.0)
        weight.grad_dtype = dtype
        for micro_batch in range(3):
            loss = (model.weight.float() * (2.0**12 if micro_batch == 0 else 0.75)).sum()
            with amp.scale_loss(loss, optimizer, delay_unscale=micro_batch < 2) as scaled_loss:
                scaled_loss.backward()
        return next(amp.master_params(optimizer)).grad.item()

    assert gradient_of(torch.float32) == 2.0**12 + 1.5
    assert gradient_of(None) != 2.0**12 + 1.5


def filled(values, others):
    """The list, with what a slice assignment reads of the other one, in C."""
    values[:] = others
    return values


WAYS_TO_MASTERS = {
    "master_params": lambda optimizer: list(amp.master_params(optimizer)),
    "groups": lambda optimizer: [p for g in optimizer.param_groups for p in g["params"]],
    "chain": lambda optimizer: list(
        itertools.chain(*(g["params"] for g in optimizer.param_groups))
    ),
    "index": lambda optimizer: [
        g["params"][i] for g in optimizer.param_groups for i in range(len(g["params"]))
    ],
    "slice": lambda optimizer: optimizer.param_groups[0]["params"][:],
    "copy": lambda optimizer: optimizer.param_groups[0]["params"].copy(),
    "sum": lambda optimizer: optimizer.param_groups[0]["params"] + [],
    "sum_of_lists": lambda optimizer: sum((g["params"] for g in optimizer.param_groups), []),
    "reversed": lambda optimizer: list(reversed(optimizer.param_groups[0]["params"]))[::-1],
    "star": lambda optimizer: [*optimizer.param_groups[0]["params"]],
    "multiple": lambda optimizer: optimizer.param_groups[0]["params"] * 1,
    "slice_assignment": lambda optimizer: filled([], optimizer.param_groups[0]["params"]),
}


@pytest.mark.parametrize("way", WAYS_TO_MASTERS)
def test_every_access_finds_unscaled_grads(way):
    model, optimizer = initialized("O2", Net(), MAKERS["adamw"], loss_scale=64.0)
    backward(model, optimizer)
    expected = [
        param.grad.float() / 64 if param.dtype == torch.float16 else param.grad
        for param in model.parameters()
    ]
    for master, grad in zip(WAYS_TO_MASTERS[way](optimizer), expected):
        assert torch.equal(master.grad, grad)


@pytest.mark.parametrize("way", WAYS_TO_MASTERS)
def test_references_that_were_kept_stay_right(way):
    model, optimizer = initialized("O2", Net(), MAKERS["adamw"], loss_scale=64.0)
    kept = WAYS_TO_MASTERS[way](optimizer)
    for step in range(2):
        optimizer.zero_grad()
        backward(model, optimizer, step)
        assert kept[0].grad is not None and kept[0].grad is model.first.weight.grad
        optimizer.step()


def params_of(optimizer):
    """The list itself, without a look at what is in it."""
    return optimizer.param_groups[0]["params"]


#: Ways to the masters past the methods of their list: torch's functions read lists in C.
READERS = {
    "norm": lambda optimizer: torch._foreach_norm(params_of(optimizer)),
    "by name": lambda optimizer: torch._foreach_abs(self=params_of(optimizer)),
    "two lists": lambda optimizer: torch._foreach_sub(params_of(optimizer), params_of(optimizer)),
    "torchamp's ops": lambda optimizer: [ops.l2norm(params_of(optimizer))[0]],
    "keys of the state": lambda optimizer: [param.sum() for param in optimizer.state],
}


@pytest.mark.parametrize("level", MASTER_LEVELS)
@pytest.mark.parametrize("way", READERS)
def test_torch_s_functions_access_masters(level, way):
    lazy, eager = pair(level)
    for model, optimizer in (lazy, eager):
        train_step(model, optimizer)
    found, expected = (READERS[way](optimizer) for _, optimizer in (lazy, eager))
    assert all(map(torch.equal, found, expected))
    assert not lazy[1]._torchamp.core.lazy
    assert all(type(master) is torch.Tensor for master in own_masters(lazy[1]))


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_torch_s_functions_write_masters(level):
    lazy, eager = pair(level)
    for step in range(2):
        for model, optimizer in (lazy, eager):
            optimizer.zero_grad()
            backward(model, optimizer, step)
            with torch.no_grad():
                torch._foreach_mul_(params_of(optimizer), 0.5)
            optimizer.step()
    assert_same(lazy, eager)


def test_torchamps_own_accesses_do_not_count():
    model, optimizer = initialized("O2", Net(), MAKERS["adamw"])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for step in range(2):
        train_step(model, optimizer, step)
        scheduler.step()
        optimizer.load_state_dict(optimizer.state_dict())
        amp.clip_grad_norm_(optimizer, 1.0)
        repr(optimizer)
        assert len(optimizer.param_groups[0]["params"]) == len(list(model.parameters()))
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2).half())]})
    train_step(model, optimizer)
    assert optimizer._torchamp.core.lazy


def test_copies_have_plain_lists():
    _, optimizer = initialized("O2", Net(), MAKERS["adamw"])
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(other.param_groups[0]["params"]) is list


def test_model_grads_must_stay_as_they_are():
    model, optimizer = initialized("O2", Net(), MAKERS["adamw"])
    backward(model, optimizer)
    before = snapshot(model, optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with pytest.raises(RuntimeError, match="clip with amp.clip_grad_norm_"):
        optimizer.step()
    assert not changed(before, snapshot(model, optimizer))


def test_sparse_grads_are_materialized_and_refused():
    model = torch.nn.Sequential(torch.nn.Embedding(5, 4, sparse=True), torch.nn.Linear(4, 3))
    model, optimizer = initialized("O2", model, MAKERS["adamw"], loss_scale=64.0)
    with amp.scale_loss(model(torch.tensor([1, 2])).float().sum(), optimizer) as scaled_loss:
        scaled_loss.backward()
    assert has_master_grads(optimizer)
    with pytest.raises(TypeError, match="to be dense"):
        optimizer.step()


@pytest.mark.parametrize("level", MASTER_LEVELS)
@pytest.mark.parametrize("name", MAKERS)
def test_clipping_without_master_grads(level, name):
    lazy, eager = pair(level, name)
    for step in range(3):
        norms = []
        for model, optimizer in (lazy, eager):
            optimizer.zero_grad()
            backward(model, optimizer, step)
            norms.append(amp.clip_grad_norm_(optimizer, 0.05))
            optimizer.step()
        torch.testing.assert_close(*norms)
        assert_close(lazy, eager)
    assert lazy[1]._torchamp.core.lazy


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_clipping_where_only_batch_norm_s_grads_add_up(level):
    norms = []
    for model, optimizer in pair(level):
        for seed in range(3):
            backward(model, optimizer, seed)
            norms.append(amp.clip_grad_norm_(optimizer, 0.05))
            optimizer.step()
    torch.testing.assert_close(norms[:3], norms[3:], rtol=1e-3, atol=0)


def test_clipping_several_optimizers_together():
    models = [linear_net(), linear_net()]
    made = [MAKERS["adamw"](models[0]), torch.optim.SGD(models[1].parameters(), 0.1)]
    amp.initialize(models, made, opt_level="O2", verbosity=0)
    loss = loss_of(models[0]) + loss_of(models[1])
    with amp.scale_loss(loss, made) as scaled_loss:
        scaled_loss.backward()
    norm = amp.clip_grad_norm_(made, 0.01)
    grads = [p.grad for each in made for p in amp.master_params(each)]
    assert norm > 0.01
    torch.testing.assert_close(torch.cat([g.flatten() for g in grads]).norm().item(), 0.01)


@pytest.mark.parametrize("norm_type", [1.0, 2.0])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_the_norm_where_another_s_grads_skip_the_step_is_not_finite(level, name, norm_type):
    models = [linear_net(), linear_net()]
    made = [MAKERS[name](model) for model in models]
    amp.initialize(models, made, opt_level=level, loss_scale="dynamic", verbosity=0)
    loss = loss_of(models[0]) + loss_of(models[1])
    with overflow_at(models[0][0].bias), amp.scale_loss(loss, made) as scaled_loss:
        scaled_loss.backward()
    assert not amp.clip_grad_norm_(made[1], 1.0, norm_type).isfinite()
    before = models[1][0].weight.detach().clone()
    made[1].step()
    assert torch.equal(models[1][0].weight, before)


@pytest.mark.parametrize("norm_type", [1.0, float("inf")])
def test_clipping_by_other_norms(norm_type):
    model, optimizer = initialized("O2", Net(), MAKERS["adamw"])
    backward(model, optimizer)
    amp.clip_grad_norm_(optimizer, 0.01, norm_type)
    grads = torch.cat([p.grad.flatten() for p in amp.master_params(optimizer)])
    torch.testing.assert_close(grads.norm(norm_type).item(), 0.01, rtol=1e-4, atol=0)


def test_clipping_by_value():
    model, optimizer = initialized("O2", Net(), MAKERS["adamw"])
    backward(model, optimizer)
    amp.clip_grad_value_(optimizer, 0.001)
    assert optimizer._torchamp.core.lazy
    for master in amp.master_params(optimizer):
        assert master.grad.abs().max() <= 0.001


def test_clipping_when_disabled():
    model, optimizer = initialized("O2", Net(), MAKERS["adamw"], enabled=False)
    loss_of(model).backward()
    amp.clip_grad_norm_(optimizer, 0.01)
    grads = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(grads.norm().item(), 0.01, rtol=1e-4, atol=0)
