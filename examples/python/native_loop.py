"""torch.autocast, GradScaler and torchamp, with the model called in this thread or in several.

    python native_loop.py --style all --data-parallel 2

torch.autocast casts in the thread that entered it. A model that other threads call stays in
float32. (nn.DataParallel therefore enters autocast in its own threads.) torchamp's O1 casts in any
thread. Prints the dtype that a hook sees inside the model's forward. Writes native_loop.csv,
native_loop.png and summary.md. Exits with status 1 if a dtype is not the expected one, or if the
losses of the styles differ by more than 2 %.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import figures
import torch
from arms import Arm, amp_arm, autocast_arm, float32_arm, native_arm, train_step
from digits import DIGITS_CSV, LEARNING_RATE, MOMENTUM, Digits, load_digits
from lab import (
    MIB,
    caption,
    counted_bytes,
    finish,
    markdown_table,
    parse_command_line,
    write_csv,
)
from torch import Tensor, nn

from torchamp import amp

Result = TypeVar("Result")

PRESETS = {
    "small": {"steps": 50, "width": 128, "batch": 1024, "data_parallel": 2},
    "original": {"steps": 500, "width": 4096, "batch": 16384, "data_parallel": 2},
}
STYLES = ["fp32", "autocast", "autocast+scaler", "torchamp"]
LOSS_TOLERANCE = 0.02  # of float32's loss


class Row(NamedTuple):
    """A line of native_loop.csv. inside, output: the dtypes of the outputs of the first layer
    and of the model. weights … activations: bytes."""

    style: str
    threads: int
    inside: str
    output: str
    first_loss: float
    last_loss: float
    skipped_steps: int
    weights: int
    grads: int
    masters: int
    state: int
    activations: int


class Net(nn.Sequential):
    """Three linear layers for the digits."""

    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(64, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        )


class Threads:
    """Where the model is called: in ``count`` other threads, or in this one if it is 0."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(max(count, 1))

    def forward(self, model: nn.Module, images: Tensor) -> Tensor:
        """The model's outputs. Each thread takes a part of the batch."""
        if self._count == 0:
            return model(images)
        outputs = self._pool.map(model, images.chunk(self._count))
        return torch.cat(list(outputs))

    def run(self, function: Callable[[], Result]) -> Result:
        """Calls the function once where the model is called."""
        return function() if self._count == 0 else self._pool.submit(function).result()


def make_arm(style: str, width: int, device: torch.device) -> Arm:
    """The style's arm with a new network, from torch's seed."""
    model = Net(width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    if style == "fp32":
        return float32_arm(model, optimizer)
    if style == "autocast":
        return autocast_arm(model, optimizer, device)
    if style == "autocast+scaler":
        return native_arm(model, optimizer, device)
    return amp_arm(model, optimizer, "O1")


@contextmanager
def seen_dtypes(module: nn.Module) -> Iterator[set[str]]:
    """The dtypes of the module's outputs while the context is open, in any thread."""
    dtypes: set[str] = set()

    def see(module: nn.Module, inputs: tuple, output: Tensor) -> None:
        dtypes.add(name_of(output.dtype))

    handle = module.register_forward_hook(see)
    yield dtypes
    handle.remove()


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def train(style: str, digits: Digits, arguments: argparse.Namespace) -> Row:
    """Trains a style from the same weights, on the same batches."""
    torch.manual_seed(arguments.seed)
    arm = make_arm(style, arguments.width, arguments.device)
    threads = Threads(arguments.data_parallel)
    rows = torch.randint(len(digits.labels), (arguments.steps, arguments.batch))
    with seen_dtypes(arm.model[1]) as inside, seen_dtypes(arm.model) as outputs:
        steps = [train_step(arm, digits.take(each), threads.forward) for each in rows]
    images = digits.take(rows[0]).images
    with arm.casts():
        sizes = threads.run(
            lambda: counted_bytes(arm.model, arm.optimizer, lambda: arm.model(images))
        )
    if style == "torchamp":
        amp.release(arm.model)
    losses, skipped = zip(*steps)
    dtypes = ", ".join(sorted(inside)), ", ".join(sorted(outputs))
    first, last = losses[0], losses[-1]
    return Row(style, arguments.data_parallel, *dtypes, first, last, sum(skipped), **sizes)


def expected_dtype(style: str, threads: int) -> str:
    """Inside the model. torch.autocast, entered in this thread, does not reach the others."""
    if style == "fp32" or (style.startswith("autocast") and threads > 0):
        return "float32"
    return "float16"


def problems(rows: Sequence[Row]) -> list[str]:
    """A sentence for each dtype that is not the expected one, and for each loss that differs."""
    found = []
    for row in rows:
        dtype = expected_dtype(row.style, row.threads)
        if row.inside != dtype:
            found.append(f"{row.style}: expected {dtype} inside the model, got {row.inside}")
        loss = rows[0].last_loss
        if not abs(row.last_loss - loss) <= LOSS_TOLERANCE * loss:
            found.append(
                f"{row.style}: expected a last loss within {LOSS_TOLERANCE:.0%} of "
                f"{rows[0].style}'s {loss:.4f}, got {row.last_loss:.4f}"
            )
    return found


def sizes_of(row: Row) -> dict[str, float]:
    """MiB, by what they hold."""
    return {kind: getattr(row, kind) / MIB for kind in figures.MEMORY_COLORS}


def table(rows: Sequence[Row]) -> str:
    header = ["style", "inside", "output", "first loss", "last loss", "skipped steps"]
    header += ["activations MiB", "total MiB"]
    lines = []
    for row in rows:
        sizes = sizes_of(row)
        lines.append([row.style, row.inside, row.output])
        lines[-1] += [f"{row.first_loss:.4f}", f"{row.last_loss:.4f}", f"{row.skipped_steps}"]
        lines[-1] += [f"{sizes['activations']:.3f}", f"{sum(sizes.values()):.3f}"]
    return markdown_table(header, lines)


def where(threads: int) -> str:
    return "in this thread" if threads == 0 else f"in {threads} other threads"


def draw(rows: Sequence[Row], arguments: argparse.Namespace) -> None:
    """Counted memory, a bar for each style, with the dtype inside."""
    figure, axes = figures.new_figure(1, 1, (9, 0.5 * len(rows) + 1.8))
    unit = f"MiB, counted, for a batch of {arguments.batch}"
    figures.draw_memory(axes[0, 0], [sizes_of(row) for row in rows], unit)
    axes[0, 0].set_yticklabels([row.style for row in rows])
    figures.label_rows(axes[0, 0], [f"{row.inside} inside" for row in rows])
    title = f"Memory and dtype, with the model called {where(arguments.data_parallel)}"
    figures.save(figure, title, caption(arguments.device), arguments.out / "native_loop.png")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--style", default="all", choices=[*STYLES, "all"])
    parser.add_argument("--data-parallel", type=int, metavar="N", help="threads; 0: this one")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--width", type=int, help="of the linear layers")
    parser.add_argument("--batch", type=int)
    arguments = parse_command_line(parser, "native_loop", PRESETS)

    digits, _ = load_digits(DIGITS_CSV, arguments.device)
    styles = STYLES if arguments.style == "all" else [arguments.style]
    rows = [train(style, digits, arguments) for style in styles]
    write_csv(rows, arguments.out / "native_loop.csv")
    draw(rows, arguments)
    parts = [caption(arguments.device), table(rows)]
    title = f"The dtype inside a model that is called {where(arguments.data_parallel)}"
    return finish(title, parts, problems(rows), arguments.out)


if __name__ == "__main__":
    sys.exit(main())
