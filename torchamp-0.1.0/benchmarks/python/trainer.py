"""Sets up and times one training variant."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from networks import Batch, Task
from timing import Sample
from training_variants import VARIANTS, Training, set_precision

#: Warm-up iterations, during which the loss must fall.
WARM_UP = 10
#: Target duration of a sample on a GPU, long enough to hide the wait at its end.
SAMPLE_MS = 30.0


class DoesNotTrain(RuntimeError):
    """The loss is not finite, or does not fall."""


class TooSlow(RuntimeError):
    """An iteration takes too long to measure a median."""


@dataclass
class Trainer:
    """Trains its own network in its own thread, because O1's and O4's autocast applies to the
    thread that opened it."""

    name: str
    device: str
    losses: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    iterations: int = 1

    def __post_init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._training: Training | None = None

    def set_up(self, task: Task, batch: Batch, slowest_ms: float) -> None:
        """Creates the network and trains the warm-up iterations. Raises DoesNotTrain, TooSlow if an
        iteration takes more than slowest_ms, and torch's errors for what it does not support."""
        set_precision(self.name)
        before = _allocated_bytes(self.device)
        self._thread.submit(self._make, task, batch).result()
        milliseconds = self._warm_up(slowest_ms)
        self._check_losses()
        if self.device == "cuda":
            self.iterations = max(1, round(SAMPLE_MS / milliseconds))
            torch.cuda.reset_peak_memory_stats()
            self.sample()
            self.peak_bytes = torch.cuda.max_memory_allocated() - before

    def _make(self, task: Task, batch: Batch) -> None:
        torch.manual_seed(0)
        with torch.device(self.device):
            network = task.make()
        self._training = VARIANTS[self.name](network, batch)

    def _warm_up(self, slowest_ms: float) -> float:
        """Returns the milliseconds of the last iteration. The first one may load kernels."""
        times: list[float] = []
        for number in range(WARM_UP):
            start = time.perf_counter()
            self.losses.append(self._thread.submit(self._training.step).result().item())
            times.append((time.perf_counter() - start) * 1e3)
            if number == 1 and min(times) > slowest_ms:
                raise TooSlow(f"an iteration takes {min(times):.0f} ms")
        return times[-1]

    def _check_losses(self) -> None:
        if not all(map(math.isfinite, self.losses)) or not self.losses[-1] < self.losses[0]:
            raise DoesNotTrain(f"its loss went from {self.losses[0]:.3f} to {self.losses[-1]:.3f}")

    def sample(self) -> Sample:
        """The wall-clock time of an iteration, including the device's work."""
        loss, milliseconds, host_ms = self._thread.submit(self._run).result()
        self.losses.append(float(loss))
        return Sample(milliseconds, host_ms if self.device == "cuda" else None)

    def _run(self) -> tuple[torch.Tensor, float, float]:
        _wait(self.device)
        start = time.perf_counter()
        for _ in range(self.iterations):
            loss = self._training.step()
        queued = time.perf_counter()
        _wait(self.device)
        done = time.perf_counter()
        return loss.detach(), *(1e3 * (t - start) / self.iterations for t in (done, queued))

    def finish(self) -> int:
        """Returns how many steps were skipped. Raises DoesNotTrain if the loss did not fall."""
        self._check_losses()
        return self._thread.submit(self._training.skipped_steps).result()

    def close(self) -> None:
        """Frees the training's memory and ends the thread."""
        if self._training is not None:
            self._thread.submit(self._training.close).result()
            self._training = None
        self._thread.shutdown()


def _allocated_bytes(device: str) -> int:
    return torch.cuda.memory_allocated() if device == "cuda" else 0


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
