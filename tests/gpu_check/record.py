"""The outcome of each stage, written to disk immediately."""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

PASSED = "passed"
FAILED = "failed"
TIMED_OUT = "timed out"
INTERRUPTED = "interrupted"
NOT_RUN = "not run"
RUNNING = "running"

#: The number of lines of a stage's output to show.
SHOWN_LINES = {PASSED: 12, NOT_RUN: 3}
SHOWN_LINES_OF_FAILURES = 40


@dataclass
class Outcome:
    """The outcome of a stage. `result` is the JSON object in its last line, if any."""

    name: str
    status: str
    reason: str = ""
    seconds: float = 0.0
    result: Any = None
    tail: list[str] = field(default_factory=list)

    def verdict(self) -> str:
        return f"{self.status} ({self.reason})" if self.reason else self.status


class Record:
    """Two files in `folder`: gpu-check-<device>-<date>.json, rewritten at every change, and
    gpu-check.log, the output of all stages. One that `resumes` goes on with those of an earlier run
    of today on the same machine, if there are any."""

    def __init__(self, folder: Path, machine: dict[str, Any], resumes: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        device = re.sub(r"[^a-z0-9]+", "-", str(machine["device"]).lower()).strip("-")
        today = str(datetime.date.today())
        self.path = folder / f"gpu-check-{device}-{today}.json"
        self._log = folder / "gpu-check.log"
        self._facts = {"date": today, "machine": machine}
        self._outcomes = self._passed_before() if resumes else {}
        if not self._outcomes:
            self._log.write_bytes(b"")

    def _passed_before(self) -> dict[str, Outcome]:
        if not self.path.exists():
            return {}
        record = json.loads(self.path.read_text())
        if record["machine"] != self._facts["machine"]:
            return {}
        stages = [Outcome(**stage) for stage in record["stages"]]
        return {each.name: each for each in stages if each.status == PASSED}

    def passed(self) -> set[str]:
        """The names of the stages that have passed."""
        return {each.name for each in self._outcomes.values() if each.status == PASSED}

    def expect(self, names: list[str], chosen: Collection[str]) -> None:
        """Records the stages, in order, that have not passed as not run."""
        fresh = {
            name: Outcome(name, NOT_RUN, "not reached" if name in chosen else "not chosen")
            for name in names
        }
        self._outcomes = {name: self._outcomes.get(name, fresh[name]) for name in names}
        self._write()

    def begin(self, name: str, limit: float) -> None:
        self._outcomes[name] = Outcome(name, RUNNING)
        self._write()
        self._say(f"\n== {name}, for at most {limit:.0f} s")

    def end(self, outcome: Outcome) -> None:
        self._outcomes[outcome.name] = outcome
        self._write()
        for line in outcome.tail[-SHOWN_LINES.get(outcome.status, SHOWN_LINES_OF_FAILURES) :]:
            print(line)
        self._say(f"== {outcome.name}: {outcome.verdict()} after {outcome.seconds:.0f} s")

    def interrupt(self) -> None:
        """Records that the running stage was interrupted and later stages are not run."""
        for outcome in self._outcomes.values():
            if outcome.status == RUNNING:
                outcome.status = INTERRUPTED
        self._write()

    def status_of(self, name: str) -> str:
        return self._outcomes[name].status

    def failed(self) -> bool:
        """Whether a started stage did not pass."""
        return any(each.status not in (PASSED, NOT_RUN) for each in self._outcomes.values())

    def summary(self) -> str:
        """One line: the number of passed stages, and the names of the others, failures first."""
        others = [each for each in self._outcomes.values() if each.status != PASSED]
        names: dict[str, list[str]] = {}
        for outcome in sorted(others, key=lambda each: each.status == NOT_RUN):
            names.setdefault(outcome.verdict(), []).append(outcome.name)
        passed = len(self._outcomes) - len(others)
        words = [f"{verdict}: {', '.join(names[verdict])}" for verdict in names]
        return "; ".join([f"{passed} of {len(self._outcomes)} stages passed", *words])

    def open_log(self) -> BinaryIO:
        return self._log.open("ab")

    def log_size(self) -> int:
        return self._log.stat().st_size

    def log_since(self, start: int) -> str:
        with self._log.open("rb") as log:
            log.seek(start)
            return log.read().decode(errors="replace")

    def _say(self, line: str) -> None:
        print(line, flush=True)
        with self.open_log() as log:
            log.write(f"{line}\n".encode())

    def _write(self) -> None:
        """Replaces the file atomically, so that an interrupted write keeps the previous file."""
        stages = [asdict(outcome) for outcome in self._outcomes.values()]
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({**self._facts, "stages": stages}, indent=1) + "\n")
        os.replace(new, self.path)
