"""A typed program, which make lint checks by mypy, strictly, and test_types runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

import torchamp
from torchamp import amp, optimizers

if TYPE_CHECKING:
    from typing_extensions import assert_type


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.body(x).relu())
        return output


@amp.float_function
def distance(a: torch.Tensor, b: torch.Tensor, power: int = 2) -> torch.Tensor:
    return (a - b).norm(power)


def step(model: Net, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss: torch.Tensor = model(x).float().pow(2).mean()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    norm: torch.Tensor = amp.clip_grad_norm_(optimizer, 1.0)
    optimizer.step()
    return float(norm)


def step_without_initialize(x: torch.Tensor) -> torchamp.GradScaler:
    net, scaler = Net(), amp.GradScaler("cpu", init_scale=1024.0)
    sgd = optimizers.FusedSGD(
        net.parameters(),
        lr=torch.tensor(0.1),
        state_dtype=torch.bfloat16,
        stochastic_rounding=True,
    )
    with amp.autocast("cpu", torch.bfloat16), amp.autocast(enabled=False):
        loss: torch.Tensor = net(x).float().sum()
    scaler.scale(loss).backward()
    scaler.step(sgd)
    scaler.update()
    return scaler


def main() -> None:
    x = torch.randn(3, 4)
    fit = amp.preflight(Net(), x, lambda output: output.pow(2).mean())
    level: str = fit.recommended
    verdict: amp.Verdict = fit.verdict("O5")
    net = Net()
    adam = optimizers.FusedAdamW(net.parameters(), lr=1e-3, state_dtype=torch.bfloat16)
    both = amp.initialize(net, adam, opt_level="O5", keep_fp32="head", verbosity=0)
    model, optimizer = both
    level_of_another: amp.Level = "O3"
    alone = amp.initialize(Net(), opt_level=amp.Policy("mixed_bfloat16"), verbosity=0)
    several = amp.initialize([Net(), Net()], opt_level=level_of_another, verbosity=0)
    if TYPE_CHECKING:
        assert_type(model, Net)
        assert_type(optimizer, optimizers.FusedAdamW)
        assert_type(alone, Net)
        assert_type(distance(x, x), torch.Tensor)
        assert_type(several, list[Net])
    with amp.Monitor(optimizer, "steps.csv"):
        norm = step(model, optimizer, x)
    trace: amp.OverflowTrace = amp.trace_overflow(model)
    counts: amp.Telemetry = amp.telemetry(optimizer)
    steps: int = counts.steps
    casts: int = amp.report(model, x).rows[0].casts_down
    amp.save(model, optimizer, "run.pt", {"steps": steps, "rng": torch.get_rng_state()})
    loaded: int = amp.load(model, optimizer, "run.pt")["steps"]
    print(level, norm > 0, loaded, casts >= 0, step_without_initialize(x).get_scale())
    print(verdict.fits, len(trace.origins))


if __name__ == "__main__":
    main()
