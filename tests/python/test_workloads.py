"""The benchmarks' lists of tensors are those of the models that they are named after."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "python"))

import bench_step  # noqa: E402
from workloads import STEP_WORKLOADS, count_elements  # noqa: E402


@pytest.mark.parametrize(
    "name, tensors, parameters",
    [
        ("resnet50", 161, 25_557_032),
        ("vgg16", 32, 138_357_544),
        ("bert_large", 398, 336_226_108),
        ("gpt2_124m", 148, 124_439_808),
        ("gpt2_350m", 292, 354_823_168),
        ("gpt_1.3b", 292, 1_313_626_112),
        ("llama_7b", 291, 6_738_415_616),
        ("small_5000x1024", 5_000, 5_120_000),
        ("tiny_10000x64", 10_000, 640_000),
    ],
)
def test_sizes(name, tensors, parameters):
    assert len(STEP_WORKLOADS[name]) == tensors
    assert count_elements(STEP_WORKLOADS[name]) == parameters


@pytest.mark.parametrize("gigabytes, at_once", [(1000, 15), (30, 8), (10, 2), (1, 0)])
def test_batches_fit_and_cover_all_variants(gigabytes, at_once, monkeypatch):
    monkeypatch.setattr(bench_step, "free_bytes", lambda device: gigabytes * 10**9)
    batches = list(bench_step.batches(124_439_808, "cpu"))
    assert max(map(len, batches), default=0) == at_once
    assert all(batch[0] == bench_step.BASE for batch in batches)
    named = {name for batch in batches for name in batch}
    assert named == (set(bench_step.VARIANTS) if at_once else set())


@pytest.mark.parametrize(
    "name, expected",
    [
        ("one pass", 16),
        ("one pass, split masters", 14),
        ("one pass, split, bfloat16 averages", 10),
        ("master grads made", 20),
        ("torch.amp, AdamW(fused)", 16),
    ],
)
def test_bytes_are_counted(name, expected, monkeypatch):
    monkeypatch.setitem(bench_step.STEP_WORKLOADS, "square", [(256, 256)] * 4)
    row = bench_step.Row("square", 4 * 256 * 256)
    bench_step.measure_batch(row, [bench_step.BASE, name], "cpu", 1)
    assert row.bytes_per_parameter[name] == pytest.approx(expected, abs=0.01)


def test_every_variant_steps(monkeypatch):
    monkeypatch.setitem(bench_step.STEP_WORKLOADS, "tiny", [(3,), (2, 2)])
    row = bench_step.Row("tiny", 7)
    bench_step.measure_batch(row, list(bench_step.VARIANTS), "cpu", 1)
    assert row.times_one_pass[bench_step.BASE] == 1.0
    assert set(row.bytes_per_parameter) == set(bench_step.VARIANTS)
    assert all(milliseconds > 0 for milliseconds in row.milliseconds.values())
