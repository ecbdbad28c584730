"""plot.py draws the CSVs that the examples write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from plot import draw_files
from runs import EXAMPLES

PNG = b"\x89PNG"


def write_steps(path: Path, skipped: bool) -> Path:
    rows = ["step,loss,loss_scale,skipped", f"0,2.5,8,{int(skipped)}", "1,2.25,4,0"]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_column_a_file(tmp_path: Path) -> None:
    files = [write_steps(tmp_path / f"{name}.csv", name == "real") for name in ("real", "fake")]
    figure = draw_files(files)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["real", "fake", "", ""]
    lines = figure.axes[2].get_lines()
    assert [list(line.get_ydata()) for line in lines] == [[8.0, 4.0], [8.0]]


def test_the_command(tmp_path: Path) -> None:
    steps, picture = write_steps(tmp_path / "steps.csv", True), tmp_path / "curves.png"
    command = [sys.executable, EXAMPLES / "plot.py", steps, "--out", picture]
    subprocess.run(command, check=True)
    assert picture.read_bytes().startswith(PNG)
