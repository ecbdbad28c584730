"""docs/libtorch.md shows parts of examples/cpp/ten_minutes and the commands to build and run it."""

from __future__ import annotations

import pathlib
import re
import shutil
import textwrap

import pytest
import torch
from installed import ROOT, run

PROJECT = ROOT / "examples" / "cpp" / "ten_minutes"
GUIDE = (ROOT / "docs" / "libtorch.md").read_text()


def blocks(language: str) -> list[str]:
    """The guide's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def marked_parts() -> list[str]:
    """The program's code between pairs of markers `// [name]`."""
    source = (PROJECT / "main.cpp").read_text()
    marked = re.findall(r"^ *// \[(\w+)\]\n(.*?)^ *// \[\1\]\n", source, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(part) for _, part in marked]


def test_shows_the_program() -> None:
    assert len(blocks("cpp")) > 1
    assert sorted(blocks("cpp")) == sorted(marked_parts())
    assert blocks("cmake") == [(PROJECT / "CMakeLists.txt").read_text()]


@pytest.fixture
def printed(prefix: pathlib.Path, tmp_path: pathlib.Path) -> dict[str, float]:
    """The program's output, built with the guide's commands outside of torchamp's tree."""
    project = shutil.copytree(PROJECT, tmp_path / "project")
    torch_folder = str(pathlib.Path(torch.__file__).parent)
    (commands,) = blocks("sh")
    commands = commands.replace("/path/to/libtorch", torch_folder)
    commands = commands.replace("/path/to/torchamp", str(prefix))
    launcher = shutil.which("ccache") or ""
    output = run("sh", "-ec", f"cd '{project}'\n{commands}", CMAKE_CXX_COMPILER_LAUNCHER=launcher)
    return {name: float(value) for name, value in re.findall(r"^(\w+) +([\d.]+)$", output, re.M)}


@pytest.mark.soak
def test_builds_and_trains(printed: dict[str, float]) -> None:
    """Every way of training learns the ring; the resumed run equals the uninterrupted one."""
    names = ["plain", "GradScaler", "O2", "fused", "resumed", "average", "function"]
    assert list(printed) == names
    assert min(printed.values()) > 0.9
    assert printed["resumed"] == printed["fused"]
