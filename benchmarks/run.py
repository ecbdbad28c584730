"""`make bench`: the ops' benchmarks in Python and in C++, each writing JSON to out/bench/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out" / "bench"


def run(title: str, *command: str | Path) -> None:
    print(f"\n== {title}", flush=True)
    subprocess.run([str(part) for part in command], check=True)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    script = ROOT / "benchmarks" / "python" / "bench_ops.py"
    run("ops, from Python", sys.executable, script, "--json", OUT / "ops_python.json")
    binary = ROOT / "build" / "benchmarks" / "bench_ops"
    if not binary.exists():
        print("\n== ops, from C++: not built (Google Benchmark is missing: libbenchmark-dev)")
        return
    run("ops, from C++", binary, f"--benchmark_out={OUT / 'ops_cpp.json'}",
        "--benchmark_out_format=json")  # fmt: skip


if __name__ == "__main__":
    main()
