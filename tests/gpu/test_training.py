"""Training iterations on a card: none waits for it, and captured ones match eager ones."""

from __future__ import annotations

import math

import on_card
import pytest
import torch
from iteration import Iteration, captured
from own_kernels import needs_own_kernels
from torch import nn

from torchamp import amp, optimizers

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

MAKERS = {
    "FusedAdamW": lambda params: optimizers.FusedAdamW(params, 0.01, eps=1e-4),
    "FusedSGD": lambda params: optimizers.FusedSGD(params, 0.1, 0.9),
    "FusedLAMB": lambda params: optimizers.FusedLAMB(params, 0.01),
    "FusedNovoGrad": lambda params: optimizers.FusedNovoGrad(params, 0.01),
    "Adam(fused)": lambda params: torch.optim.Adam(params, fused=True),
    "SGD(fused)": lambda params: torch.optim.SGD(params, 0.1, momentum=0.9, fused=True),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_hundred_steps_without_waiting(name, heard):
    run = Iteration(MAKERS[name])
    before = run.weights()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(100):
            run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not torch.equal(run.weights(), before)
    loss_scale = amp.state_dict()["loss_scaler0"]["loss_scale"]
    assert loss_scale < 2.0**24, "no step overflowed"
    known = amp.telemetry(run.optimizer)
    skipped = round(math.log2(2.0**24 / loss_scale))
    assert known == type(known)(100, skipped, True, (loss_scale,))
    assert heard.take().count("gradient overflow in loss 0, at") == skipped


def test_no_report_is_lost_where_the_host_runs_ahead(heard):
    run = Iteration(MAKERS["FusedSGD"])
    run()
    torch.cuda._sleep(2_000_000_000)
    for _ in range(300):
        run()
    torch.cuda.synchronize()
    known = amp.telemetry(run.optimizer)
    assert known.steps == 301
    assert known.skipped_steps == round(math.log2(2.0**24 / known.loss_scales[0]))
    assert heard.take().count("gradient overflow") >= known.skipped_steps


def test_a_captured_iteration_is_not_reported(heard):
    run = Iteration(MAKERS["FusedAdamW"])
    graph = captured(run)
    torch.cuda.synchronize()
    before = amp.telemetry(run.optimizer).steps
    heard.take()
    for _ in range(5):
        graph.replay()
    run()
    torch.cuda.synchronize()
    assert amp.telemetry(run.optimizer).steps == before + 1


@pytest.mark.parametrize("name", ["FusedAdamW", "FusedSGD", "FusedLAMB", "FusedNovoGrad"])
def test_a_captured_iteration_is_the_eager_one(name):
    lr, eager_lr = (torch.tensor(0.01, device="cuda") for _ in range(2))
    eager, run = Iteration(MAKERS[name], eager_lr), Iteration(MAKERS[name], lr)
    graph = captured(run)
    for _ in range(3):
        eager()
    for step in range(40):
        for each in (lr, eager_lr):
            each.fill_(0.01 / (1 + step % 5))
        graph.replay()
        eager()
        assert torch.equal(run.weights(), eager.weights()), f"step {step}"


def launches_after_backward(run: Iteration) -> list[str]:
    """The card's work from the end of a backward to the end of the step."""
    loss = nn.functional.mse_loss(run.model(run.x).float(), run.target)
    with amp.scale_loss(loss, run.optimizer) as scaled_loss:
        scaled_loss.backward()
        recording = on_card.Recording()
    run.optimizer.step()
    return recording.stop()


@needs_own_kernels
def test_two_launches_follow_a_backward_of_a_model_with_norms():
    """test_launches.py has models without."""
    run = Iteration(MAKERS["FusedAdamW"], has_norms=True)
    for _ in range(3):
        run()
    run.optimizer.zero_grad()
    assert launches_after_backward(run) == ["torchamp_unscale", "torchamp_step_adam_small"]


@pytest.mark.parametrize("name", ["FusedAdamW", "FusedSGD", "FusedLAMB", "FusedNovoGrad"])
def test_a_first_iteration_can_be_captured(name):
    """The graph and eager steps work in either order."""
    Iteration(MAKERS[name])()  # torch's initialization
    eager, run = Iteration(MAKERS[name]), Iteration(MAKERS[name])
    graph = on_card.captured(run)
    for step in range(10):
        graph.replay() if step % 3 else run()
        eager()
        # A first iteration computes the norm in a separate pass, which may sum in another order.
        assert torch.allclose(run.weights(), eager.weights(), 1e-2, 1e-3), f"step {step}"
