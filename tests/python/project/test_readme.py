"""The figures of README and docs are those of the committed results, their ratios the quotients
beside them, and their bytes those of the tensors."""

from __future__ import annotations

import csv
import json
import pathlib
import re
import statistics
import sys

import pytest
import torch

from torchamp import amp, optimizers

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "build_tools"))

import tested_with  # noqa: E402

README = (ROOT / "README.md").read_text()
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text()
OPTIMIZERS = (ROOT / "docs" / "optimizers.md").read_text()
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


def test_the_first_lines_say_the_same(iterations):
    sentence = "takes # ms with torchamp at O5, # with torch.amp, and # in float32"
    times = iterations["gpt2_small_512"]["milliseconds"]
    expected = [round(times[name], 1) for name in ("O5", "torch.amp, bfloat16", "float32")]
    assert numbers_in(ROOT / "README.md", sentence) == expected


def test_iterations_are_the_committed_results(iterations):
    row = iterations["gpt2_small_512"]
    base = row["milliseconds"][row["base"]]
    assert f"| × {row['base']} |" in PERFORMANCE  # the picture's, too
    rows = table_in(PERFORMANCE, "Iterations on a CPU")
    assert [cells[0] for cells in rows] == list(row["milliseconds"])
    for name, ms, quartiles, times in rows:
        first, third = row["quartiles"][name]
        assert ms == f"{row['milliseconds'][name]:.1f}"
        assert quartiles == f"{first:.1f}–{third:.1f}"
        assert times == f"{row['milliseconds'][name] / base:.2f}"


def on_card(kind: str, key: str) -> dict[str, dict]:
    return results(f"{kind}-{CARD}", key)


@pytest.mark.parametrize(
    ("page", "section"),
    [(PERFORMANCE, "Iterations on the H200"), (README, "Figures")],
    ids=["performance", "readme"],
)
def test_the_card_s_iterations_are_the_committed_results(page, section):
    rows = on_card("training", "network")
    for network, *cells in table_in(page, section):
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
    """README's of steps beside apex, and of what is not faster."""
    readme = ROOT / "README.md"
    steps = on_card("apex", "workload")["gpt2_124m"]
    device = steps["device_ms"]
    base, apex = "O2, FusedAdam", "apex O2, FusedAdam"
    sentence = "FusedAdam takes # times as long on the device as torchamp's one pass"
    assert numbers_in(readme, sentence) == [round(device[apex] / device[base], 1)]
    step = on_card("step", "workload")["gpt2_124m"]["milliseconds"]
    ratio = device[apex] / step["master grads materialized"]
    assert numbers_in(readme, "and # times as long as its default") == [round(ratio, 1)]
    sentence = "A step takes # ms in one pass, and # in float32 by `FusedAdamW`"
    expected = [round(step[name], 2) for name in ("one pass", "float32, FusedAdamW")]
    assert numbers_in(readme, sentence) == expected

    networks = {name: row["milliseconds"] for name, row in on_card("training", "network").items()}
    bert = networks["bert_large"]
    others = ("O1", "O4", "torch.amp, float16", "torch.amp, bfloat16")
    assert bert["TF32"] < min(bert[name] for name in others)


#: The rows of docs/optimizers.md: the level, what initialize gets, and what FusedAdamW gets.
MEMORY = {
    "O0, float32": ("O0", {}, None),
    "O1, O4": ("O4", {}, None),
    "O2": ("O2", {}, None),
    "O5": ("O5", {}, None),
    "O2, `FusedAdamW`, `materialize_master_grads=False`": (
        "O2",
        {"materialize_master_grads": False},
        {},
    ),
    "O0, `FusedAdamW(state_dtype=torch.bfloat16)`": ("O0", {}, {"state_dtype": torch.bfloat16}),
    "O5, `FusedAdamW(state_dtype=torch.bfloat16)`": ("O5", {}, {"state_dtype": torch.bfloat16}),
    "O5, `master_weights=False`, "
    "`FusedAdamW(state_dtype=torch.bfloat16, stochastic_rounding=True)`": (
        "O5",
        {"master_weights": False},
        {"state_dtype": torch.bfloat16, "stochastic_rounding": True},
    ),
}


def bytes_per_parameter(level: str, options: dict, fused: dict | None) -> list[str]:
    """As a cell each: weights, grads, masters and moments, after a step, and their sum."""
    model = torch.nn.Linear(64, 64, bias=False)
    kind = torch.optim.AdamW if fused is None else optimizers.FusedAdamW
    optimizer = kind(model.parameters(), **fused or {})
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)
    with amp.scale_loss(model(torch.rand(1, 64)).mean(), optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    grads = [model.weight.grad]  # before a look at the masters makes others
    masters = [each for each in amp.master_params(optimizer) if each is not model.weight]
    states = [value for value in optimizer.state[model.weight].values() if value.numel() > 1]
    kinds = [sum(t.nbytes for t in each) for each in ([model.weight], grads, masters, states)]
    amp.release(model)
    each = [size // 64**2 for size in [*kinds, sum(kinds)]]
    return [str(size) if size else "–" for size in each]


@pytest.mark.parametrize(
    ("title", "cells"),
    [(row[0], row[1:]) for row in table_in(OPTIMIZERS, "Memory")],
)
def test_bytes_per_parameter_are_those_of_the_tensors(title, cells):
    level, options, fused = MEMORY[title]
    assert cells == bytes_per_parameter(level, options, fused)


def test_readme_has_the_table_s_bytes():
    sentence = "they take # bytes in float32 and at O4 and O5, # at O2, and # or # with"
    float32, by_op, o2, o5, *_, with_masters, without = (
        float(row[-1]) for row in table_in(OPTIMIZERS, "Memory")
    )
    assert numbers_in(ROOT / "README.md", sentence) == [float32, o2, with_masters, without]
    assert float32 == by_op == o5


def test_accuracies_are_the_committed_results():
    choosing = (ROOT / "docs" / "choosing.md").read_text()
    (name,) = re.findall(r"benchmarks/results/(compare-[\w-]+)\.png", choosing)
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        epochs = list(csv.DictReader(file))
    last = [epoch for epoch in epochs if epoch["epoch"] == "10"]
    rows = table_in(choosing, "Does it train as well as float32?")
    arms = dict.fromkeys(epoch["arm"] for epoch in epochs)
    assert len(rows) == len(arms) and len(last) == 5 * len(arms)
    for arm, (title, *cells) in zip(arms, rows):
        assert arm in ("fp32", "native", "apex", f"torchamp-{title}")
        losses = [float(epoch["loss"]) for epoch in last if epoch["arm"] == arm]
        found = [float(epoch["test_accuracy"]) for epoch in last if epoch["arm"] == arm]
        means = [f"{statistics.fmean(values):.4f}" for values in (losses, found)]
        assert cells == [*means, f"{min(found):.4f}–{max(found):.4f}"]


def test_a_training_to_its_end_is_the_committed_one():
    choosing = (ROOT / "docs" / "choosing.md").read_text()
    (name,) = re.findall(r"benchmarks/results/(char_gpt-[\w-]+)\.png", choosing)
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    of_arm = {
        arm: {row["seed"]: float(row["loss"]) for row in rows[9::10] if row["arm"] == arm}
        for arm in dict.fromkeys(row["arm"] for row in rows)
    }
    mib = {arm: max(float(row["mib"]) for row in rows if row["arm"] == arm) for arm in of_arm}
    assert {row["step"] for row in rows[9::10]} == {"2000"}
    table = table_in(choosing, "Trained to its end")
    for (arm, losses), (title, *cells) in zip(of_arm.items(), table, strict=True):
        assert title.startswith(arm)
        values = losses.values()
        spread = f"{min(values):.3f}–{max(values):.3f}"
        assert cells == [f"{statistics.fmean(values):.3f}", spread, f"{mib[arm]:.1f}"]
    base = of_arm["float32"]
    most = max(abs(loss - base[seed]) for each in of_arm.values() for seed, loss in each.items())
    sentence = "From the same seed the levels differ from float32 by # at most"
    assert numbers_in(ROOT / "docs" / "choosing.md", sentence) == [round(most, 4)]


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
    written = tested_with.PAGE.read_text().split(tested_with.BEGIN)[1].split(tested_with.END)[0]
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
