"""`make gpu-check`: what only a GPU can tell, in parts that run side by side, offline.

    python3 tests/gpu_check/run.py [--build TREE] [timings]

Uses the torch of the Python that runs this. Builds build-gpu first, unless it is given a tree that
was built with tests and examples. Each part has a time limit, and writes to a file of its name in
$OUT (out/gpu), where failures.txt gets failing Python tests at once. `timings` measures instead, a
benchmark at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = Path(os.environ.get("OUT") or ROOT / "out" / "gpu").resolve()
JOBS = int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)
FAILURES, CACHE = OUT / "failures.txt", OUT / "kernel_cache"
#: CMake's targets, and CTest's tests.
CPP_TESTS = sorted(path.stem for path in (ROOT / "tests" / "cpp").rglob("test_*.cpp"))
#: For tests that run in parallel.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
#: Seconds for a part to end after its limit.
GRACE = 10


@dataclass(frozen=True)
class Part:
    """A command, its limit in seconds, and what it adds to the environment."""

    name: str
    limit: float
    command: list
    environment: dict[str, str] = field(default_factory=dict)


def building(build: Path) -> list[Part]:
    """With many cores, compiling files separately is faster, and so is Ninja."""
    configure = [
        "cmake", "-S", ROOT, "-B", build, *["-G", "Ninja"] * bool(shutil.which("ninja")),
        f"-DPython3_EXECUTABLE={sys.executable}", "-DTORCHAMP_BUILD_TESTS=ON",
        "-DTORCHAMP_BUILD_EXAMPLES=ON", f"-DTORCHAMP_UNITY_BUILD={'ON' if JOBS < 8 else 'OFF'}",
        f"-DTORCHAMP_GTEST_SOURCE_DIR={os.environ.get('GTEST_SOURCE', '')}",
    ]  # fmt: skip
    targets = ["torchamp", "torchamp_python", "cuda_graph", *CPP_TESTS]
    make = ["cmake", "--build", build, "--parallel", JOBS, "--target", *targets]
    return [Part("configure", 60, configure), Part("build", 1800, make)]


def timings() -> list[Part]:
    scripts, options = ROOT / "benchmarks" / "python", ["--device", "cuda", "--json"]
    step = [sys.executable, scripts / "bench_step.py", *options, OUT / "step.json"]
    training = [sys.executable, scripts / "bench_training.py", *options, OUT / "training.json"]
    return [
        Part("bench_step", 200, [*step, "--repeats", "5"]),
        Part("bench_training", 150, [*training, "--limit", "100"]),
    ]


def pytest(jobs: int, *tests: str) -> list:
    workers = ["-n", jobs] if importlib.util.find_spec("xdist") else []
    options = ["-q", "-p", "no:cacheprovider", "-p", "log_failures", "--tb=short", *workers]
    return [sys.executable, "-m", "pytest", *options, "-m", "card", *tests]


def ctest(build: Path, names: list[str]) -> list:
    run = ["cmake", "-E", "chdir", build, "ctest", "--output-on-failure", "-j", max(1, JOBS // 3)]
    return [*run, "-R", f"^({'|'.join(names)})(_aten)?$"]


def lanes(build: Path) -> list[list[Part]]:
    """What runs side by side, each in its order. NVRTC's first start is cold, and its second finds
    the kernels of the first. initcheck must see torch's kernels too, which write what ours read."""
    smoke = [
        Part(f"smoke {name}", 40, [sys.executable, HERE / "smoke.py", "cuda"],
             {"TORCHAMP_KERNELS": backend})
        for name, backend in {"aot": "aot", "nvrtc": "nvrtc", "nvrtc again": "nvrtc",
                              "aten": "aten"}.items()
    ]  # fmt: skip
    ops = [
        Part(f"ops {backend}", 90, pytest(2, "tests/gpu"),
             {**ONE_THREAD, "TORCHAMP_KERNELS": backend})
        for backend in ("nvrtc", "aten")
    ]  # fmt: skip
    on_card = {**ONE_THREAD, "GTEST_FILTER": "*cuda*:*Cuda*"}
    kernels = [name for name in CPP_TESTS if re.match("test_(ops|fused)", name)]
    cpp = [
        Part("C++", 300, ctest(build, CPP_TESTS), on_card),
        Part("C++ nvrtc", 60, ctest(build, kernels), {**on_card, "TORCHAMP_KERNELS": "nvrtc"}),
        Part("C++ graph", 30, [build / "examples" / "cpp" / "cuda_graph" / "cuda_graph"]),
    ]
    ours = ["--kernel-name", "kernel_substring=torchamp_"]
    sanitizers = [
        Part(
            tool,
            90,
            ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1", *only, sys.executable,
             HERE / "sanitized.py", "cuda"],
            {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        )
        for tool, only in {"memcheck": ours, "racecheck": ours, "initcheck": []}.items()
    ]  # fmt: skip
    every = pytest(max(1, JOBS * 2 // 3), "tests/gpu", "tests/python")
    python = Part("Python", 400, every, ONE_THREAD)
    return [[*smoke, *ops], [python], cpp, sanitizers]


class Check:
    """Runs parts, and prints what became of each."""

    def __init__(self, build: Path) -> None:
        self._begin = time.monotonic()
        paths = [build / "python", HERE, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYTHONUNBUFFERED": "1",
            "TORCHAMP_BUILD_DIR": str(build),
            "TORCHAMP_CACHE": str(CACHE),
            "FAILURES": str(FAILURES),
        }
        OUT.mkdir(parents=True, exist_ok=True)
        FAILURES.unlink(missing_ok=True)
        shutil.rmtree(CACHE, ignore_errors=True)

    async def run(self, part: Part) -> bool:
        """Whether it passed."""
        path = OUT / f"{part.name.replace(' ', '_')}.txt"
        try:
            with path.open("w") as output:
                status = await self._status_of(part, output)
        except OSError as error:
            path.write_text(f"{error}\n")
            status = "not run"
        seconds = time.monotonic() - self._begin
        print(f"[{seconds:.0f} s] {part.name}: {status}: {last_word(path)}", flush=True)
        return status == "passed"

    async def run_in_turn(self, parts: list[Part]) -> bool:
        return all([await self.run(part) for part in parts])

    async def run_side_by_side(self, lanes: list[list[Part]]) -> bool:
        return all(await asyncio.gather(*map(self.run_in_turn, lanes)))

    async def _status_of(self, part: Part, output: IO[str]) -> str:
        """Leaves no process of the command's group running."""
        process = await asyncio.create_subprocess_exec(
            *map(str, part.command),
            cwd=ROOT,
            env={**self._environment, **part.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = await asyncio.wait_for(process.wait(), part.limit)
            return f"failed, exit status {code}" if code else "passed"
        except asyncio.TimeoutError:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), GRACE)
            return f"stopped after {part.limit:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def last_word(path: Path) -> str:
    """What CTest and pytest count, or else the last line."""
    lines = path.read_text(errors="replace").splitlines()
    return ([line for line in lines if " passed" in line] or lines or [""])[-1]


def failing_tests() -> list[str]:
    """Of Python, most frequent first, without their parameters."""
    text = FAILURES.read_text() if FAILURES.exists() else ""
    names = collections.Counter(re.findall(r"^#### ([^\s[]+)", text, re.MULTILINE))
    return [f"{count:5} {name}" for name, count in names.most_common()]


async def check(build: Path, builds: bool, measures: bool) -> bool:
    """Whether all passed."""
    checks = Check(build)
    for part in building(build) if builds else []:
        if not await checks.run(part):
            return False
    if measures:
        return await checks.run_in_turn(timings())
    passed = await checks.run_side_by_side(lanes(build))
    print(*failing_tests(), sep="\n")
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["tests", "timings"], default="tests")
    parser.add_argument("--build", type=Path, help="a tree that was built with tests and examples")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(f"gpu-check: NOTHING WAS RUN: torch {torch.__version__} sees no GPU")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    build = (options.build or ROOT / "build-gpu").resolve()
    return int(not asyncio.run(check(build, not options.build, options.what == "timings")))


if __name__ == "__main__":
    sys.exit(main())
