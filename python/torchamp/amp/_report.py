"""What is logged: the chosen settings, skipped steps, and the first that underflowed."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch

from torchamp._load import _C
from torchamp._logging import log
from torchamp.amp._settings import Settings
from torchamp.optimizers import FusedOptimizer

_DESCRIPTIONS = {
    "O0": "everything in float32",
    "O1": "float32 weights, ops in float16 where that is safe",
    "O2": "float16 model, float32 batch norm and master weights",
    "O3": "everything in float16",
    "O4": "float32 weights, ops in bfloat16 where that is safe",
    "O5": "bfloat16 model, float32 batch norm and master weights",
}
_LOW_PRECISION = (torch.float16, torch.bfloat16)


def announce(settings: Settings) -> None:
    """Says what initialize is about to do, unless verbosity is 0."""
    if settings.verbosity <= 0:
        return
    properties = settings.properties
    lines = [f"opt_level {properties.opt_level}: {_DESCRIPTIONS[properties.opt_level]}"]
    for name in ("cast_model_type", "keep_batchnorm_fp32", "master_weights", "loss_scale"):
        lines.append(_line(name, getattr(properties, name), name in settings.overrides))
    casts_ops = "patch_torch_functions" in settings.overrides
    lines.append(_line("autocast_type", properties.autocast_type, casts_ops))
    log(logging.INFO, "\n".join(lines))


def _line(name: str, value: object, is_override: bool) -> str:
    return f"  {name:<22} : {value}{'  (override)' if is_override else ''}"


def announce_savings(optimizer: FusedOptimizer, weights: _C.Masters) -> None:
    """Says how many bytes the optimizer's choices save."""
    if optimizer.state_dtype is torch.bfloat16:
        _say_saved("optimizer state in bfloat16", 2 * _count_states(optimizer))
    if optimizer.stochastic_rounding:
        pairs = zip(weights.model_params(), weights.master_params())
        alone = [param for param, master in pairs if master is param]
        low = sum(param.numel() for param in alone if param.dtype in _LOW_PRECISION)
        _say_saved("stochastic rounding in place of masters", 4 * low)


def _count_states(optimizer: FusedOptimizer) -> int:
    return sum(
        len(_C.state_names(optimizer.algorithm_of(group))) * param.numel()
        for group in optimizer.param_groups
        for param in group["params"]
    )


def _say_saved(how: str, saved: int) -> None:
    log(logging.INFO, f"{how}: {saved / 2**20:.1f} MiB saved")


class Reporter:
    """Reports skipped and underflowed steps."""

    def __init__(self, settings: Settings, names: dict[int, str]) -> None:
        self._settings = settings
        self._names = names

    def name_pieces(self, pieces: Iterable[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
        """Pieces are reported by the names of the parameters before them."""
        for param, piece in pieces:
            if piece is not None and id(param) in self._names:
                self._names[id(piece)] = self._names[id(param)]

    def report_skip(self, skipped: _C.SkippedStep, weights: _C.Masters) -> None:
        """`weights`: those that the step would have written."""
        if self._settings.verbosity > 0:
            for level, message in skipped.messages(self._names_of(skipped, weights)):
                log(level, message)

    def report_underflow(self, message: str) -> None:
        if self._settings.verbosity > 0:
            log(logging.WARNING, message)

    def check_skip(self, skipped: _C.SkippedStep) -> None:
        """Raises RuntimeError after max_consecutive_skips in a row."""
        if self._settings.max_consecutive_skips is not None:
            skipped.check_in_a_row(self._settings.max_consecutive_skips)

    def _names_of(self, skipped: _C.SkippedStep, weights: _C.Masters) -> list[str]:
        params = weights.model_params()
        return [self._names.get(id(params[i]), f"parameter {i}") for i in skipped.first]
