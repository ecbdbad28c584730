"""Writes the table of docs/testing.md of the torch versions that the tests passed with.

tested_with.py record          what just passed, to out/tests/tested.json; run_tests.sh calls it
tested_with.py write FILE...   adds such files to docs/tested.json, and rewrites the table
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import platform
import re
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON_TESTS = ROOT / "out" / "tests" / "python.xml"
CPP_TESTS = ROOT / "build" / "Testing" / "Temporary" / "LastTest.log"
RECORD = ROOT / "out" / "tests" / "tested.json"
RECORDS = ROOT / "docs" / "tested.json"
PAGE = ROOT / "docs" / "testing.md"
BEGIN, END = "<!-- tested_with.py writes this table -->\n", "<!-- end of the table -->\n"


def passed_python_tests() -> int:
    suite = ElementTree.parse(PYTHON_TESTS).getroot().find("testsuite")
    assert suite is not None
    count = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    if count["failures"] or count["errors"]:
        raise SystemExit(f"tested_with: {PYTHON_TESTS} has failures")
    return count["tests"] - count["skipped"]


def passed_cpp_tests() -> int | None:
    """Without those that were skipped. None if they did not run."""
    if not CPP_TESTS.exists():
        return None
    passed = r"^Test Passed\.$|^Required regular expression found"
    return len(re.findall(passed, CPP_TESTS.read_text(errors="replace"), re.MULTILINE))


def record() -> None:
    import torch

    import torchamp

    built = torchamp.build_info()
    facts = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "compiler": built["compiler"].replace("GNU", "g++"),
        "cxx_standard": built["cxx_standard"],
        "processor": platform.machine(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cpp_tests": passed_cpp_tests(),
        "python_tests": passed_python_tests(),
        "date": str(datetime.date.today()),
    }
    RECORD.write_text(json.dumps(facts, indent=1) + "\n")


def version(row: dict) -> tuple[int, ...]:
    """Also of 2.15.0.dev20261101 and of 2.9.0a0."""
    release = re.match(r"(\d+)\.(\d+)\.(\d+)", row["torch"])
    assert release is not None
    return tuple(map(int, release.groups()))


def key(row: dict) -> tuple:
    return row["torch"], row["python"].rpartition(".")[0], row["compiler"].split()[0], row["gpu"]


def table(rows: list[dict]) -> str:
    lines = ["| torch | Python | C++ | on | C++ tests | Python tests | date |"]
    lines.append("|---|---|---|---|--:|--:|---|")
    for row in sorted(rows, key=version):
        device = row["gpu"] or f"the CPU, {row['processor']}"
        compiler = f"C++{row['cxx_standard']}, {row['compiler']}"
        cpp = "not run" if row["cpp_tests"] is None else row["cpp_tests"]
        lines.append(
            f"| {row['torch']} | {row['python']} | {compiler} | {device} | {cpp} "
            f"| {row['python_tests']:,} | {row['date']} |"
        )
    return "\n".join(lines) + "\n"


def write(files: list[pathlib.Path]) -> None:
    rows = {key(row): row for row in json.loads(RECORDS.read_text())}
    for file in files:
        row = json.loads(file.read_text())
        rows[key(row)] = row
    RECORDS.write_text(json.dumps(sorted(rows.values(), key=version), indent=1) + "\n")
    text = PAGE.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise SystemExit(f"tested_with: expected {BEGIN!r} and {END!r} in {PAGE}")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + table(list(rows.values())) + END + after, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record")
    commands.add_parser("write").add_argument("files", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    record() if arguments.command == "record" else write(arguments.files)


if __name__ == "__main__":
    main()
