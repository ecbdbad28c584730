"""amp.Monitor: what is written of each step."""

from __future__ import annotations

import csv
import math

import pytest
import torch
from nets import LEVELS, Net, backward, initialized, sgd, train_step
from torch import nn

from torchamp import amp, optimizers

MAKERS = {
    "SGD": sgd,
    "FusedSGD": lambda model: optimizers.FusedSGD(model.parameters(), lr=0.1),
    "FusedAdamW": lambda model: optimizers.FusedAdamW(model.parameters()),
}


class Logged:
    def __init__(self) -> None:
        self.rows: list[tuple[int, dict]] = []

    def __call__(self, values, *, step):
        self.rows.append((step, values))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("opt_level", LEVELS)
def test_norms_are_those_of_unscaled_grads(opt_level, make, device):
    """Whatever a backward leaves to the step."""
    model, optimizer = initialized(opt_level, Net(), make, device)
    logged = Logged()
    with amp.Monitor(optimizer, logged):
        expected = []
        for seed in range(3):
            optimizer.zero_grad()
            backward(model, optimizer, seed)
            expected.append(float(amp.clip_grad_norm_(optimizer, 1e9)))
            optimizer.step()
    found = [values["amp/grad_norm"] for _, values in logged.rows]
    assert found == pytest.approx(expected, rel=1e-3)
    assert [step for step, _ in logged.rows] == [0, 1, 2]
    assert logged.rows[-1][1]["amp/loss_scale"] == (65536 if opt_level in ("O1", "O2") else 1)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_observing_changes_nothing(make, device):
    runs = []
    for observes in (False, True):
        torch.manual_seed(1)
        model, optimizer = initialized("O2", Net(), make, device, materialize_master_grads=False)
        monitor = amp.Monitor(optimizer, Logged()) if observes else None
        for seed in range(4):
            train_step(model, optimizer, seed)
        assert optimizer._torchamp.core.lazy == isinstance(optimizer, optimizers.FusedOptimizer)
        monitor and monitor.close()
        runs.append(list(model.state_dict().values()))
    assert all(torch.equal(a, b) for a, b in zip(*runs))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("opt_level", ["O0", "O1", "O2"])
def test_shares_of_zeros_and_subnormals(opt_level, make, device):
    """A linear layer's grads are its input: 1, 0, and two below 2**-14 once scaled."""
    model = nn.Linear(4, 1, bias=False)
    scale = 1.0 if opt_level == "O0" else 4.0
    model, optimizer = initialized(opt_level, model, make, device, loss_scale=scale)
    logged = Logged()
    with amp.Monitor(optimizer, logged):
        x = torch.tensor([[1.0, 0.0, 2.0**-15 / scale, 2.0**-18 / scale]], device=device)
        amp.scale_loss(model(x).sum(), optimizer).backward()
        optimizer.step()
    ((_, values),) = logged.rows
    assert (values["amp/zero_grads"], values["amp/subnormal_grads"]) == (0.25, 0.5)


def test_skipped_steps(device):
    model, optimizer = initialized("O2", device=device)
    logged = Logged()
    with amp.Monitor(optimizer, logged):
        for factor in (1.0, math.inf, 1.0):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4, device=device)).mean() / 16 * factor
            amp.scale_loss(loss, optimizer).backward()
            optimizer.step()
            amp.telemetry(optimizer)
    assert not math.isfinite(logged.rows[1][1]["amp/grad_norm"])
    assert math.isfinite(logged.rows[2][1]["amp/grad_norm"])
    assert logged.rows[-1][1]["amp/loss_scale"] == 32768


def test_csv_files(tmp_path, device):
    model, optimizer = initialized("O5", device=device)
    with amp.Monitor(optimizer, tmp_path / "steps.csv", every=2):
        for seed in range(5):
            train_step(model, optimizer, seed)
    with open(tmp_path / "steps.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["0", "2", "4"]
    assert list(rows[0]) == [
        "step",
        "loss_scale",
        "grad_norm",
        "zero_grads",
        "subnormal_grads",
        "steps",
        "skipped_steps",
    ]


def test_tensorboards_writers(device):
    class Writer:
        def __init__(self):
            self.scalars = []

        def add_scalar(self, tag, value, step):
            self.scalars.append((tag, step))

    model, optimizer = initialized("O2", device=device)
    writer = Writer()
    with amp.Monitor(optimizer, writer):
        train_step(model, optimizer)
    assert len(writer.scalars) == 6 and ("amp/grad_norm", 0) in writer.scalars


def test_a_closed_monitor_observes_no_longer(device):
    model, optimizer = initialized("O2", device=device)
    logged = Logged()
    monitor = amp.Monitor(optimizer, logged)
    train_step(model, optimizer)
    monitor.close()
    monitor.close()
    train_step(model, optimizer)
    assert len(logged.rows) == 1 and optimizer._torchamp.observers == []


def test_steps_without_grads(device):
    model, optimizer = initialized("O2", device=device)
    logged = Logged()
    with (
        amp.Monitor(optimizer, logged),
        pytest.warns(UserWarning, match="expected grads, got none"),
    ):
        optimizer.step()
    assert math.isnan(logged.rows[0][1]["amp/grad_norm"])


def test_wrong_arguments(device):
    model, optimizer = initialized("O2", device=device)
    with pytest.raises(RuntimeError, match="Monitor: expected optimizer to be an optimizer that"):
        amp.Monitor(torch.optim.SGD(Net().parameters(), lr=0.1), "x.csv")
    with pytest.raises(ValueError, match="every to be an integer from 1 on, got 0"):
        amp.Monitor(optimizer, Logged(), every=0)
