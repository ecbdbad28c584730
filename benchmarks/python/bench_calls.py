"""What torchamp adds to the calls of optimizers, also of those that initialize was never given.

Times are in microseconds on the CPU, first of plain torch in a process without torchamp's gates,
then in the same one beside other models, each of 100 parameters, at O2. The steps do nothing, so
that all is overhead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import command_line
import torch
from report_tables import calls_table
from timing import Timing, time_interleaved
from torch import nn

from torchamp import amp

PARAMS = 100
#: In a sample.
CALLS = 100


@dataclass
class Row:
    """Microseconds: the median and the quartiles. others: how many other models there are."""

    call: str
    others: int
    plain_us: float
    microseconds: float
    quartiles: tuple[float, float]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(PARAMS)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weights[0] * x).sum()


class Own(torch.optim.Optimizer):
    """With a method of its own."""

    def __init__(self, params) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure=None) -> None:
        pass

    def get_lr(self) -> float:
        return self.param_groups[0]["lr"]


class Calls:
    """What is timed, of a stranger, and of a model with its optimizer. level: None without
    initialize."""

    def __init__(self, level: str | None) -> None:
        self.stranger = Own(Net().parameters())
        self.net, self.level = Net(), level
        self.optimizer = Own(self.net.parameters())
        if level is not None:
            scale = {"loss_scale": 1.0} if level == "O1" else {}
            self.net, self.optimizer = amp.initialize(
                self.net, self.optimizer, opt_level=level, verbosity=0, **scale
            )
        self.backward()

    def backward(self) -> None:
        self.optimizer.zero_grad()
        loss = self.net(torch.ones(4))
        if self.level is None:
            loss.backward()
        else:
            with amp.scale_loss(loss, self.optimizer) as scaled_loss:
                scaled_loss.backward()

    def float32_params(self) -> None:
        if self.level is not None:
            with amp.float32_params(self.net):
                pass

    def of_strangers(self) -> dict[str, Callable[[], object]]:
        return {
            "another optimizer's step": self.stranger.step,
            "another optimizer's own method": self.stranger.get_lr,
        }

    def of_given(self) -> dict[str, Callable[[], object]]:
        return {
            "step": self.optimizer.step,
            "an own method": self.optimizer.get_lr,
            "zero_grad, forward and scale_loss": self.backward,
            "float32_params": self.float32_params,
        }


def timed(call: Callable[[], object], repeats: int) -> Timing:
    """The time of CALLS calls, alone: in turn with others they would meet colder caches than plain
    torch's did."""

    def many() -> None:
        for _ in range(CALLS):
            call()

    return time_interleaved({"": many}, "cpu", repeats)[""]


def microseconds(milliseconds: float) -> float:
    """Of one call."""
    return milliseconds * 1e3 / CALLS


def measure(device: str, repeats: int) -> Iterator[Row]:
    torch.set_num_threads(1)
    plain = Calls(None)
    plain_calls = {**plain.of_strangers(), **plain.of_given()}
    base = {name: timed(call, repeats) for name, call in plain_calls.items()}
    given = {level: Calls(level) for level in ("O1", "O2")}
    others: list[Calls] = []
    for count in (0, 100):
        others += [Calls("O2") for _ in range(count)]
        calls = {(name, ""): call for name, call in plain.of_strangers().items()}
        for level, of_level in given.items():
            calls.update({(name, f", {level}"): c for name, c in of_level.of_given().items()})
        for (name, level), call in calls.items():
            timing = timed(call, repeats)
            first, third = map(microseconds, timing.quartiles)
            plain_us = microseconds(base[name].milliseconds)
            us = microseconds(timing.milliseconds)
            yield Row(name + level, count, plain_us, us, (first, third))


def print_table(rows: list[Row]) -> None:
    print(calls_table([asdict(row) for row in rows]))


if __name__ == "__main__":
    command_line.run(__doc__, measure, print_table)
