"""Messages: logging's logger "torchamp", or stderr where the program has set up no logging that
can write them. Warnings. Both have the line of the program that they are about."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from types import FrameType

import torch

logger = logging.getLogger("torchamp")

#: The files whose frames are not the program's.
_NOT_THE_PROGRAM = (
    os.path.dirname(__file__) + os.sep,
    os.path.dirname(torch.__file__) + os.sep,
    contextlib.__file__,
    "<frozen importlib",
)


class _Stderr(logging.Handler):
    """Writes to what sys.stderr is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"torchamp: {record.getMessage()}", file=sys.stderr, flush=True)


_stderr = _Stderr()


def log(level: int, text: str) -> None:
    """Logs `text` in the first process of a group.

    Where neither the logger nor one above it has a handler, messages from logging.INFO on go to
    stderr; logger.setLevel chooses another level. A message that one of the handlers cannot format
    goes to stderr alone.
    """
    if not is_rank_zero() or logger.disabled:
        return
    frame = _frame_of_the_program()
    code = frame.f_code
    record = logger.makeRecord(
        logger.name, level, code.co_filename, frame.f_lineno, "%s", (text,), None, code.co_name
    )
    if logger.hasHandlers():
        if logger.isEnabledFor(level):
            _hand_on(record)
    elif level >= (logger.level or logging.INFO):
        _stderr.handle(record)


def _hand_on(record: logging.LogRecord) -> None:
    """Does what Logger.handle does, but no handler gets what one of them cannot format: its format
    may need attributes that only the program's own records have."""
    passed = logger.filter(record)
    if isinstance(passed, logging.LogRecord):  # from Python 3.12 on a filter may replace it
        record = passed
    if not passed:
        return
    if all(_can_format(handler, record) for handler in _handlers_of(record)):
        logger.callHandlers(record)
    else:
        _stderr.handle(record)


def _handlers_of(record: logging.LogRecord) -> Iterator[logging.Handler]:
    """The handlers that the logger would call."""
    at: logging.Logger | None = logger
    while at is not None:
        yield from (each for each in at.handlers if record.levelno >= each.level)
        at = at.parent if at.propagate else None


def _can_format(handler: logging.Handler, record: logging.LogRecord) -> bool:
    """Tried on a copy, and only where it fails with what the handler's filters add: a filter may
    count its calls."""
    record = copy.copy(record)
    if _formats(handler, record):
        return True
    passed = handler.filter(record)
    return not passed or _formats(
        handler, passed if isinstance(passed, logging.LogRecord) else record
    )


def _formats(handler: logging.Handler, record: logging.LogRecord) -> bool:
    try:
        handler.format(record)
    except Exception:
        return False
    return True


def warn(text: str) -> None:
    """A UserWarning at the line of the program."""
    frame = _frame_of_the_program()
    names = frame.f_globals
    warnings.warn_explicit(
        text,
        UserWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        names.get("__name__"),
        names.setdefault("__warningregistry__", {}),
    )


def _frame_of_the_program() -> FrameType:
    """The innermost frame outside of torchamp and torch, or the outermost one."""
    frame = sys._getframe(1)
    while not is_of_the_program(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def is_of_the_program(file: str) -> bool:
    """Whether a frame of `file` is not torchamp's, torch's or the interpreter's."""
    return not file.startswith(_NOT_THE_PROGRAM)


def is_rank_zero() -> bool:
    """Whether this is the first rank, or there are none."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or (
        distributed.get_rank() == 0
    )
