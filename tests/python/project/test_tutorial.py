"""docs/tutorial.md runs and prints what it says, and its notebook has the same cells."""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "build_tools"))

import tutorial  # noqa: E402

PAGE = tutorial.PAGE.read_text()
NOTEBOOK = json.loads(tutorial.NOTEBOOK.read_text())


def code_of_the_notebook() -> list[str]:
    return ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def without_numbers(output: str) -> str:
    """Times are the machine's, and so is what preflight recommends. Columns are as wide as what is
    in them. A slow preflight says what it does."""
    output = re.sub(r"^torchamp: preflight: trying .*\n", "", output, flags=re.MULTILINE)
    advice = r"^(Recommended:|No level is) .*\n"
    output = re.sub(advice, "", output, flags=re.MULTILINE)
    output = re.sub(r"\d[\d.]*(?:e[+-]?\d+)?(?:\*\*\d+)?", "#", output)
    return " ".join(output.replace("-", " ").split())


def test_the_notebook_is_that_of_the_page() -> None:
    """Else: python build_tools/tutorial.py"""
    assert tutorial.NOTEBOOK.read_text() == tutorial.notebook(PAGE)
    assert [code.rstrip("\n") for code, _ in tutorial.cells(PAGE)] == code_of_the_notebook()


def test_links_of_the_notebook_lead_to_files() -> None:
    text = "".join("".join(cell["source"]) for cell in NOTEBOOK["cells"])
    links = re.findall(r"\]\((?!https?:)([\w./]+)\)", text)
    assert len(links) > 5
    assert [link for link in links if not (tutorial.NOTEBOOK.parent / link).exists()] == []


#: In a process of its own, where no logging is set up.
PROGRAM = """
import json, sys
sys.path.append(sys.argv[1])
import tutorial
print(json.dumps(tutorial.run(sys.argv[2:], {})))
"""


def test_the_notebook_prints_what_the_page_says(python) -> None:
    folder = str(ROOT / "build_tools")
    printed = json.loads(python("-c", PROGRAM, folder, *code_of_the_notebook()))
    expected = [output for _, output in tutorial.cells(PAGE)]
    assert list(map(without_numbers, printed)) == list(map(without_numbers, expected))
    accuracies = re.findall(r"accuracy (\S+)", "".join(printed))
    assert len(accuracies) == 4 and min(map(float, accuracies)) > 0.85
