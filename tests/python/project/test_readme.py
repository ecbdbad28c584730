"""The figures of README and of docs/performance.md are those of the committed results, and their
ratios the quotients beside them."""

import json
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "build_tools"))

import tested_with  # noqa: E402

README = (ROOT / "README.md").read_text()
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"
#: As docs/performance.md names the variants.
NAMES = {
    "`FusedAdamW`, one pass": "one pass",
    "`FusedAdamW`, grads clipped by norm": "one pass, clipped",
    "`torch.optim.AdamW(fused=True)` at O2": "O2, torch AdamW(fused)",
    "`torch.optim.AdamW(foreach=True)` at O2": "O2, torch AdamW(foreach)",
    "torch.amp with `AdamW(fused=True)`, without its casts of weights and grads": (
        "torch.amp, AdamW(fused)"
    ),
    "float32 with `AdamW(fused=True)`": "float32, torch AdamW(fused)",
    "a bare AVX2 loop: the same check and arithmetic": "bare AVX2 loop",
    "a plain copy of the 30 bytes per parameter that a step must move": "bare copy",
}


#: The committed results that they show a picture of.
(STEPS,) = re.findall(r"benchmarks/results/(step-[\w-]+)-gpt2_124m\.png", PERFORMANCE)
(ITERATIONS,) = re.findall(r"benchmarks/results/(training-[\w-]+)-gpt2_small_512\.png", PERFORMANCE)
(CARD,) = re.findall(r"benchmarks/results/training-([\w-]+)-gpt2_350m_8k\.png", README)


def results(name: str, key: str) -> dict[str, dict]:
    rows = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return {row[key]: row for row in rows}


@pytest.fixture(scope="module")
def measured() -> dict:
    """The steps of GPT-2."""
    return results(STEPS, "workload")["gpt2_124m"]


@pytest.fixture(scope="module")
def iterations() -> dict[str, dict]:
    return results(ITERATIONS, "network")


def table_in(text: str, section: str) -> list[list[str]]:
    """The cells of the rows of the section's first table."""
    section = text.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    table = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]


def rows_of_steps() -> list[list[str]]:
    return table_in(PERFORMANCE, "Steps on a CPU")


def numbers_in(path: pathlib.Path, sentence: str) -> list[float]:
    """What stands for each # of a sentence, wherever its lines break."""
    pattern = re.escape(sentence).replace("\\#", r"(\d+(?:\.\d+)?)").replace("\\ ", r"\s+")
    (found,) = re.finditer(pattern, path.read_text())
    return [float(number) for number in found.groups()]


def test_the_table_is_the_committed_results(measured):
    assert [row[0] for row in rows_of_steps()] == list(NAMES)
    for title, ms, quartiles, one_pass, ratio in rows_of_steps():
        name = NAMES[title]
        first, third = measured["quartiles"][name]
        assert ms == f"{measured['milliseconds'][name]:.1f}"
        assert quartiles == f"{first:.1f}–{third:.1f}"
        assert one_pass == f"{measured['one_pass_ms'][name]:.1f}"
        assert ratio == f"{measured['times_one_pass'][name]:.2f}"


def test_ratios_are_quotients_of_what_is_beside_them():
    for _, ms, _, one_pass, ratio in rows_of_steps():
        assert float(ratio) == pytest.approx(float(ms) / float(one_pass), abs=0.01)


def test_the_first_lines_say_the_same(iterations):
    sentence = "takes # ms with torchamp at O5, # with torch.amp, and # in float32"
    times = iterations["gpt2_small_512"]["milliseconds"]
    expected = [round(times[name], 1) for name in ("O5", "torch.amp, bfloat16", "float32")]
    assert numbers_in(ROOT / "README.md", sentence) == expected


def test_iterations_are_the_committed_results(iterations):
    row = iterations["gpt2_small_512"]
    float32 = row["milliseconds"]["float32"]
    rows = table_in(PERFORMANCE, "Iterations on a CPU")
    assert [cells[0] for cells in rows] == list(row["milliseconds"])
    for name, ms, quartiles, times in rows:
        first, third = row["quartiles"][name]
        assert ms == f"{row['milliseconds'][name]:.1f}"
        assert quartiles == f"{first:.1f}–{third:.1f}"
        assert times == f"{row['milliseconds'][name] / float32:.2f}"


def on_card(kind: str, key: str) -> dict[str, dict]:
    return results(f"{kind}-{CARD}", key)


def test_the_card_s_iterations_are_the_committed_results():
    rows = on_card("training", "network")
    for network, *cells in table_in(PERFORMANCE, "Iterations on the H200"):
        times, peaks = rows[network]["milliseconds"], rows[network]["peak_bytes"]
        assert cells == [f"{times[name]:.1f} ({peaks[name] / 1e9:.1f})" for name in times]


def test_the_card_s_steps_are_the_committed_results():
    section = PERFORMANCE.split("## Steps on the H200\n")[1]
    names = [
        name.strip() for name in re.search(r"^\| workload \|(.*)\|$", section, re.M)[1].split("|")
    ]
    for workload, *cells in table_in(PERFORMANCE, "Steps on the H200"):
        times = on_card("step", "workload")[workload]["milliseconds"]
        assert [cell.removesuffix(" \\*") for cell in cells] == [f"{times[n]:.3f}" for n in names]


def test_steps_beside_apex_are_the_committed_results():
    row = on_card("apex", "workload")["gpt2_124m"]
    for name, ms, quartiles, ratio, device in table_in(PERFORMANCE, "Beside apex"):
        first, third = row["quartiles"][name]
        assert (ms, quartiles) == (f"{row['milliseconds'][name]:.3f}", f"{first:.3f}–{third:.3f}")
        quotient = row["milliseconds"][name] / row["milliseconds"]["O2, FusedAdam"]
        assert ratio == f"{quotient:.2f}" == f"{row['times_torchamp'][name]:.2f}"
        expected = row["device_ms"][name]
        assert device == ("–" if expected is None else f"{expected:.3f}")


def test_sentences_quote_the_card_s_results():
    networks = {name: row["milliseconds"] for name, row in on_card("training", "network").items()}
    times = networks["gpt2_350m_8k"]
    variants = ("O2", "torch.amp, float16", "TF32", "float32")
    sentence = "took # ms at O2, # with torch.amp in float16, # in TF32 and # in float32"
    expected = [round(times[name], 1) for name in variants]
    assert numbers_in(ROOT / "README.md", sentence) == expected
    sentence = "O1 took # and O4 #, when gelu"
    expected = [round(times[name], 1) for name in ("O1", "O4")]
    assert numbers_in(ROOT / "README.md", sentence) == expected
    bert = networks["bert_large"]
    assert bert["TF32"] < min(bert["O1"], bert["O4"])


def test_sentences_quote_the_committed_results(measured, iterations):
    """Ranges, by their ends."""
    step_rows = results(STEPS, "workload")
    small = step_rows["tiny_10000x64"]["times_one_pass"]
    torchs = [round(small[f"O2, torch AdamW({kind})"]) for kind in ("fused", "foreach")]
    performance = ROOT / "docs" / "performance.md"
    assert numbers_in(performance, "torch's steps at O2 take # to # times as long") == torchs

    large = ("resnet50", "vgg16", "bert_large", "gpt2_124m")
    bare = [round(step_rows[name]["times_one_pass"]["bare AVX2 loop"], 2) for name in large]
    assert numbers_in(performance, "it takes # to # of one pass") == [min(bare), max(bare)]

    def slowdowns(*levels: str) -> list[float]:
        rows = [iterations[name]["milliseconds"] for name in ("resnet_small", "vgg_small")]
        times = [ms[level] / ms["float32"] for ms in rows for level in levels]
        return [round(min(times), 1), round(max(times), 1)]

    convolutions = "take # to # times as long at O4 and O5 as in float32, and # to # times at O1"
    assert numbers_in(ROOT / "README.md", convolutions) == [
        *slowdowns("O4", "O5"),
        *slowdowns("O1", "O2"),
    ]


@pytest.mark.parametrize(
    "path", sorted(RESULTS.glob("training-*.json")), ids=lambda path: path.stem
)
def test_iterations_are_quotients(path):
    for row in json.loads(path.read_text())["rows"]:
        for base, factors in (
            (row["base"], row["times_as_fast_as_torch_amp"]),
            ("float32", row["times_as_fast_as_float32"]),
        ):
            for name, factor in factors.items():
                quotient = row["milliseconds"][base] / row["milliseconds"][name]
                assert factor == pytest.approx(quotient, rel=1e-9)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("ops-*.json")), ids=lambda path: path.stem)
def test_ops_are_quotients(path):
    for row in json.loads(path.read_text())["rows"]:
        assert row["of_copy"] == pytest.approx(row["copy_ms"] / row["torchamp_ms"], rel=1e-9)
        if row["torch_ms"] is not None:
            quotient = row["torch_ms"] / row["torchamp_ms"]
            assert row["times_torch"] == pytest.approx(quotient, rel=1e-9)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("step-*.json")), ids=lambda path: path.stem)
def test_results_are_quotients(path):
    for row in json.loads(path.read_text())["rows"]:
        for name, ratio in row["times_one_pass"].items():
            quotient = row["milliseconds"][name] / row["one_pass_ms"][name]
            assert ratio == pytest.approx(quotient, rel=1e-9)
        table = path.with_suffix(".md").read_text()
        for name, ms in row["milliseconds"].items():
            assert re.search(rf"\| {re.escape(name)} +\| +({ms:.2f}|{ms:.3f})( \\\*)? \|", table)


def test_the_table_of_versions_is_what_the_script_writes():
    written = README.split(tested_with.BEGIN)[1].split(tested_with.END)[0]
    rows = json.loads(tested_with.RECORDS.read_text())
    assert rows and written == tested_with.table(rows)


def test_skipped_tests_do_not_count(monkeypatch, tmp_path):
    outcomes = [
        "Test Passed.",
        "Test Pass Reason:\nRequired regular expression found. Regex=[a]",
        "Test Pass Reason:\nSkip regular expression found in output. Regex=[b]",
        "Test Failed.",
    ]
    log = tmp_path / "LastTest.log"
    log.write_text("\n".join(outcomes))
    monkeypatch.setattr(tested_with, "CPP_TESTS", log)
    assert tested_with.passed_cpp_tests() == 2
    results = tmp_path / "python.xml"
    results.write_text('<x><testsuite tests="5" failures="0" errors="0" skipped="2"/></x>')
    monkeypatch.setattr(tested_with, "PYTHON_TESTS", results)
    assert tested_with.passed_python_tests() == 3
    results.write_text('<x><testsuite tests="5" failures="1" errors="0" skipped="2"/></x>')
    with pytest.raises(SystemExit):
        tested_with.passed_python_tests()


def test_versions_have_an_order():
    versions = ["2.9.1", "2.10.0a0+git1234", "2.10.1+cpu", "2.15.0.dev20261101+cu130"]
    rows = [{"torch": version} for version in versions]
    assert sorted(reversed(rows), key=tested_with.version) == rows
