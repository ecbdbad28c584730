"""Messages: logging's logger "torchamp", or stderr where the program has set up no logging."""

from __future__ import annotations

import logging
import sys

import torch

logger = logging.getLogger("torchamp")


class _Stderr(logging.Handler):
    """Writes to what sys.stderr is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"torchamp: {record.getMessage()}", file=sys.stderr, flush=True)


_stderr = _Stderr()


def log(level: int, text: str) -> None:
    """Logs `text` in the first process of a group.

    Where neither the logger nor one above it has a handler, messages from logging.INFO on go to
    stderr; logger.setLevel chooses another level.
    """
    if not is_rank_zero():
        return
    if logger.hasHandlers():
        logger.log(level, "%s", text)
    elif level >= (logger.level or logging.INFO) and not logger.disabled:
        _stderr.handle(logger.makeRecord(logger.name, level, "", 0, "%s", (text,), None))


def is_rank_zero() -> bool:
    """Also without ranks."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or (
        distributed.get_rank() == 0
    )
