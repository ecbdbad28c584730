"""Groups added between two steps, at every level, however a program zeroes and accumulates."""

import pytest
import torch
from apex import amp
from apex.amp import _amp_state
from plain_masters import MAKERS, ZERO, Plain, Weights, same

X = torch.ones(2)
LEVELS = ["O0", "O1", "O2", "O3", "O4", "O5"]


def models_of(level):
    dtype = torch.bfloat16 if level in ("O4", "O5") else torch.float16
    return [Weights(1.0, dtype), Weights(2.0, dtype)]


def group_of(model, lr):
    return {"params": model.parameters(), "lr": lr}


def by_hand(make, level, backwards):
    first, second = models_of(level)
    plain = Plain(make, [group_of(first, 0.03)], level in ("O2", "O5"), momentum=0.45)
    plain.collect([first(X)])
    plain.step()
    plain.add(group_of(second, 0.07))
    for _ in range(2):
        plain.collect([first(X) + second(X)] * backwards)
        plain.step()
    return [master.detach() for _, master in plain.pairs]


def by_amp(make, level, zero, backwards, zero_first):
    first, second = models = models_of(level)
    optimizer = make([group_of(first, 0.03)], momentum=0.45)
    amp.initialize(models, optimizer, opt_level=level, cast_model_type=False, verbosity=0)
    _amp_state.loss_scalers[0]._loss_scale = 4.0

    def backward(loss, times):
        for i in range(times):
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward(retain_graph=i + 1 < times)

    zero(models, [optimizer])
    backward(first(X), 1)
    optimizer.step()
    if zero_first:
        zero(models, [optimizer])
    optimizer.add_param_group(group_of(second, 0.07))
    if not zero_first:
        zero(models, [optimizer])
    backward(first(X) + second(X), backwards)
    optimizer.step()
    zero(models, [optimizer])
    backward(first(X) + second(X), backwards)
    optimizer.step()
    masters = list(amp.master_params(optimizer))
    params = [*first.parameters(), *second.parameters()]
    assert all(same(p, m.to(p.dtype)) for p, m in zip(params, masters))
    return [master.detach() for master in masters]


@pytest.mark.parametrize("zero_first", [True, False])
@pytest.mark.parametrize("backwards", [1, 2])
@pytest.mark.parametrize("zero", ZERO)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("make", MAKERS)
def test_a_group_added_later_trains_as_without_amp(
    make, level, zero, backwards, zero_first, monkeypatch
):
    monkeypatch.setattr(_amp_state, "allow_incoming_model_not_fp32", True)
    expected = by_hand(MAKERS[make], level, backwards)
    got = by_amp(MAKERS[make], level, ZERO[zero], backwards, zero_first)
    assert len(got) == len(expected) == 4
    assert all(same(g, e) for g, e in zip(got, expected))
