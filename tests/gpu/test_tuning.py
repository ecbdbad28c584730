"""The tuning of launches does not change results."""

from __future__ import annotations

import functools

import pytest
import torch
from amp_run import AmpRun
from on_card import CARD, CPU, assert_same_bits, needs_card, tuned
from own_kernels import needs_own_kernels
from step_case import ALGORITHMS, StepCase, small_sizes

from torchamp import amp, ops
from torchamp._load import _C

pytestmark = [needs_card, needs_own_kernels]

CHOICES = [(name, value) for name, values in _C.tuning_choices().items() for value in values]

tunings = pytest.mark.parametrize("name, value", CHOICES, ids=lambda choice: str(choice))

#: Tables for each way of passing them, tensors of several units, and misaligned tensors.
PLANS = {
    "few": [1, 7, 2048, 2049, 8192, 20_001],
    "some": small_sizes(200),
    "many": small_sizes(1600),
    "large": [600_001, 5, 300_000],
}


@functools.cache
def steps_on(device: torch.device, algorithm: str, plan: str) -> list[torch.Tensor]:
    return steps_anew(device, algorithm, plan)


def steps_anew(device: torch.device, algorithm: str, plan: str) -> list[torch.Tensor]:
    def arranged(number, i, tensor):
        """The grad of every third position starts at an odd address."""
        return torch.cat([tensor[:1], tensor])[1:] if number == 0 and i % 3 == 1 else tensor

    case = StepCase(ALGORITHMS[algorithm], PLANS[plan], device, arranged)
    for _ in range(10):
        case.step()
    return case.written()


@tunings
@pytest.mark.parametrize("plan", PLANS)
def test_steps(name, value, plan):
    for algorithm in ("adam", "ams_grad", "sgd", "novo_grad"):
        with tuned(**{name: value}):
            got = steps_anew(CARD, algorithm, plan)
        assert_same_bits(got, steps_on(CPU, algorithm, plan))


def iterations_on(device: torch.device, plan: str) -> list[torch.Tensor]:
    """Back-to-back checks and steps, one of which is skipped."""
    sizes = PLANS[plan]
    run = AmpRun(device, sizes)
    generator = torch.Generator().manual_seed(5)
    grads = [torch.randn(size, generator=generator).half().to(device) for size in sizes]
    for step in range(6):
        grads[-1][0] = torch.inf if step == 2 else 1.0
        run.step(grads)
    scale = torch.tensor(amp.state_dict()["loss_scaler0"]["loss_scale"], device=device)
    return [*run.written(), scale]


@functools.cache
def expected_iterations(plan: str) -> list[torch.Tensor]:
    return iterations_on(CPU, plan)


@tunings
@pytest.mark.parametrize("plan", PLANS)
def test_iterations(name, value, plan):
    with tuned(**{name: value}):
        assert_same_bits(iterations_on(CARD, plan), expected_iterations(plan))


@tunings
def test_norms_are_near(name, value):
    tensors = [torch.full((size,), 0.5, device=CARD) for size in PLANS["large"]]
    found_inf = torch.zeros((), device=CARD)
    exact = (0.25 * sum(PLANS["large"])) ** 0.5
    with tuned(**{name: value}):
        norms = [ops.l2norm(tensors)[0], ops.check_l2norm(tensors, found_inf)]
    assert [norm.item() for norm in norms] == pytest.approx([exact, exact], rel=1e-6)


@tunings
def test_every_way_finds_an_inf(name, value):
    tensors = [torch.ones(size, dtype=torch.float16, device=CARD) for size in PLANS["many"]]
    with tuned(**{name: value}):
        for place in (0, 777, len(tensors) - 1):
            tensors[place][-1] = torch.inf
            found_inf = torch.zeros((), device=CARD)
            ops.check(tensors, found_inf)
            assert found_inf == 1
            tensors[place][-1] = 1
