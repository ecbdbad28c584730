"""README's figures are those of the committed results, and its ratios the quotients beside them."""

import json
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"
#: As README names the variants.
NAMES = {
    "`FusedAdamW`, one pass": "one pass",
    "`FusedAdamW`, grads clipped by norm": "one pass, clipped",
    "`torch.optim.AdamW(fused=True)` at O2": "O2, torch AdamW(fused)",
    "`torch.optim.AdamW(foreach=True)` at O2": "O2, torch AdamW(foreach)",
    "torch.amp with `AdamW(fused=True)`, without its casts of weights and grads": (
        "torch.amp, AdamW(fused)"
    ),
    "float32 with `AdamW(fused=True)`": "float32, torch AdamW(fused)",
    "a bare AVX2 loop: the same check and arithmetic, nothing around it": "bare AVX2 loop",
    "a plain copy of the 30 bytes per parameter that a step must move": "bare copy",
}


@pytest.fixture(scope="module")
def measured() -> dict:
    """The steps of GPT-2 that README shows the picture of."""
    (name,) = re.findall(r"benchmarks/results/(step-[\w-]+)-gpt2_124m\.png", README)
    rows = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return next(row for row in rows if row["workload"] == "gpt2_124m")


def rows_of_speed() -> list[list[str]]:
    section = README.split("## Speed\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_the_table_is_the_committed_results(measured):
    assert [row[0] for row in rows_of_speed()] == list(NAMES)
    for title, ms, quartiles, one_pass, ratio in rows_of_speed():
        name = NAMES[title]
        first, third = measured["quartiles"][name]
        assert ms == f"{measured['milliseconds'][name]:.1f}"
        assert quartiles == f"{first:.1f}–{third:.1f}"
        assert one_pass == f"{measured['one_pass_ms'][name]:.1f}"
        assert ratio == f"{measured['times_one_pass'][name]:.2f}"


def test_ratios_are_quotients_of_what_is_beside_them():
    for _, ms, _, one_pass, ratio in rows_of_speed():
        assert float(ratio) == pytest.approx(float(ms) / float(one_pass), abs=0.01)


def test_the_first_lines_say_the_same(measured):
    number = README.split("**One step of GPT-2**", 1)[1].split("![", 1)[0]
    said = [int(word) for word in re.findall(r"(\d+)(?: ms)? with", number)]
    names = ("one pass", "O2, torch AdamW(fused)", "O2, torch AdamW(foreach)")
    assert said == [round(measured["milliseconds"][name]) for name in names]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("step-*.json")), ids=lambda path: path.stem)
def test_results_are_quotients(path):
    for row in json.loads(path.read_text())["rows"]:
        for name, ratio in row["times_one_pass"].items():
            quotient = row["milliseconds"][name] / row["one_pass_ms"][name]
            assert ratio == pytest.approx(quotient, rel=1e-9)
        table = path.with_suffix(".md").read_text()
        for name, ms in row["milliseconds"].items():
            assert re.search(rf"\| {re.escape(name)} +\| +{ms:.2f} \|", table)


def test_the_table_of_versions_is_what_the_script_writes():
    sys.path.insert(0, str(ROOT / "build_tools"))
    import tested_with

    written = README.split(tested_with.BEGIN)[1].split(tested_with.END)[0]
    rows = json.loads(tested_with.RECORDS.read_text())
    assert rows and written == tested_with.table(rows)
