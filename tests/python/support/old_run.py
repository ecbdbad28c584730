"""The run whose checkpoints tests/old_checkpoints keeps. tests/cpp/support/old_run.h is its twin.

Weights, inputs and options are small multiples of powers of two, and sums have two terms. So grads
are exact, and running averages the same on every machine. torch's Adam and Adagrad get no weight
decay: they square the grads, with FMA where the machine has it.
"""

import pathlib

import torch

from torchamp import amp, optimizers

FILES = pathlib.Path(__file__).parents[2] / "old_checkpoints" / "885942b"
LANGUAGES = ["python", "cpp"]
LEVELS = ["O2", "O5"]
#: The steps before a checkpoint, and those that were done after it.
STEPS, FURTHER_STEPS = 3, 2

_BETAS = {"betas": (0.5, 0.75)}
_DECAY = {"weight_decay": 0.125}
OPTIONS: dict[str, dict[str, object]] = {
    "SGD": {"momentum": 0.5, **_DECAY},
    "Adam": _BETAS,
    "Adagrad": {},
    "FusedSGD": {"momentum": 0.5, **_DECAY},
    "FusedAdam": {**_BETAS, **_DECAY},
    "FusedAdamW": {**_BETAS, **_DECAY},
    "FusedAdagrad": _DECAY,
    "FusedNovoGrad": {**_BETAS, **_DECAY},
    "FusedLAMB": {**_BETAS, **_DECAY},
}


class Net(torch.nn.Module):
    """A matrix of 16 bits with a master, and a batch norm in float32 whose weight is frozen: its
    grads are not exact."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2, bias=False)
        self.norm = torch.nn.BatchNorm1d(2, momentum=0.5)
        self.norm.weight.requires_grad_(False)
        with torch.no_grad():
            self.linear.weight.copy_(torch.tensor([[0.5, -0.25], [1.0, 0.75]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x)
        return hidden + self.norm(hidden.detach())


def file_of(language: str, level: str, name: str) -> pathlib.Path:
    return FILES / language / f"{level}_{name}.pt"


def started(level: str, name: str, lr: float):
    """(model, optimizer) before the first step."""
    model = Net()
    make = getattr(optimizers, name, None) or getattr(torch.optim, name.removeprefix("Fused"))
    optimizer = make(model.parameters(), lr=lr, **OPTIONS[name])
    return amp.initialize(model, optimizer, opt_level=level, verbosity=0)


def backward(model, optimizer, step: int, factor: float = 1.0) -> None:
    output = model(torch.tensor([[1.0, 2.0], [-0.5, 2.0 ** (step % 3)]]))
    coefs = torch.tensor([[0.125, 0.0], [-0.0625, 0.25 / (1 + step % 2)]])
    with amp.scale_loss((output.float() * coefs).sum() * factor, optimizer) as scaled_loss:
        scaled_loss.backward()


def train(model, optimizer, first: int, end: int) -> None:
    for step in range(first, end):
        optimizer.zero_grad()
        backward(model, optimizer, step)
        optimizer.step()


def train_from_the_start(model, optimizer) -> None:
    """At O2 an overflow skips a step and halves the loss scale."""
    if model.linear.weight.dtype == torch.float16:
        backward(model, optimizer, 0, factor=float("inf"))
        optimizer.step()
    train(model, optimizer, 0, STEPS)


def values_of(state: dict[str, torch.Tensor]) -> torch.Tensor:
    """The values of a state dict as one float32 tensor, in the order of their names."""
    return torch.cat([state[name].flatten().float() for name in sorted(state)])
