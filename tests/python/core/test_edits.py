"""What programs do between calls that test_fuzz.py does not draw: as the same program in plain
float32, or a message whose remedy works."""

from __future__ import annotations

import pytest
import torch
from nets import LEVELS, MASTER_LEVELS, overflow_at
from torch import nn

from torchamp import amp, optimizers

MAKERS = {"torch": torch.optim.SGD, "fused": optimizers.FusedSGD}


class Net(nn.Module):
    """Its loss's grads are powers of two, whatever the weights are."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
        for param in self.parameters():
            nn.init.constant_(param, 0.5)

    def forward(self, factor: float) -> torch.Tensor:
        return factor * sum(param.float().sum() for param in self.parameters())


class Program:
    """One that trains two of three layers at a level, or in plain float32."""

    def __init__(self, level: str | None, make: str = "torch") -> None:
        self.model = Net()
        self.params = list(self.model.parameters())
        self.optimizer = MAKERS[make](self.params[:4], lr=0.25)
        self.level = level
        if level is not None:
            options = {"opt_level": level, "loss_scale": "dynamic", "verbosity": 0}
            amp.initialize(self.model, self.optimizer, **options)

    def backward(self, loss: torch.Tensor | None = None, **options: bool) -> None:
        loss = self.model(0.25) if loss is None else loss
        if self.level is None:
            loss.backward()
            return
        amp.scale_loss(loss, self.optimizer, **options).backward()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.backward()
        self.optimizer.step()

    def values(self) -> list[torch.Tensor]:
        return [value.float().clone() for value in self.model.state_dict().values()]


def expect_alike(ours: Program, plain: Program) -> None:
    torch.testing.assert_close(ours.values(), plain.values(), rtol=1e-5, atol=1e-6)
    amp.release(ours.model)


def refusal(call) -> str:
    with pytest.raises((RuntimeError, ValueError)) as refused:
        call()
    return str(refused.value)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("level", LEVELS)
def test_an_optimizer_that_is_made_again_steps_what_it_is_given(level, make):
    ours, plain = Program(level, make), Program(None, make)
    for program in (ours, plain):
        type(program.optimizer).__init__(program.optimizer, program.params, lr=0.25)
        program.step()
    expect_alike(ours, plain)


def test_a_parameter_twice_is_refused():
    program = Program("O2")
    program.optimizer.param_groups[0]["params"].append(program.params[0])
    assert refusal(program.optimizer.step) == (
        "step: expected each parameter in one group, and once, got one of sizes [2, 2] twice"
    )


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_backward_outside_of_scale_loss_counts_unscaled(level, make):
    ours, plain = Program(level, make), Program(None, make)
    for program in (ours, plain):
        program.backward()
        program.model(0.5).backward()
        program.optimizer.step()
    expect_alike(ours, plain)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_penalties_on_the_way_that_masters_have_gone_count(level, make):
    """As of L2-SP, EWC and FedProx, here of a way that 16 bits round away."""
    ours, plain = Program(level, make), Program(None, make)
    for program in (ours, plain):
        params = list(amp.master_params(program.optimizer))
        start = [param.detach().clone() for param in params]
        with torch.no_grad():
            for param in params:
                param.mul_(1 + 2**-14)
        away = [param - old for param, old in zip(params, start)]
        program.backward(2**12 * sum(each.square().sum() for each in away))
        program.optimizer.step()
    expect_alike(ours, plain)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_another_grad_in_place_of_a_delayed_one_is_told(level, make):
    program = Program(level, make)
    program.backward(delay_unscale=True)
    program.params[0].grad = program.params[0].grad.clone()
    assert refusal(program.backward) == (
        "expected grads that delay_unscale has left scaled to be modified in place, or zeroed by "
        "zero_grad(), got another grad of a parameter of sizes [2, 2], which may not be scaled; "
        "call the optimizer's zero_grad()"
    )
    program.step()  # which begins with it
    amp.release(program.model)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_backward_onto_grads_of_a_skipped_step_is_told(level, make):
    program = Program(level, make)
    with overflow_at(program.params[0]):
        program.backward()
    program.optimizer.step()
    program.model(0.25).backward()
    assert refusal(program.optimizer.step) == (
        "expected the grads that a skipped step has left to be zeroed before a backward outside of "
        "scale_loss, got one, of sizes [2, 2], that was added to grads that are not finite; call "
        "the optimizer's zero_grad()"
    )
    program.step()  # which begins with it
    amp.release(program.model)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_strays_between_backwards_of_its_own_are_told(level, make):
    program, other = Program(level, make), Program(level, make)
    for _ in range(2):
        program.backward()
        other.backward(program.model(2.0**-12))
    program.model(0.25).backward()  # onto them
    assert refusal(program.optimizer.step) == (
        "step: expected grads of backwards in scale_loss's that were given this optimizer, got "
        "one, of sizes [2, 2], of a scale_loss that was not; give it all optimizers whose "
        "parameters its loss reaches, or zero their grads before their own backward"
    )
    program.step()  # which begins with it
    amp.release(program.model)
    amp.release(other.model)


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_a_grad_from_before_its_group_is_told(level):
    program = Program(level)
    program.step()
    program.model(0.25).backward()
    with pytest.warns(UserWarning) as told:
        program.optimizer.add_param_group({"params": program.params[4:]})
    assert str(told[0].message) == (
        "add_param_group: expected a parameter to be in a group when its backward runs in "
        "scale_loss, got one that was added with a grad, which may be scaled, and is dropped; add "
        "parameters before their backward"
    )
    amp.release(program.model)
