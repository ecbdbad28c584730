"""Predictions of the kernels' times, and the counts behind them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "python"))

import bench_ops  # noqa: E402
import roofline  # noqa: E402
from bench_ops import cases_of  # noqa: E402
from cards import CARDS, Card, processor_card  # noqa: E402
from kernel_costs import (  # noqa: E402
    ITERATIONS,
    OPS,
    STEPS,
    total_bytes,
    total_launches,
    total_ms,
)
from step_variants import VARIANTS  # noqa: E402
from workloads import STEP_WORKLOADS, count_elements, gpt2  # noqa: E402

GPT2 = gpt2(12, 768)
H100 = CARDS["h100"]


@pytest.mark.parametrize(
    "name, expected",
    [
        ("one pass", 30),
        ("one pass, clipped", 30),
        ("one pass, bfloat16 moments", 22),
        ("master grads materialized", 36),
        ("three passes, as apex", 40),
        ("float32, FusedAdamW", 28),
    ],
)
def test_bytes_a_parameter_of_an_iteration(name, expected):
    assert total_bytes(ITERATIONS[name], GPT2) == expected * count_elements(GPT2)


@pytest.mark.parametrize("name, states", [("Adam", 2), ("AMSGrad", 3), ("SGD", 0), ("momentum", 1)])
def test_a_step_reads_and_writes_master_and_states(name, states):
    assert total_bytes(STEPS[f"step, {name}"], [(1,)]) == 2 + 8 * (1 + states) + 2


def test_ops_and_bytes_are_those_of_the_benchmark_of_the_ops(monkeypatch):
    monkeypatch.setitem(roofline.WORKLOADS, "small", [(4,), (3, 2)])
    counted = {op: num_bytes for op, num_bytes, _ in cases_of("small", "cpu")}
    kernels = {**OPS, **STEPS}
    del kernels["clip"]
    assert counted == {op: total_bytes(kernels[op], [(1,)]) for op in kernels}


def test_the_benchmark_of_the_ops_steps_by_every_algorithm(monkeypatch):
    monkeypatch.setattr(bench_ops, "WORKLOADS", {"small": [(4,), (3, 2)]})
    rows = list(bench_ops.measure("cpu", 1))
    assert set(STEPS) - {"clip"} <= {row.op for row in rows}
    assert all((row.torch_ms is None) == (row.op in STEPS) for row in rows)
    bench_ops.print_table(rows)


def test_iterations_are_the_variants_of_the_benchmark_of_steps():
    assert set(ITERATIONS) <= set(VARIANTS)


@pytest.mark.parametrize(
    "name, tensors, launches",
    [
        ("one pass", 148, 2),
        ("one pass", 10_000, 2),
        ("one pass, bfloat16 moments", 581, 2),
        ("one pass, bfloat16 moments", 582, 3),
        ("master grads materialized", 10_000, 10 + 1),
    ],
)
def test_launches_of_an_iteration(name, tensors, launches):
    assert total_launches(ITERATIONS[name], [(64,)] * tensors, H100) == launches


def test_a_cpu_launches_a_kernel_once():
    cpu = processor_card("a CPU", 40.0)
    assert total_launches(ITERATIONS["master grads materialized"], [(64,)] * 10_000, cpu) == 2


def test_a_case_by_hand():
    """The step of one tensor of 2,048,000 elements on a card of 1 TB/s with one multiprocessor. A
    unit of 2,048 takes 11 microseconds: two initial reads, eight iterations of 256 elements, and
    the last write. The latency of 1,000 units on 16 warps exceeds the transfer of their 57 MB.
    Added are one launch, one unit's time to fill and drain, and two round trips to count one
    tensor."""
    card = Card("made up", copy_gbps=1000.0, launch_us=3.0, round_trip_us=1.0, multiprocessors=1)
    waiting = 1000 * 11 / 16
    assert waiting > 57.344
    expected_us = waiting + 3 + 11 + 2
    assert total_ms(STEPS["step, Adam"], [(2_048_000,)], card) == pytest.approx(expected_us / 1e3)


def test_a_case_by_hand_that_moves_more_than_it_waits():
    card = Card("made up", copy_gbps=10.0, launch_us=3.0, round_trip_us=1.0, multiprocessors=1)
    expected_us = 2_048_000 * 28 / 10e3 + 3 + 11 + 2
    assert total_ms(STEPS["step, Adam"], [(2_048_000,)], card) == pytest.approx(expected_us / 1e3)


@pytest.mark.parametrize("name", roofline.KERNELS)
def test_more_elements_and_more_tensors_never_take_less(name):
    kernels = roofline.KERNELS[name]
    for card in (*CARDS.values(), processor_card("a CPU", 40.0)):
        by_size = [total_ms(kernels, [(size,)] * 8, card) for size in (1, 64, 5_000, 10**7)]
        by_count = [total_ms(kernels, [(64,)] * count, card) for count in (1, 500, 1_000, 10_000)]
        assert by_size == sorted(by_size) and by_count == sorted(by_count)


def test_more_bandwidth_never_takes_longer():
    for shapes in STEP_WORKLOADS.values():
        times = [
            total_ms(ITERATIONS["one pass"], shapes, CARDS[card])
            for card in ("h200", "h100", "a100", "4090")
        ]
        assert times == sorted(times)


def test_no_prediction_beats_the_copy():
    for card in CARDS.values():
        floor_ms = 30 * count_elements(GPT2) / card.copy_gbps / 1e6
        assert floor_ms < total_ms(ITERATIONS["one pass"], GPT2, card) < 1.05 * floor_ms


STEPS_RESULT = {
    "machine": {"device": "NVIDIA H100 80GB HBM3"},
    "rows": [
        {
            "workload": "gpt2_124m",
            "floor_bytes": 30,
            "milliseconds": {"one pass": 2.5, "torch.amp, AdamW(fused)": 9.0, "bare copy": 1.5},
        },
        {"workload": "tiny_10000x64", "floor_bytes": 30, "milliseconds": {"bare copy": 0.01}},
    ],
}
OPS_RESULT = {
    "machine": {"device": "Some CPU"},
    "rows": [
        {
            "op": "check, float16",
            "workload": "gpt2_124m",
            "bytes_per_element": 2,
            "torchamp_ms": 10.0,
            "copy_ms": 8.0,
        }
    ],
}


def test_a_device_is_taken_by_its_name_and_its_largest_copy():
    card = roofline.card_of(STEPS_RESULT)
    assert card.multiprocessors == H100.multiprocessors
    assert card.copy_gbps == pytest.approx(30 * 124_439_808 / 1.5 / 1e6)
    cpu = roofline.card_of(OPS_RESULT)
    assert (cpu.name, cpu.multiprocessors) == ("Some CPU", 0)
    assert cpu.copy_gbps == pytest.approx(2 * 124_439_808 / 8.0 / 1e6)


def test_prediction_and_measurement_stand_side_by_side():
    cells = [cell.strip() for cell in roofline.comparison(STEPS_RESULT).splitlines()[-1].split("|")]
    predicted = total_ms(ITERATIONS["one pass"], GPT2, roofline.card_of(STEPS_RESULT))
    assert cells[1:3] == ["one pass", "gpt2_124m"]
    assert float(cells[5]) == pytest.approx(predicted, abs=1e-3)
    assert cells[7] == "2.500"
    assert float(cells[9]) == pytest.approx(2.5 / predicted, abs=1e-2)
    assert "torch.amp" not in roofline.comparison(STEPS_RESULT)
    assert "| check, float16 |" in roofline.comparison(OPS_RESULT)


def test_rows_that_were_not_run_are_skipped():
    not_run = {"workload": "llama_7b", "floor_bytes": 30, "milliseconds": {}, "not_run": "why"}
    result = {**STEPS_RESULT, "rows": [*STEPS_RESULT["rows"], not_run]}
    assert roofline.comparison(result) == roofline.comparison(STEPS_RESULT)


def test_every_prediction_is_printed(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["roofline.py"])
    roofline.main()
    printed = capsys.readouterr().out
    assert "not measured" in printed
    assert all(name in printed for name in (*roofline.KERNELS, *STEP_WORKLOADS))


def test_the_documentation_has_these_predictions():
    text = (Path(__file__).parents[3] / "docs" / "performance.md").read_text()
    assert roofline.predictions_of_workloads("one pass") in text
    assert roofline.predictions_of_kernels("gpt2_124m") in text
    assert "other GPUs are predictions" in text
