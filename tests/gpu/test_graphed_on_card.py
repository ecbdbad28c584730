"""amp.graphed on a card: captured iterations are the eager ones, bit for bit."""

from __future__ import annotations

import on_card
import pytest
import torch
from torch import nn

from torchamp import amp, optimizers

pytestmark = on_card.needs_card

CALLS = 24

MAKERS = {
    "FusedAdamW": lambda params: optimizers.FusedAdamW(params, 0.01, eps=1e-4),
    "FusedSGD": lambda params: optimizers.FusedSGD(params, 0.1, 0.9),
    "FusedLAMB": lambda params: optimizers.FusedLAMB(params, 0.01),
    "AdamW(fused)": lambda params: torch.optim.AdamW(params, fused=True, capturable=True),
    "SGD(fused)": lambda params: torch.optim.SGD(params, 0.1, momentum=0.9, fused=True),
}


class Training:
    """Calls of an iteration with two losses and two micro-batches, whose first loss scales
    overflow."""

    def __init__(self, make, level: str, is_graphed: bool, dropout: float = 0.0) -> None:
        torch.manual_seed(7)
        layers = nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(dropout)
        model = nn.Sequential(*layers, nn.Linear(64, 4)).cuda()
        amp_ = amp.initialize(
            model, make(model.parameters()), opt_level=level, num_losses=2, verbosity=0
        )
        self.model, self.optimizer = amp_
        state = amp.state_dict()
        for each in state.values():
            each["loss_scale"] = 2.0**30 if each["loss_scale"] != 1 else 1.0
        amp.load_state_dict(state)
        self.losses: list[float] = []
        self.run = amp.graphed(self.iteration) if is_graphed else self.iteration

    def iteration(self, batches, *, clip: float = 1.0):
        self.optimizer.zero_grad()
        for x, target in batches:
            output = self.model(x).float()
            for loss_id, loss in enumerate((nn.functional.mse_loss, nn.functional.l1_loss)):
                scaled = amp.scale_loss(loss(output, target), self.optimizer, loss_id=loss_id)
                scaled.backward(retain_graph=loss_id == 0)
        amp.clip_grad_norm_(self.optimizer, clip)
        self.optimizer.step()
        return output.square().mean()

    def train(self, calls: int = CALLS) -> None:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, calls)
        for seed in range(calls):
            generator = torch.Generator().manual_seed(seed)
            sizes = ((32, 16), (32, 4)) * 2
            all_ = [torch.randn(size, generator=generator).cuda() for size in sizes]
            self.losses.append(self.run([all_[:2], all_[2:]]).item())
            schedule.step()

    def weights(self) -> list[torch.Tensor]:
        return [*self.model.state_dict().values(), *amp.master_params(self.optimizer)]


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O4", "O5"])
@pytest.mark.parametrize("name", MAKERS)
def test_an_iteration_is_the_eager_one(level, name):
    known = []
    trainings = [Training(MAKERS[name], level, is_graphed) for is_graphed in (True, False)]
    for training in trainings:
        training.train()
        torch.cuda.synchronize()
        known.append(amp.telemetry(training.optimizer))
        if level in ("O1", "O4"):
            amp.release(training.model)
    assert trainings[0].losses == trainings[1].losses
    on_card.assert_same_bits(*(training.weights() for training in trainings))
    assert known[0] == known[1]


def test_no_call_waits():
    training = Training(MAKERS["FusedAdamW"], "O2", is_graphed=True)
    training.train(6)
    batches = [[torch.randn(32, 16).cuda(), torch.randn(32, 4).cuda()] for _ in range(2)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            training.run(batches)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_dropout_draws_again():
    training = Training(MAKERS["FusedSGD"], "O2", is_graphed=True, dropout=0.5)
    training.train(6)
    training.optimizer.param_groups[0]["lr"] = 0.0
    batches = [[torch.ones(32, 16).cuda(), torch.ones(32, 4).cuda()] for _ in range(2)]
    assert len({training.run(batches).item() for _ in range(5)}) == 5


def test_what_cannot_be_captured_names_its_line():
    training = Training(MAKERS["FusedAdamW"], "O2", is_graphed=True)
    plain = training.iteration

    def waiting(batches):
        return plain(batches, clip=float(batches[0][0].abs().max()))

    training.run = amp.graphed(waiting)
    training.train(3)
    before = training.weights()
    with pytest.raises(RuntimeError) as raised:
        training.train(1)
    assert "plain(batches, clip=float(" in raised.value.__notes__[0]
    on_card.assert_same_bits(before, training.weights())
    training.train(3)
