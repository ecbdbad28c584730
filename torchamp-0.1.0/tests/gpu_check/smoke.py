"""Loads the kernels and trains a small network at O2 for five steps, in a new process.

    TORCHAMP_KERNELS=nvrtc python tests/gpu_check/smoke.py cuda

Prints one line of JSON: the backend, the seconds of the first step (including loading the kernels,
excluding torch's initialization) and those of a later step.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
from torch import nn

import torchamp
from torchamp import amp, optimizers

BACKENDS = {"aot": "fatbin", "nvrtc": "nvrtc", "aten": "aten"}


class Training:
    """A network on one batch, at O2 with FusedAdam."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to(device)
        self._x, self._target = torch.randn(64, 32).to(device), torch.randn(64, 8).to(device)
        optimizer = optimizers.FusedAdam(net.parameters(), 0.01)
        self._model, self._optimizer = amp.initialize(net, optimizer, opt_level="O2", verbosity=0)
        self.loss().backward()  # torch's initialization
        optimizer.zero_grad()

    def loss(self) -> torch.Tensor:
        return nn.functional.mse_loss(self._model(self._x).float(), self._target)

    def step(self) -> tuple[float, float]:
        """The loss before the step, and the seconds that the step took."""
        self._optimizer.zero_grad()
        loss = self.loss()
        begin = time.perf_counter()
        with amp.scale_loss(loss, self._optimizer) as scaled_loss:
            scaled_loss.backward()
        self._optimizer.step()
        return loss.item(), time.perf_counter() - begin  # item() waits for the device


def main(device: str) -> None:
    training = Training(device)
    losses, seconds = zip(*(training.step() for _ in range(5)))
    assert losses[-1] < losses[0], f"expected the loss to fall, got {losses}"
    backend = torchamp.build_info()["kernels"]["cuda:0" if device == "cuda" else device]
    demanded = BACKENDS[os.environ["TORCHAMP_KERNELS"]]
    assert device == "cpu" or backend == demanded, f"expected {demanded}, got {backend}"
    print(
        json.dumps({"backend": backend, "first_step_s": seconds[0], "later_step_s": min(seconds)})
    )


if __name__ == "__main__":
    main(sys.argv[1])
