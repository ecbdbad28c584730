"""Runs stages in order within a time budget, even if some fail."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from record import FAILED, NOT_RUN, PASSED, TIMED_OUT, Outcome, Record

#: With fewer seconds left no stage is started.
LEAST_SECONDS = 3


@dataclass(frozen=True)
class Stage:
    """A command and its time limit in seconds.

    `needs` names earlier stages that must have passed, and `program` must be on PATH. If the output
    matches `absent`, the machine lacks something, and the stage counts as not run.
    """

    name: str
    command: Sequence[object]
    limit: float
    needs: tuple[str, ...] = ()
    program: str | None = None
    absent: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


class Runner:
    """Runs stages in `folder` until `deadline`, a time of time.monotonic()."""

    def __init__(self, record: Record, deadline: float, folder: Path) -> None:
        self._record = record
        self._deadline = deadline
        self._folder = folder

    def run_all(self, stages: Iterable[Stage]) -> None:
        """Runs each stage that can run. Ctrl-C and SIGTERM stop the running stage and the rest."""
        stages = list(stages)
        self._record.expect([stage.name for stage in stages])
        handlers = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
        try:
            for stage in stages:
                self._run(stage)
        except KeyboardInterrupt:
            self._record.interrupt()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _run(self, stage: Stage) -> None:
        obstacle = self._obstacle_of(stage)
        if obstacle:
            self._record.end(Outcome(stage.name, NOT_RUN, obstacle))
            return
        self._record.begin(stage.name, self._limit_of(stage))
        self._record.end(self._execute(stage))

    def _obstacle_of(self, stage: Stage) -> str:
        for name in stage.needs:
            if self._record.status_of(name) != PASSED:
                return f"needs {name}"
        if stage.program and not shutil.which(stage.program):
            return f"no {stage.program} on PATH"
        return "" if self._left() >= LEAST_SECONDS else "no time left"

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _limit_of(self, stage: Stage) -> float:
        return min(stage.limit, self._left())

    def _execute(self, stage: Stage) -> Outcome:
        begin, start = time.monotonic(), self._record.log_size()
        status, reason = self._status_of(stage)
        outcome = Outcome(stage.name, status, reason, round(time.monotonic() - begin, 1))
        return _read_output(stage, outcome, self._record.log_since(start))

    def _status_of(self, stage: Stage) -> tuple[str, str]:
        limit = self._limit_of(stage)
        try:
            code = self._wait(stage, limit)
        except subprocess.TimeoutExpired:
            return TIMED_OUT, "at its limit" if limit == stage.limit else "at the end of the budget"
        except OSError as error:
            return FAILED, str(error)
        return (PASSED, "") if code == 0 else (FAILED, f"exit status {code}")

    def _wait(self, stage: Stage, limit: float) -> int:
        """Returns the command's exit status. Leaves no process of its group running."""
        with self._record.open_log() as log:
            process = subprocess.Popen(
                [str(part) for part in stage.command],
                cwd=self._folder,
                env={**os.environ, **stage.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=os.setpgrp,
            )
            try:
                return process.wait(limit)
            finally:
                _kill_group(process)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _kill_group(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _read_output(stage: Stage, outcome: Outcome, output: str) -> Outcome:
    """The outcome, with the result or the absence that the output reports."""
    outcome.tail = output.splitlines()[-50:]
    outcome.result = _result_in(outcome.tail)
    absence = stage.absent and re.search(f".*(?:{stage.absent}).*", output)
    if absence:
        outcome.status, outcome.reason = NOT_RUN, absence[0].strip()
    return outcome


def _result_in(lines: list[str]) -> Any:
    """The last line, if it is a JSON object."""
    if not lines or not lines[-1].startswith("{"):
        return None
    try:
        return json.loads(lines[-1])
    except ValueError:
        return None
