"""The benchmark of training iterations: what it trains, times and leaves out."""

import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "python"))

import bench_training  # noqa: E402
import training_variants  # noqa: E402
from networks import FULL, SMALL, Batch, Task, loss_of  # noqa: E402
from trainer import Trainer  # noqa: E402
from training_variants import ON_CPU, VARIANTS, Training  # noqa: E402
from workloads import STEP_WORKLOADS, count_elements  # noqa: E402

NEVER = float("inf")
SHAPES = {
    "gpt2_124m_2k": "gpt2_124m",
    "gpt2_124m_8k": "gpt2_124m",
    "gpt2_350m_2k": "gpt2_350m",
    "gpt2_350m_8k": "gpt2_350m",
    "resnet50": "resnet50",
    "bert_large": "bert_large",
    "vgg16": "vgg16",
}


def tiny_task() -> Task:
    def batch() -> Batch:
        return Batch((torch.randn(16, 8),), (torch.randint(4, (16,)),))

    def make() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))

    return Task(make, batch, 16, "images")


@pytest.mark.parametrize("name, shapes", SHAPES.items())
def test_networks_have_the_parameters_of_the_models_they_are_named_after(name, shapes):
    with torch.device("meta"):
        parameters = list(FULL[name].make().parameters())
    assert len(parameters) == len(STEP_WORKLOADS[shapes])
    assert sum(map(torch.numel, parameters)) == count_elements(STEP_WORKLOADS[shapes])


@pytest.mark.parametrize("name", FULL)
def test_a_batch_has_as_many_items_as_it_says(name):
    task = FULL[name]
    with torch.device("meta"):
        batch = task.batch()
        assert loss_of(task.make(), batch).shape == ()
    first = batch.inputs[0]
    assert task.items == (first.numel() if task.unit == "tokens" else first.shape[0])


@pytest.mark.parametrize("name", SMALL)
def test_small_networks_learn_their_batch(name):
    trainer = Trainer("float32", "cpu")
    trainer.set_up(SMALL[name], SMALL[name].batch(), NEVER)
    assert trainer.losses[-1] < trainer.losses[0]
    trainer.close()


def test_every_variant_is_timed_beside_its_bases():
    row = bench_training.measure_network("tiny", tiny_task(), "cpu", 3, NEVER)
    assert row.left_out == {} and row.not_run == ""
    assert list(row.milliseconds) == ON_CPU
    assert row.rounds == 3 and row.parameters == 8 * 32 + 32 + 32 * 4 + 4
    assert row.times_as_fast_as_torch_amp["torch.amp, bfloat16"] == 1
    assert row.times_as_fast_as_float32["float32"] == 1
    for name, milliseconds in row.milliseconds.items():
        first, third = row.quartiles[name]
        assert first <= milliseconds <= third
        assert row.items_per_second[name] == pytest.approx(16e3 / milliseconds)
        assert row.peak_bytes[name] is None and row.skipped_steps[name] >= 0


def test_every_variant_is_on_every_device_but_tf32():
    assert set(training_variants.ON_CUDA) == {*ON_CPU, "TF32"} == set(VARIANTS)


def test_skipped_steps_are_counted(monkeypatch):
    """A loss of hundreds overflows float16 at the first scales, and not in float32."""
    monkeypatch.setattr(
        training_variants, "loss_of", lambda network, batch: 1e2 * loss_of(network, batch)
    )
    row = bench_training.measure_network("tiny", tiny_task(), "cpu", 3, NEVER)
    skipped = row.skipped_steps
    assert skipped["float32"] == skipped["O4"] == skipped["O5"] == 0
    assert min(skipped["O2"], skipped["O1"], skipped["torch.amp, float16"]) > 0


def test_float32_is_not_cast_while_o1_and_o4_are_open(monkeypatch):
    seen = {}

    def spied(name, make):
        def train(network, batch):
            training = make(network, batch)

            def step():
                seen[name] = torch.is_autocast_enabled("cpu")
                return training.step()

            return Training(step, training.skipped_steps, training.close)

        return train

    for name in ("float32", "O1", "O4", "O5"):
        monkeypatch.setitem(VARIANTS, name, spied(name, VARIANTS[name]))
    bench_training.measure_network("tiny", tiny_task(), "cpu", 3, NEVER)
    assert seen == {"float32": False, "O1": True, "O4": True, "O5": False}
    assert not torch.is_autocast_enabled("cpu")


def failing(losses):
    """A training with the given losses; repeats the last."""

    def train(network, batch):
        left = list(losses)
        return Training(lambda: torch.tensor(left.pop(0) if len(left) > 1 else left[0]))

    return train


def test_a_variant_that_does_not_train_is_not_timed(monkeypatch):
    monkeypatch.setitem(VARIANTS, "O4", failing([2.0, float("nan"), 1.0]))
    monkeypatch.setitem(VARIANTS, "O5", failing([2.0]))
    monkeypatch.setitem(VARIANTS, "O2", failing([2.0, *[1.0] * 13, 3.0]))
    row = bench_training.measure_network("tiny", tiny_task(), "cpu", 8, NEVER)
    assert row.left_out["O5"] == "its loss went from 2.000 to 2.000"
    assert row.left_out["O2"] == "its loss went from 2.000 to 3.000"
    assert set(row.left_out) == {"O4", "O5", "O2"}
    assert set(row.milliseconds) == set(ON_CPU) - {"O4", "O5", "O2"}


def test_unsupported_variants_are_reported_and_the_others_continue(monkeypatch):
    def train(network, batch):
        raise RuntimeError("could not create a primitive\nand more")

    monkeypatch.setitem(VARIANTS, "torch.amp, bfloat16", train)
    row = bench_training.measure_network("tiny", tiny_task(), "cpu", 3, NEVER)
    assert row.left_out == {"torch.amp, bfloat16": "could not create a primitive"}
    assert row.times_as_fast_as_torch_amp == {}
    assert row.times_as_fast_as_float32["O5"] > 0


def test_a_variant_that_takes_many_times_float32s_time_is_not_timed(monkeypatch):
    calls = []

    def train(network, batch):
        def step():
            calls.append(time.sleep(0.6))
            return torch.tensor(1.0)

        return Training(step)

    monkeypatch.setitem(VARIANTS, "O2", train)
    monkeypatch.setattr(bench_training, "TOO_SLOW", 0)
    row = bench_training.measure_network("tiny", tiny_task(), "cpu", 3, NEVER)
    assert row.left_out["O2"].startswith("an iteration takes ") and len(calls) == 2


def test_what_the_time_does_not_allow_is_a_row_that_says_so(monkeypatch):
    tasks = {"first": tiny_task(), "second": tiny_task()}
    monkeypatch.setitem(bench_training.PRESETS, "small", tasks)
    rows = list(bench_training.measure("cpu", 3, None, 0.0))
    assert [row.network for row in rows] == ["first", "second"]
    monkeypatch.setattr(bench_training, "measure_network", lambda *_: time.sleep(0.2))
    rows = list(bench_training.measure("cpu", 3, None, 0.2))
    assert rows[0] is None and rows[1].not_run == "the time limit of 0 s was reached"


def test_a_network_whose_time_is_up_leaves_variants_out():
    row = bench_training.measure_network("tiny", tiny_task(), "cpu", 3, time.monotonic() - 1)
    assert row.left_out == dict.fromkeys(ON_CPU, "the time limit was reached")
    assert row.milliseconds == {}
