"""Prints the ten slowest of each part of a test run: objects and programs, C++ and Python files.

slowest.py BEGIN    when the run began, in seconds since the epoch
"""

from __future__ import annotations

import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter

from tested_with import CPP_TESTS, PYTHON_TESTS, ROOT

NINJA_LOG = ROOT / "build" / ".ninja_log"
COUNT = 10


def built(begin: float) -> Counter[str]:
    """Seconds of each output. Empty for another generator than Ninja."""
    seconds: Counter[str] = Counter()
    if NINJA_LOG.exists():
        for line in NINJA_LOG.read_text().splitlines()[1:]:
            start, end, written, output, _ = line.split("\t")
            if int(written) / 1e9 >= begin:
                seconds[output] = (int(end) - int(start)) / 1e3
    return seconds


def cpp_tests(begin: float) -> Counter[str]:
    if not is_new(CPP_TESTS, begin):
        return Counter()
    ended = re.findall(
        r'^Test time = *([\d.]+) sec$(?:.|\n)*?^"(.+)" time elapsed: ',
        CPP_TESTS.read_text(errors="replace"),
        re.M,
    )
    return Counter({name: float(seconds) for seconds, name in ended})


def python_tests(begin: float) -> Counter[str]:
    seconds: Counter[str] = Counter()
    if is_new(PYTHON_TESTS, begin):
        for test in ElementTree.parse(PYTHON_TESTS).iter("testcase"):
            # The name of the class follows, if there is one; a skipped module has no class.
            module = re.match(r"(\w+\.)*test_\w+", test.get("classname") or test.get("name", ""))
            if module is not None:
                seconds[module[0].replace(".", "/") + ".py"] += float(test.get("time", 0))
    return seconds


def is_new(path: pathlib.Path, begin: float) -> bool:
    return path.exists() and path.stat().st_mtime >= begin


def main() -> None:
    begin = float(sys.argv[1])
    parts = {"build": built, "C++ tests": cpp_tests, "Python tests": python_tests}
    for part, times in parts.items():
        for name, seconds in times(begin).most_common(COUNT):
            print(f"{part}: {seconds:6.1f} s  {name}")


if __name__ == "__main__":
    main()
