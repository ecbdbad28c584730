"""`make bench`: runs the benchmarks of ops, optimizer steps and training iterations. Each
writes JSON to out/bench/."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out" / "bench"

#: In run order, by script name.
BENCHMARKS = {
    "calls": "calls of optimizers",
    "ops": "ops, from Python",
    "step": "optimizer steps",
    "training": "training iterations",
    "compile": "headers",
}


def run(title: str, *command: str | Path) -> None:
    print(f"\n== {title}", flush=True)
    subprocess.run([str(part) for part in command], check=True)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    scripts = ROOT / "benchmarks" / "python"
    for name, title in BENCHMARKS.items():
        script, result = scripts / f"bench_{name}.py", OUT / f"{name}_python.json"
        run(title, sys.executable, script, "--json", result)
    binary = ROOT / "build" / "benchmarks" / "bench_ops"
    if not binary.exists():
        print("\n== ops, from C++: not built (Google Benchmark is missing: libbenchmark-dev)")
        return
    run("ops, from C++", binary, f"--benchmark_out={OUT / 'ops_cpp.json'}",
        "--benchmark_out_format=json")  # fmt: skip


if __name__ == "__main__":
    main()
