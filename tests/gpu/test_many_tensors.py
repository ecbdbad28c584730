"""More tensors than one launch's parameter has room for: all are processed, every time."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from amp_run import AmpRun
from on_card import CARD, CPU, assert_same_bits, captured, needs_card
from own_kernels import needs_own_kernels
from step_case import ALGORITHMS, StepCase, small_sizes

from torchamp import ops

pytestmark = [needs_card, needs_own_kernels]

#: Several launches of every kernel, if tables are passed in parameters.
COUNT = 1600
#: The same for steps, whose tables have up to 818 tensors.
STEPPED = 850
#: Around the ends of launches over one list, which take up to 1,365 tensors, and over two, which
#: take up to 1,023.
PLACES = [0, 1, 680, 681, *range(1000, 1026), 1280, *range(1340, 1368), COUNT - 1]

#: Ops that find non-finite values in the first list.
OPS = {
    "check": lambda lists, *flags: ops.check(lists[0], *flags),
    "check_l2norm": lambda lists, *flags: ops.check_l2norm(lists[0], *flags),
    "scale": lambda lists, *flags: ops.scale(*lists[:2], 0.5, *flags),
    "unscale": lambda lists, found_inf, each: ops.unscale(
        *lists[:2], torch.ones((), device=found_inf.device), found_inf, False, each
    ),
    "axpby": lambda lists, found_inf, each: ops.axpby(
        1.0, lists[0], 1.0, lists[1], lists[2], found_inf, found_inf_per_tensor=each
    ),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_thousand_steps_equal_the_cpus(name):
    def after_a_thousand_steps(device):
        case = StepCase(ALGORITHMS[name], small_sizes(STEPPED), device)
        factor, skip = torch.tensor(0.25, device=device), torch.zeros((), device=device)
        for _ in range(1000):
            case.step(grad_factor=factor, skip=skip)
        return case.written()

    expected = after_a_thousand_steps(CPU)
    assert all(tensor.isfinite().all() for tensor in expected)
    assert_same_bits(after_a_thousand_steps(CARD), expected)


def lists_of(device: torch.device) -> list[list[torch.Tensor]]:
    return [
        [torch.ones(5, dtype=torch.float16, device=device) for _ in range(COUNT)] for _ in "xyz"
    ]


@pytest.mark.parametrize("is_captured, bad", [(False, torch.inf), (True, torch.nan)])
@pytest.mark.parametrize("name", OPS)
def test_what_is_not_finite_is_found_anywhere(name, is_captured, bad):
    """By calls, and by replays of a graph."""
    lists = lists_of(CARD)
    found_inf = torch.zeros((), device=CARD)
    each = torch.zeros(COUNT, dtype=torch.uint8, device=CARD)
    call = partial(OPS[name], lists, found_inf, each)
    run = captured(call).replay if is_captured else call
    for place in PLACES:
        run()
        assert found_inf == 0 and not each.any()
        lists[0][place][3] = bad
        run()
        assert found_inf == 1 and each.nonzero().tolist() == [[place]]
        lists[0][place][3] = 1
        for flags in (found_inf, each):
            flags.zero_()


def test_an_overflow_anywhere_skips_the_step_and_is_named(heard):
    sizes = small_sizes(COUNT)
    run = AmpRun(CARD, sizes)
    grads = [torch.ones(size, dtype=torch.float16, device=CARD) for size in sizes]
    run.step(grads)
    for place in (0, 1016, 1017, 1360, COUNT - 1):
        before = [param.detach().clone() for param in run.model.parameters()]
        grads[place][0] = torch.inf
        run.step(grads)
        grads[place][0] = 1
        assert_same_bits(list(run.model.parameters()), before)
        run.optimizer.zero_grad()
        torch.cuda.synchronize()
        run.step(grads)
        assert f"at weights.{place}: step skipped" in heard.take()
        assert not torch.equal(run.model.weights[place], before[place])
