"""The number of launches per step: two by default, few for ten thousand tensors."""

from __future__ import annotations

import pytest
import torch
from amp_run import AmpRun
from on_card import CARD, Recording, needs_card
from own_kernels import needs_own_kernels

from torchamp import amp, optimizers

pytestmark = [needs_card, needs_own_kernels]

MAKERS = {
    "adam": lambda params: optimizers.FusedAdam(params),
    "sgd": lambda params: optimizers.FusedSGD(params, 0.1),
    "momentum": lambda params: optimizers.FusedSGD(params, 0.1, 0.9),
}


def grads_of(sizes: list[int]) -> list[torch.Tensor]:
    return [torch.ones(size, dtype=torch.float16, device=CARD) for size in sizes]


def launches_of_a_step(run: AmpRun, grads: list[torch.Tensor]) -> list[str]:
    """The launches from the end of the backward to the end of the iteration."""
    run.optimizer.zero_grad()
    with amp.scale_loss(run.model(), run.optimizer) as scaled_loss:
        scaled_loss.backward()
        for param, grad in zip(run.model.parameters(), grads):
            param.grad = grad
        recording = Recording()
    run.optimizer.step()
    return recording.stop()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    "count, kind", [(4, "_small"), (300, ""), (1600, "_resident")], ids=["few", "some", "many"]
)
def test_two_launches_by_default(name, count, kind):
    sizes = [64] * count
    run, grads = AmpRun(CARD, sizes, MAKERS[name]), grads_of(sizes)
    for _ in range(3):
        run.step(grads)
    expected = [f"torchamp_check{kind}", f"torchamp_step_{name}{kind}"]
    assert launches_of_a_step(run, grads) == expected


def test_ten_thousand_tensors_take_six_at_most():
    sizes = [64] * 10_000
    run = AmpRun(CARD, sizes)
    for _ in range(2):
        run.step(grads_of(sizes))
    grads = grads_of(sizes)
    after_a_move = launches_of_a_step(run, grads)
    assert len(after_a_move) <= 6, after_a_move
    unmoved = launches_of_a_step(run, grads)
    assert unmoved == ["torchamp_check_resident", "torchamp_step_adam_resident"]


def test_learning_rates_of_few_tensors_cost_no_copy():
    sizes = [64] * 4
    run, grads = AmpRun(CARD, sizes), grads_of(sizes)
    run.step(grads)
    for step in range(3):
        run.optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
        launches = launches_of_a_step(run, grads)
        assert launches == ["torchamp_check_small", "torchamp_step_adam_small"]


def test_a_norm_is_taken_on_the_way():
    """The clipping coefficient takes a separate launch."""
    sizes = [64] * 4
    run, grads = AmpRun(CARD, sizes), grads_of(sizes)
    for _ in range(3):
        run.backward(grads)
        amp.clip_grad_norm_(run.optimizer, 1.0)
        run.optimizer.step()
    run.backward(grads)
    recording = Recording()
    amp.clip_grad_norm_(run.optimizer, 1.0)
    run.optimizer.step()
    assert recording.stop() == ["torchamp_clip", "torchamp_step_adam_small"]
