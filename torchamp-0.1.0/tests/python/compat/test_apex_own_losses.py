"""Several models, optimizers and losses, an overflow at every place of every iteration."""

import dataclasses
import math

import pytest
import torch
from apex import amp
from apex.amp import _amp_state
from plain_masters import MAKERS, ZERO, Plain, Weights, same

X = torch.ones(2)
SCALES = [4.0, 16.0]
DYNAMIC = ["O1", "O2"]
OPTIONS = [{"momentum": 0.45}, {"momentum": 0.3}]
RATES = [0.03, 0.11, 0.07]


@dataclasses.dataclass
class Plan:
    #: the models of each optimizer
    owned: list[tuple]
    #: the models of each loss
    summed: list[tuple]
    #: the optimizers that each loss is scaled for
    scaled: list[tuple]


PLANS = {
    "two models, one optimizer": Plan([(0, 1)], [(0,), (1,)], [(0,), (0,)]),
    "three models, one optimizer": Plan([(0, 1, 2)], [(0, 2), (1, 2)], [(0,), (0,)]),
    "two models, two optimizers": Plan([(0,), (1,)], [(0,), (1,)], [(0,), (1,)]),
    "three models, two optimizers": Plan([(0, 1), (2,)], [(0, 1), (2, 1)], [(0,), (0, 1)]),
}


def low_dtype(level):
    return torch.bfloat16 if level in ("O4", "O5") else torch.float16


def models_of(plan, level):
    count = 1 + max(max(owned) for owned in plan.owned)
    return [Weights(1.0 + i, low_dtype(level)) for i in range(count)]


def groups_of(plan, models):
    """The parameter groups of each optimizer."""
    return [
        [{"params": models[i].parameters(), "lr": RATES[i]} for i in owned] for owned in plan.owned
    ]


def losses_of(plan, models):
    return [sum(models[i](X) for i in summed) for summed in plan.summed]


def overflows_of(plan, level):
    """(iteration, loss, model, weight), or None for a run without an overflow."""
    yield None
    for iteration in (0, 1) if level in DYNAMIC else ():
        for loss, summed in enumerate(plan.summed):
            for model in summed:
                yield from ((iteration, loss, model, weight) for weight in ("full", "low"))


def by_hand(plan, make, level, overflow):
    """The grads of each iteration and the masters at the end."""
    models = models_of(plan, level)
    optimizers = [
        Plain(make, groups, level in ("O2", "O5"), **options)
        for groups, options in zip(groups_of(plan, models), OPTIONS)
    ]
    grads = []
    for iteration in range(3):
        losses = losses_of(plan, models)
        grads.append([grad for o in optimizers for grad in o.collect(losses)])
        skipped = plan.scaled[overflow[1]] if overflow and overflow[0] == iteration else ()
        for i, optimizer in enumerate(optimizers):
            if i not in skipped:
                optimizer.step()
    return grads, [master.detach() for o in optimizers for _, master in o.pairs]


def by_amp(plan, make, level, zero, scalers, overflow, monkeypatch):
    models = models_of(plan, level)
    optimizers = [
        make(groups, **options) for groups, options in zip(groups_of(plan, models), OPTIONS)
    ]
    monkeypatch.setattr(_amp_state, "allow_incoming_model_not_fp32", True)
    models, optimizers = amp.initialize(
        models,
        optimizers,
        opt_level=level,
        cast_model_type=False,
        num_losses=scalers,
        verbosity=0,
    )
    for scaler, scale in zip(_amp_state.loss_scalers, SCALES):
        scaler._loss_scale = scale
    grads = []
    for iteration in range(3):
        zero(models, optimizers)
        for i, loss in enumerate(losses_of(plan, models)):
            listed = [optimizers[j] for j in plan.scaled[i]]
            with amp.scale_loss(loss, listed, loss_id=min(i, scalers - 1)) as scaled_loss:
                scaled_loss.backward()
                if overflow and overflow[:2] == (iteration, i):
                    getattr(models[overflow[2]], overflow[3]).grad[0] = math.inf
        masters = [p for o in optimizers for p in amp.master_params(o)]
        grads.append([None if p.grad is None else p.grad.clone() for p in masters])
        for optimizer in optimizers:
            optimizer.step()
    masters = [p.detach() for o in optimizers for p in amp.master_params(o)]
    params = [p for owned in plan.owned for i in owned for p in models[i].parameters()]
    for param, master in zip(params, masters):
        assert same(param, master.to(param.dtype))
    return grads, masters, [scaler.loss_scale() for scaler in _amp_state.loss_scalers]


@pytest.mark.parametrize("zero", ZERO)
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3", "O4", "O5"])
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("plan", PLANS)
def test_an_overflow_skips_the_optimizers_of_its_loss_alone(plan, make, level, zero, monkeypatch):
    plan, make = PLANS[plan], MAKERS[make]
    for overflow in overflows_of(plan, level):
        expected_grads, expected = by_hand(plan, make, level, overflow)
        for scalers in (1, 2):
            grads, masters, scales = by_amp(
                plan, make, level, ZERO[zero], scalers, overflow, monkeypatch
            )
            for iteration in range(3):
                if overflow is None or overflow[0] != iteration:
                    for got, wanted in zip(grads[iteration], expected_grads[iteration]):
                        assert same(got, wanted), (overflow, scalers, iteration)
            for got, wanted in zip(masters, expected):
                assert same(got, wanted), (overflow, scalers)
            halved = None if overflow is None else min(overflow[1], scalers - 1)
            assert scales == [
                scale / 2 if i == halved else scale for i, scale in enumerate(SCALES[:scalers])
            ]
