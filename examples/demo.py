"""Trains the digits at every opt level, from C++ and from Python, and compares the two.

Writes out/demo/summary.csv, out/demo/curves.png and a CSV of steps for each run. Exits with status
1 if a level does not learn enough or the languages disagree.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import summary
from runs import CPP_COMMAND, PYTHON_COMMAND, REPOSITORY, Run, build_cpp_example, run

LEVELS = ["O0", "O1", "O2", "O3", "O4", "O5"]


def train_both(level: str, out: Path, arguments: list[str]) -> list[Run]:
    """The level's run in C++ and in Python."""
    runs = []
    for name, command in {"cpp": CPP_COMMAND, "python": PYTHON_COMMAND}.items():
        runs.append(run(command, level, out / f"{level}_{name}.csv", *arguments))
        last = runs[-1]
        print(f"{level} {last.language:6}  test accuracy {last.test_accuracy:.4f}", file=sys.stderr)
    return runs


def agreement_line(cpp: Run, python: Run) -> str:
    difference = summary.largest_difference(cpp, python)
    limit = summary.LOSS_TOLERANCE[cpp.level]
    return f"{cpp.level}  C++ and Python: losses within {difference:.1e} (limit {limit:.0e})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", default="10")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "out" / "demo")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)

    print(
        "demo: compiles examples/cpp/digits, in about a minute, then trains it at each of "
        f"{', '.join(LEVELS)}, from C++ and from Python, in about two",
        file=sys.stderr,
    )
    build_cpp_example()
    passed_on = ["--epochs", arguments.epochs, "--device", arguments.device]
    pairs = [train_both(level, arguments.out, passed_on) for level in LEVELS]
    runs = [each for pair in pairs for each in pair]

    import demo_figure  # matplotlib takes seconds, and more at its first start

    summary.write_summary(runs, arguments.out / "summary.csv")
    demo_figure.draw(pairs, arguments.out / "curves.png")
    print(summary.table(runs), end="\n\n")
    problems = summary.inaccuracies(runs)
    for pair in pairs:
        problem = summary.disagreement(*pair)
        problems += [problem] if problem else []
        print(problem or agreement_line(*pair))
    print(f"\nsummary.csv and curves.png are in {arguments.out}")
    print("\n".join(problems), file=sys.stderr, end="")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
