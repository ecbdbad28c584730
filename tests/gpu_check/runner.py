"""Runs stages in order within a time budget, even if some fail."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from record import FAILED, NOT_RUN, PASSED, TIMED_OUT, Outcome, Record


@dataclass(frozen=True)
class Stage:
    """A command and its time limit in seconds.

    `needs` names earlier stages that must have passed, and `program` must be on PATH. If the output
    matches `absent`, the machine lacks something, and the stage counts as not run. What a stage
    that `builds` has made may be gone in a later run.
    """

    name: str
    command: Sequence[object]
    limit: float
    needs: tuple[str, ...] = ()
    program: str | None = None
    absent: str | None = None
    builds: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


def to_run(stages: Sequence[Stage], only: Collection[str], passed: Collection[str]) -> set[str]:
    """The names of the stages that have not passed, of those in `only` if it is not empty; and of
    what these need: earlier stages that have not passed, and builds even if they have."""
    chosen: set[str] = set()
    needed: set[str] = set()
    for stage in reversed(stages):
        has_passed, is_needed = stage.name in passed, stage.name in needed
        is_wanted = not has_passed and (not only or stage.name in only)
        if is_wanted or is_needed:
            needed.update(stage.needs)
        if is_wanted or (is_needed and (stage.builds or not has_passed)):
            chosen.add(stage.name)
    return chosen


class Runner:
    """Runs stages in `folder` until `deadline`, a time of time.monotonic(): those whose limit fits
    in the time that is left."""

    def __init__(self, record: Record, deadline: float, folder: Path) -> None:
        self._record = record
        self._deadline = deadline
        self._folder = folder

    def run_all(self, stages: Sequence[Stage], only: Collection[str] = ()) -> None:
        """Runs each stage that can run, of `only` and what these need if it is not empty. Ctrl-C
        and SIGTERM stop the running stage and the rest."""
        chosen = to_run(stages, only, self._record.passed())
        self._record.expect([stage.name for stage in stages], chosen)
        handlers = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
        try:
            for stage in stages:
                if stage.name in chosen:
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
        self._record.begin(stage.name, stage.limit)
        self._record.end(self._execute(stage))

    def _obstacle_of(self, stage: Stage) -> str:
        for name in stage.needs:
            if self._record.status_of(name) != PASSED:
                return f"needs {name}"
        if stage.program and not shutil.which(stage.program):
            return f"no {stage.program} on PATH"
        return "" if time.monotonic() + stage.limit <= self._deadline else "no time left"

    def _execute(self, stage: Stage) -> Outcome:
        begin, start = time.monotonic(), self._record.log_size()
        status, reason = self._status_of(stage)
        outcome = Outcome(stage.name, status, reason, round(time.monotonic() - begin, 1))
        return _read_output(stage, outcome, self._record.log_since(start))

    def _status_of(self, stage: Stage) -> tuple[str, str]:
        try:
            code = self._wait(stage)
        except subprocess.TimeoutExpired:
            return TIMED_OUT, "at its limit"
        except OSError as error:
            return FAILED, str(error)
        return (PASSED, "") if code == 0 else (FAILED, f"exit status {code}")

    def _wait(self, stage: Stage) -> int:
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
                return process.wait(stage.limit)
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
