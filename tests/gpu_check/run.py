"""`make gpu-check`: builds torchamp for this machine's card, measures and tests it there, offline.

    python3 tests/gpu_check/run.py [--budget SECONDS] [--resume] [--only STAGE …]
                                   [--patience FACTOR] [--without-card]

Uses the torch of the Python that runs this. Stages run in order: the build, a step on each backend,
the GPU tests, the benchmarks, the C++ tests and the sanitizers. A stage that fails or times out
skips only the stages that need it. One whose limit exceeds the time left is not begun: three runs
of the default budget, of which the second and third resume, see all stages. Results go to $OUT
(out/gpu) immediately: gpu-check.log, gpu-check-<device>-<date>.json with the outcome of each stage,
to be kept in benchmarks/results, and a file for each benchmark, which benchmarks/python/report.py
turns into tables. The build goes to build-gpu.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from record import Record
from runner import Runner, Stage
from stages import BENCHMARKS, HERE, ROOT, Setting, stages


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=580, help="seconds for this run (580)")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="leave out what has passed today, by the record in $OUT",
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="STAGE", help="run these and what they need"
    )
    parser.add_argument("--patience", type=float, default=1, help="multiplies each stage's limit")
    parser.add_argument(
        "--without-card", action="store_true", help="run on the CPU, to test the stages themselves"
    )
    return parser.parse_args()


def describe(device: str) -> dict:
    """Describes the machine; exits if it has no card."""
    done = subprocess.run([sys.executable, HERE / "card.py", device], stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit("gpu-check: NOTHING WAS RUN: it needs a card; --without-card tries it without one")
    return json.loads(done.stdout)


def setting_of(machine: dict, device: str) -> Setting:
    return Setting(
        build=ROOT / "build-gpu",
        out=Path(os.environ.get("OUT") or ROOT / "out" / "gpu").resolve(),
        device=device,
        arch=machine["arch"],
        gtest=os.environ.get("GTEST_SOURCE"),
        jobs=int(os.environ.get("MAX_JOBS") or os.cpu_count()),
    )


def forget_earlier_runs(setting: Setting) -> None:
    """Clears the kernel cache and old results, so that NVRTC starts cold and all results are
    new."""
    shutil.rmtree(setting.cache, ignore_errors=True)
    for name in BENCHMARKS:
        setting.rows_of(name).unlink(missing_ok=True)


def check(options: argparse.Namespace, known: list[Stage]) -> None:
    """Exits with a message if the options fit no stage."""
    names = [stage.name for stage in known]
    for name in options.only:
        if name not in names:
            sys.exit(
                f"gpu-check: expected --only to name stages, got {name!r}; the stages are {names}"
            )
    longest = max(known, key=lambda stage: stage.limit)
    if options.budget < longest.limit:
        sys.exit(
            f"gpu-check: expected --budget to be at least {longest.limit:g}, the limit of "
            f"{longest.name!r}, got {options.budget:g}"
        )


def main() -> int:
    deadline = time.monotonic()
    options = parse()
    deadline += options.budget
    device = "cpu" if options.without_card else "cuda"
    machine = describe(device)
    setting = setting_of(machine, device)
    patient = [replace(each, limit=each.limit * options.patience) for each in stages(setting)]
    check(options, patient)
    os.environ.update(setting.environment())
    record = Record(setting.out, machine, options.resume)
    if not record.passed():
        forget_earlier_runs(setting)
    Runner(record, deadline, ROOT).run_all(patient, options.only)
    print(f"\n== the record is {record.path}\n== gpu-check: {record.summary()}")
    return int(record.failed())


if __name__ == "__main__":
    sys.exit(main())
