"""What README and the guides show as printed is printed. Numbers of one run are left out; the
tutorial's cells run in test_tutorial."""

import pathlib
import re

import torch
from nets import Planted, Steep, initialized
from torch import nn

from torchamp import amp

ROOT = next(path for path in pathlib.Path(__file__).parents if (path / "HACKING.md").exists())
NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")


def shown(document: str, first_words: str) -> list[str]:
    """The lines of the block that begins with those words."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / document).read_text(), re.S | re.M)
    (block,) = (each for kind, each in blocks if not kind and each.startswith(first_words))
    return block.splitlines()


def without_numbers(line: str) -> list[str]:
    return NUMBER.sub("#", line).split()


def iterate(model: nn.Module, optimizer: torch.optim.Optimizer, *batch: torch.Tensor) -> None:
    amp.scale_loss(model(*batch).float().mean(), optimizer).backward()
    optimizer.step()


def test_readmes_message(python):
    program = "\n".join(
        [
            "import torch; from torch import nn; from torchamp import amp",
            "model = nn.Sequential(); model.add_module('head', nn.Linear(2, 1, bias=False))",
            "optimizer = torch.optim.SGD(model.parameters(), 0.1)",
            "amp.initialize(model, optimizer, opt_level='O2')",
            "for factor in (1, float('inf')):",
            "    loss = model(torch.ones(1, 2)).float().mean() / 8",
            "    hook = model.head.weight.register_hook(lambda grad: grad * factor)",
            "    amp.scale_loss(loss, optimizer).backward()",
            "    optimizer.step()",
        ]
    )
    (line,) = shown("README.md", "torchamp: gradient overflow")
    assert line in python("-c", program).splitlines()


def test_an_overflow_trace():
    model, optimizer = initialized(
        "O2", Planted(lambda x: Steep.apply(x.half())), loss_scale="dynamic"
    )
    with amp.trace_overflow(model) as trace:
        iterate(model, optimizer, torch.ones(2, 4))
    lines = shown("docs/diagnosis.md", "iteration 0")
    assert [*map(without_numbers, str(trace).splitlines())] == [*map(without_numbers, lines)]


class Net(nn.Module):
    """Masks by a number that float16 does not hold."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Identity()
        self.attention.forward = lambda x: x.masked_fill(x > 1, -1e9).softmax(-1)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.attention(self.first(x)))


def test_a_preflight():
    """Which level is recommended depends on the machine."""
    printed = str(
        amp.preflight(Net(), torch.randn(64, 8) * 2, lambda out: out.float().square().mean())
    )
    lines = shown("docs/choosing.md", "preflight of Net")
    known = [*map(without_numbers, printed.splitlines())]
    for line in lines[:3] + lines[4:9]:
        assert without_numbers(line) in known, line
    assert without_numbers(lines[-1]) in known
