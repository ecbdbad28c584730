"""Models for which_precision.py: some that every level fits, and some that fail on purpose."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class Problem(NamedTuple):
    """What is trained. ``batch``: what the model is called with. ``loss_fn``: of what it returns.
    ``fails``: the levels that do not fit, as far as they are known; None: not known."""

    model: nn.Module
    batch: Any
    loss_fn: Callable[[Any], Tensor]
    fails: frozenset[str] | None = None


def mlp(width: int, device: torch.device) -> Problem:
    """Three linear layers that classify random vectors."""
    layers = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).to(device)
    labels = torch.randint(10, (256,), device=device)
    batch = torch.randn(256, 64, device=device)
    return Problem(model, batch, lambda y: functional.cross_entropy(y, labels), frozenset())


def conv(width: int, device: torch.device) -> Problem:
    """Two convolutions with batch norms, of an eighth of the width, on random images."""
    width = max(width // 8, 1)
    layers: list[nn.Module] = []
    for inputs in (3, width):
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]
    model = nn.Sequential(*layers, *pool).to(device)
    labels = torch.randint(10, (16,), device=device)
    batch = torch.randn(16, 3, 16, 16, device=device)
    return Problem(model, batch, lambda y: functional.cross_entropy(y, labels), frozenset())


def transformer(width: int, device: torch.device) -> Problem:
    """Two encoder layers that repeat random tokens."""
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
    body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(50, width), body, nn.Linear(width, 50)).to(device)
    tokens = torch.randint(50, (8, 16), device=device)

    def loss_fn(output: Tensor) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1), tokens.flatten())

    return Problem(model, tokens, loss_fn, frozenset())


class Wrapped(nn.Module):
    """Two linear layers with a function between them."""

    def __init__(self, width: int, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.before = nn.Linear(width, width)
        self.after = nn.Linear(width, width)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.function(self.before(x)))


def trouble_of_range(width: int, device: torch.device) -> Problem:
    """An activation of a million: beyond float16, not beyond bfloat16."""
    return _trouble(width, device, lambda x: x * 1e6 * 1e-6, "O1 O2 O3")


def trouble_of_precision(width: int, device: torch.device) -> Problem:
    """A small number beside 100, which bfloat16's 8 bits round away and float16's 11 do not."""
    return _trouble(width, device, lambda x: (x + 100) - 100, "O4 O5")


def trouble_of_linear_algebra(width: int, device: torch.device) -> Problem:
    """A Cholesky decomposition, which has no 16-bit kernel; O1 and O4 run it in float32."""

    def decompose(x: Tensor) -> Tensor:
        eye = torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)
        return torch.linalg.cholesky(x @ x.transpose(-1, -2) / x.shape[-1] + eye) @ x

    return _trouble(width, device, decompose, "O2 O3 O5")


def _trouble(
    width: int, device: torch.device, function: Callable[[Tensor], Tensor], fails: str
) -> Problem:
    model = Wrapped(width, function).to(device)
    batch = torch.randn(8, 16, width, device=device)
    target = torch.randn(8, 16, width, device=device)
    loss_fn = lambda y: functional.mse_loss(y.float(), target)  # noqa: E731
    return Problem(model, batch, loss_fn, frozenset(fails.split()))


MODELS = {"mlp": mlp, "conv": conv, "transformer": transformer}
TROUBLES = {
    "range": trouble_of_range,
    "precision": trouble_of_precision,
    "linalg": trouble_of_linear_algebra,
}


def load_problem(place: str, device: torch.device) -> Problem:
    """``FILE:function``, which takes a device and returns model, batch and loss_fn."""
    path, _, name = place.rpartition(":")
    if not path:
        raise SystemExit(f"--model: expected {', '.join(MODELS)} or FILE:function, got {place!r}")
    spec = importlib.util.spec_from_file_location("problem", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"--model: expected a Python file, got {path!r}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Problem(*getattr(module, name)(device))
