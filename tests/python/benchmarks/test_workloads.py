"""The benchmarks' lists of tensors match the models that they are named after."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "python"))

import bench_step  # noqa: E402
import memory  # noqa: E402
import workloads  # noqa: E402
from step_variants import odd_views  # noqa: E402
from workloads import STEP_WORKLOADS, copy_of, count_elements, random_tensors  # noqa: E402

COPY_BUFFER_BYTES = 1 << 16


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


def test_what_does_not_fit_is_a_row_that_says_so(monkeypatch):
    monkeypatch.setattr(bench_step, "free_bytes", lambda device: 2 * 10**9)
    row = bench_step.measure_workload("gpt2_124m", "cpu", 1)
    assert row.not_run == "two variants need 7.5 GB, 2.0 GB are free"
    assert row.milliseconds == {}


def test_a_variant_out_of_memory_is_reported_and_the_others_continue(monkeypatch):
    def without_memory(shared):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setitem(bench_step.STEP_WORKLOADS, "tiny", [(3,), (2, 2)])
    monkeypatch.setitem(bench_step.VARIANTS, "one pass, clipped", without_memory)
    row = bench_step.measure_workload("tiny", "cpu", 1)
    assert row.not_run == "out of memory at one pass, clipped"
    names = {*bench_step.variants_on("cpu"), bench_step.COPY}
    assert set(row.milliseconds) == names - {"one pass, clipped"}


def test_memory_is_asked_for_after_each_workload_has_gone(monkeypatch):
    """A cache that still holds the last workload would reduce the next one's batches."""
    calls = []
    monkeypatch.setitem(bench_step.STEP_WORKLOADS, "tiny", [(3,)])
    monkeypatch.setattr(bench_step, "release", lambda device: calls.append("release"))
    monkeypatch.setattr(bench_step, "free_bytes", lambda device: calls.append("ask") or 10**9)
    monkeypatch.setattr(bench_step, "measure_variants", lambda *_: calls.append("measure"))
    bench_step.measure_workload("tiny", "cpu", 1)
    assert calls == ["release", "ask", "measure", "release"]


def test_a_cards_cache_counts_as_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 50)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 20)
    assert memory.free_bytes("cuda") == 3 + 30


@pytest.mark.parametrize("num_bytes", [1000, COPY_BUFFER_BYTES, 7 * COPY_BUFFER_BYTES])
def test_a_copy_moves_its_bytes_between_small_buffers(num_bytes, monkeypatch):
    monkeypatch.setattr(workloads, "COPY_BUFFER_BYTES", COPY_BUFFER_BYTES)
    copied = copy_of(num_bytes, "cpu")()
    moved = sum(2 * target.nbytes for target in copied)
    assert moved == pytest.approx(num_bytes, rel=0.01)
    assert all(target.nbytes <= COPY_BUFFER_BYTES for target in copied)


def test_odd_views_keep_values_and_begin_at_odd_elements():
    tensors = random_tensors([(3,), (4, 5), (1,), (8,)], torch.float16, "cpu")
    views = odd_views(tensors)
    assert all(torch.equal(view, tensor) for view, tensor in zip(views, tensors))
    assert all(view.storage_offset() % 2 == 1 for view in views)
    assert len({view.untyped_storage().data_ptr() for view in views}) == 1


@pytest.mark.parametrize(
    "name, expected",
    [
        ("one pass", 16),
        ("one pass, bfloat16 moments", 12),
        ("master grads materialized", 20),
        ("torch.amp, AdamW(fused)", 16),
    ],
)
def test_bytes_are_counted(name, expected, monkeypatch):
    monkeypatch.setitem(bench_step.STEP_WORKLOADS, "square", [(256, 256)] * 4)
    variants = {each: bench_step.VARIANTS[each] for each in (bench_step.BASE, name)}
    monkeypatch.setattr(bench_step, "VARIANTS", variants)
    row = bench_step.measure_workload("square", "cpu", 1)
    assert row.bytes_per_parameter[name] == pytest.approx(expected, abs=0.01)


def test_every_variant_steps_beside_one_pass(monkeypatch):
    monkeypatch.setitem(bench_step.STEP_WORKLOADS, "tiny", [(3,), (2, 2)])
    row = bench_step.measure_workload("tiny", "cpu", 2)
    variants = set(bench_step.variants_on("cpu"))
    names = {*variants, bench_step.COPY}
    assert row.times_one_pass[bench_step.BASE] == 1.0
    assert set(row.bytes_per_parameter) == variants
    assert names == set(row.milliseconds) == set(row.quartiles) == set(row.host_ms)
    for name, milliseconds in row.milliseconds.items():
        assert milliseconds > 0
        assert row.times_one_pass[name] == milliseconds / row.one_pass_ms[name]
