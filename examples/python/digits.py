"""Trains a small convolutional network on handwritten digits at any opt level.

    python digits.py --level O2 --epochs 10 --seed 1 --device auto --out steps.csv

examples/cpp/digits is the same program in C++, step for step.
"""

from __future__ import annotations

import argparse
import csv
import resource
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

import torchamp
from torchamp import amp

DIGITS_CSV = Path(__file__).parents[1] / "data" / "digits.csv"
MAX_PIXEL = 16
TEST_EVERY = 5
BATCH_SIZE = 64
LEARNING_RATE = 0.05
MOMENTUM = 0.875  # exact in float16, to which LibTorch's SGD rounds it at O3
FIRST_LOSS_SCALE = 2.0**24  # too high for float16: the first steps overflow


class Digits(NamedTuple):
    """images: float32 [n, 1, 8, 8], 0 … 1. labels: int64 [n]."""

    images: Tensor
    labels: Tensor

    def take(self, rows: Tensor) -> Digits:
        """The digits of these rows, an int64 tensor [m]."""
        index = rows.to(self.labels.device)
        return Digits(self.images[index], self.labels[index])


class Step(NamedTuple):
    """loss_scale: the scale of this step's loss."""

    loss: float
    loss_scale: float
    skipped: bool


class Net(nn.Module):
    """A small convolutional network with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1, stride=2)
        self.bn2 = nn.BatchNorm2d(16)
        self.fc1 = nn.Linear(16 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 1, 8, 8] → logits [n, 10]"""
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


def load_digits(path: Path, device: torch.device) -> tuple[Digits, Digits]:
    """Returns (train, test). Every fifth row is for testing, the others for training."""
    table = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.int64))
    images = table[:, :-1].reshape(-1, 1, 8, 8).float().div(MAX_PIXEL).to(device)
    digits = Digits(images, table[:, -1].to(device))
    tests = torch.arange(len(table)) % TEST_EVERY == 0
    return digits.take((~tests).nonzero().flatten()), digits.take(tests.nonzero().flatten())


def loss_scale() -> float:
    """The loss scale of the next step."""
    return amp.state_dict()["loss_scaler0"]["loss_scale"]


def start_high() -> None:
    """Starts a dynamic scale where float16 overflows; does not change a fixed scale."""
    if loss_scale() == 1.0:
        return
    state = amp.state_dict()
    state["loss_scaler0"]["loss_scale"] = FIRST_LOSS_SCALE
    amp.load_state_dict(state)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Digits) -> Step:
    """One step on one batch."""
    scale = loss_scale()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch.images), batch.labels)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    return Step(loss.item(), scale, skipped=loss_scale() < scale)


def batches(digits: Digits, epochs: int) -> Iterator[Digits]:
    """Batches of the digits, in a new random order each epoch."""
    for _ in range(epochs):
        for rows in torch.randperm(len(digits.labels)).split(BATCH_SIZE):
            yield digits.take(rows)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, digits: Digits, epochs: int, title: str
) -> tuple[list[Step], list[float]]:
    """Returns the steps, and the seconds that each took."""
    steps, seconds = [], []
    total = epochs * -(-len(digits.labels) // BATCH_SIZE)
    with tqdm(batches(digits, epochs), title, total, leave=False, disable=None) as bar:
        for batch in bar:
            start = time.perf_counter()
            steps.append(train_step(model, optimizer, batch))
            seconds.append(time.perf_counter() - start)
            bar.set_postfix(loss=f"{steps[-1].loss:.4f}", loss_scale=steps[-1].loss_scale)
    return steps, seconds


@torch.no_grad()
def accuracy(model: nn.Module, digits: Digits) -> float:
    """The fraction of ``digits`` that the model classifies correctly."""
    model.eval()
    return (model(digits.images).argmax(1) == digits.labels).double().mean().item()


def write_csv(steps: list[Step], path: Path) -> None:
    """Writes one line per step, numbered from 0."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", *Step._fields])
        for index, step in enumerate(steps):
            writer.writerow([index, step.loss, step.loss_scale, int(step.skipped)])


def peak_memory_mib(device: torch.device) -> float:
    """Peak memory: torch's allocations on a GPU, otherwise the process's resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def parse_command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--level", default="O2", help="O0 to O5")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, default=DIGITS_CSV)
    parser.add_argument("--out", type=Path, help="per-step CSV")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    return parser.parse_args()


def choose_device(name: str) -> torch.device:
    """The device of that name, with its index. "auto" selects the GPU if there is one, else the
    CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.empty(0, device=name).device


def main() -> None:
    arguments = parse_command_line()
    device = choose_device(arguments.device)
    train_digits, test_digits = load_digits(arguments.data, device)
    torch.manual_seed(arguments.seed)
    torch.backends.cudnn.deterministic = True
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    model, optimizer = amp.initialize(model, optimizer, opt_level=arguments.level, verbosity=0)
    start_high()

    title = f"{arguments.level} Python"
    steps, seconds = train(model, optimizer, train_digits, arguments.epochs, title)
    if arguments.out:
        write_csv(steps, arguments.out)
    summary = {
        "level": arguments.level,
        "language": "Python",
        "device": device,
        "backend": torchamp.build_info()["kernels"][str(device)],
        "test_accuracy": accuracy(model, test_digits),
        "ms_per_step": 1e3 * statistics.median(seconds),
        "peak_memory_mib": peak_memory_mib(device),
        "loss_scale": loss_scale(),
        "skipped_steps": sum(step.skipped for step in steps),
    }
    print("\n".join(f"{key} {value}" for key, value in summary.items()))


if __name__ == "__main__":
    main()
