"""What is logged: the chosen settings, and skipped steps."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch

from torchamp._load import _C
from torchamp._logging import log
from torchamp.amp._masters import LOW_PRECISION, params_of
from torchamp.amp._settings import DESCRIPTIONS, IN_BFLOAT16, Settings
from torchamp.optimizers import FusedOptimizer

#: So many names of buffers are said.
_FEW = 4


def announce(settings: Settings, device: torch.device) -> None:
    """Says what initialize is about to do, unless verbosity is 0."""
    if settings.options["verbosity"] <= 0:
        return
    properties = settings.properties
    lines = [f"opt_level {properties.opt_level}: {DESCRIPTIONS[properties.opt_level]}"]
    for name in ("cast_model_type", "keep_batchnorm_fp32", "master_weights", "loss_scale"):
        lines.append(_line(name, getattr(properties, name), settings.options.get(name) is not None))
    casts_ops = settings.options["patch_torch_functions"]
    lines.append(_line("autocast_type", properties.autocast_type, casts_ops is not None))
    is_float16 = torch.float16 in (properties.cast_model_type, properties.autocast_type)
    if is_float16 and device.type == "cpu":
        other = IN_BFLOAT16[properties.opt_level]
        lines.append(f"  float16 is slow on most CPUs; {other} computes in bfloat16")
    log(logging.INFO, "\n".join(lines))


def announce_buffers(settings: Settings, cast: Iterable[str]) -> None:
    """Says which buffers initialize is about to round, unless verbosity is 0."""
    dtype, names = settings.properties.cast_model_type, list(dict.fromkeys(cast))
    if not names or dtype not in LOW_PRECISION or settings.options["verbosity"] <= 0:
        return
    first = ", ".join(map(repr, names[:_FEW]))
    others = f" and {len(names) - _FEW} others" if len(names) > _FEW else ""
    log(
        logging.INFO,
        f"initialize: buffers cast to {dtype}: {first}{others}; keep_fp32 takes the names of those "
        "that must stay in float32",
    )


def announce_frozen(
    settings: Settings, optimizers: list[torch.optim.Optimizer], rounded: list[torch.Tensor]
) -> None:
    """Says what masters of frozen parameters take, unless verbosity is 0."""
    if not settings.keeps_masters or settings.options["verbosity"] <= 0:
        return
    rounded_ones = set(rounded)
    frozen = {param for param in params_of(optimizers) if not param.requires_grad}
    mastered = [each for each in frozen if each in rounded_ones or each.dtype in LOW_PRECISION]
    if mastered:
        log(
            logging.INFO,
            f"initialize: float32 masters of {len(mastered)} frozen parameters take "
            f"{4 * sum(each.numel() for each in mastered) / 2**20:.1f} MiB; leave them out of the "
            "optimizer, and pass them to add_param_group when they are to train",
        )


def _line(name: str, value: object, is_override: bool) -> str:
    return f"  {name:<22} : {value}{'  (override)' if is_override else ''}"


def announce_savings(optimizer: FusedOptimizer, core: _C.OptimizerState) -> None:
    """Says how many bytes the optimizer's choices save."""
    if optimizer.state_dtype is torch.bfloat16:
        _say_saved("optimizer state in bfloat16", 2 * _count_states(optimizer))
    if optimizer.stochastic_rounding:
        params = [each.model for each in core.params() if not each.has_master]
        alone = sum(param.numel() for param in params if param.dtype in LOW_PRECISION)
        _say_saved("stochastic rounding in place of masters", 4 * alone)


def _count_states(optimizer: FusedOptimizer) -> int:
    return sum(
        len(_C.state_names(optimizer.algorithm_of(group))) * param.numel()
        for group in optimizer.param_groups
        for param in group["params"]
    )


def _say_saved(how: str, saved: int) -> None:
    log(logging.INFO, f"{how}: {saved / 2**20:.1f} MiB saved")


class Reporter:
    """Reports skipped steps."""

    def __init__(self, settings: Settings, names: dict[int, str]) -> None:
        self.verbosity: int = settings.options["verbosity"]
        self._max_consecutive_skips = settings.options["max_consecutive_skips"]
        self._names = names

    def report_skip(self, skipped: _C.SkippedStep, core: _C.OptimizerState) -> None:
        """`core`: of the optimizer whose step it was."""
        if self.verbosity > 0:
            for level, message in skipped.messages(self._names_of(skipped, core)):
                log(level, message)

    def check_skip(self, skipped: _C.SkippedStep) -> None:
        """Raises RuntimeError after max_consecutive_skips in a row."""
        if self._max_consecutive_skips is not None:
            skipped.check_in_a_row(self._max_consecutive_skips)

    def name_of(self, param: torch.Tensor) -> str:
        """In quotes; its sizes where no model has it."""
        name = self._names.get(id(param))
        return f"one of sizes {list(param.shape)}" if name is None else repr(name)

    def _names_of(self, skipped: _C.SkippedStep, core: _C.OptimizerState) -> list[str]:
        params = core.model_params()
        return [self._names.get(id(params[i]), f"parameter {i}") for i in skipped.first]
