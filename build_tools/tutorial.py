"""Runs docs/tutorial.md, writes what it prints into it, and makes its notebook and figures.

python build_tools/tutorial.py    # with torchamp, numpy and matplotlib
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import os
import pathlib
import re
import sys
import tempfile
from typing import Any

import torch

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorial.md"
NOTEBOOK = ROOT / "examples" / "python" / "ten_minutes.ipynb"
FIGURES = ROOT / "docs" / "figures"
#: Code, and what it prints, if anything.
CELL = re.compile(r"^```python\n(.*?)^```\n(?:\n```\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def cells(page: str) -> list[tuple[str, str]]:
    """Of each block of Python, its code and what the page says that it prints."""
    return CELL.findall(page)


def run(codes: list[str], names: dict[str, Any]) -> list[str]:
    """Runs them where the notebook is; returns what each prints to stdout and stderr."""
    printed = []
    with tempfile.TemporaryDirectory() as folder:
        # The notebook's folder, in which nothing is written.
        place = pathlib.Path(folder, "examples", "python")
        place.mkdir(parents=True)
        (place.parent / "data").symlink_to(ROOT / "examples" / "data")
        before = os.getcwd()
        os.chdir(place)
        try:
            for code in codes:
                text = io.StringIO()
                with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
                    exec(compile(code, str(PAGE), "exec"), names)
                printed.append(text.getvalue())
        finally:
            os.chdir(before)
    return printed


def with_outputs(page: str, outputs: list[str]) -> str:
    """The page with other outputs."""
    rest = iter(outputs)

    def block(match: re.Match[str]) -> str:
        output = next(rest)
        return f"```python\n{match[1]}```\n" + (f"\n```\n{output}```\n" if output else "")

    return CELL.sub(block, page)


def _linked(text: str) -> str:
    """Links of the page as links of the notebook."""
    to = os.path.relpath(PAGE.parent, NOTEBOOK.parent)
    return re.sub(
        r"\]\((?!https?:)([^)]+)", lambda link: f"]({os.path.normpath(f'{to}/{link[1]}')}", text
    )


def _lines(text: str) -> list[str]:
    return text.strip("\n").splitlines(keepends=True)


def notebook(page: str) -> str:
    """The text of the notebook."""
    made: list[dict[str, Any]] = []

    def add(kind: str, text: str, **more: Any) -> None:
        if text.strip():
            source = {"id": f"cell-{len(made)}", "metadata": {}, "source": _lines(text)}
            made.append({"cell_type": kind, **source, **more})

    place = 0
    for match in CELL.finditer(page):
        add("markdown", _linked(page[place : match.start()]))
        output = {
            "name": "stdout",
            "output_type": "stream",
            "text": (match[2] or "").splitlines(True),
        }
        add("code", match[1], execution_count=None, outputs=[output] if match[2] else [])
        place = match.end()
    add("markdown", _linked(page[place:]))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    page = with_outputs(page, run([code for code, _ in cells(page)], names))
    PAGE.write_text(page, encoding="utf-8")
    NOTEBOOK.write_text(notebook(page), encoding="utf-8")
    sys.path.insert(0, str(NOTEBOOK.parent))
    from plot_ranges import save_plots

    save_plots(names["found"], FIGURES, f"torch {torch.__version__}, {datetime.date.today()}")


if __name__ == "__main__":
    main()
