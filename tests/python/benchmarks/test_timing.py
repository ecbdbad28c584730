"""The benchmarks' timers, with a fake device."""

import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "python"))

import timing  # noqa: E402

#: The fake device's clock in cycles per millisecond, like a card's.
CLOCK = 2e6


class Device:
    """Runs queued work in order; stores only the time at which it is idle."""

    def __init__(self) -> None:
        self.free_at = 0.0

    def queue(self, milliseconds: float) -> None:
        self.free_at = max(self.free_at, time.perf_counter()) + milliseconds / 1e3

    def wait(self) -> None:
        time.sleep(max(0.0, self.free_at - time.perf_counter()))


class Event:
    device: Device

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.device.queue(0.0)
        self.date = self.device.free_at

    def query(self) -> bool:
        return time.perf_counter() >= self.date

    def synchronize(self) -> None:
        time.sleep(max(0.0, self.date - time.perf_counter()))

    def elapsed_time(self, other: "Event") -> float:
        return (other.date - self.date) * 1e3


@pytest.fixture
def device(monkeypatch):
    played = Device()
    monkeypatch.setattr(Event, "device", played, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: played.queue(cycles / CLOCK))
    timing.cycles_per_ms.cache_clear()
    yield played
    timing.cycles_per_ms.cache_clear()


def test_the_devices_time_has_nothing_of_the_hosts_in_it(device):
    def run() -> None:
        device.queue(0.5)
        time.sleep(0.01)
        device.queue(0.5)

    sample = timing.CudaClock().sample(run)
    assert sample.queued_ahead
    assert sample.milliseconds == pytest.approx(1.0, abs=1e-6)
    assert sample.host_ms >= 10


def test_the_hold_grows_until_the_work_is_queued_and_stays(device):
    clock = timing.CudaClock()
    clock.sample(lambda: time.sleep(0.01))
    assert 10 <= clock.hold_ms <= timing.LONGEST_HOLD_MS
    hold_ms = clock.hold_ms
    clock.sample(lambda: None)
    assert clock.hold_ms == hold_ms


def test_work_that_waits_for_the_device_is_timed_without_a_hold_and_marked(device):
    def run() -> None:
        device.queue(1.0)
        device.wait()
        device.queue(1.0)

    clock = timing.CudaClock()
    sample = clock.sample(run)
    assert clock.hold_ms == 0 and not sample.queued_ahead
    assert 2.0 <= sample.milliseconds < timing.FIRST_HOLD_MS * 64
    timings = timing.time_interleaved({"waits": run, "queues": lambda: None}, "cuda", 2)
    assert not timings["waits"].queued_ahead and timings["queues"].queued_ahead


def timing_of(*milliseconds: float) -> timing.Timing:
    return timing.Timing([timing.Sample(each) for each in milliseconds])


def test_median_and_quartiles():
    own = timing_of(5, 1, 3, 2, 4)
    assert own.milliseconds == 3 and own.quartiles == (2, 4)
    assert timing_of(7).quartiles == (7, 7)
    assert own.host_ms is None


def test_ratios_are_of_the_same_round():
    """The machine is three times slower in the last two rounds."""
    own, base = timing_of(2, 2, 6, 6), timing_of(1, 1, 3, 3)
    assert own.times(base) == 2


def test_variants_take_turns_and_the_first_rounds_do_not_count():
    calls = []
    runs = {name: (lambda name=name: calls.append(name)) for name in "ab"}
    timings = timing.time_interleaved(runs, "cpu", 3, prepare=lambda name: calls.append(f"+{name}"))
    assert calls == ["+a", "a", "+b", "b"] * 5
    assert [len(timings[name].samples) for name in "ab"] == [3, 3]
    assert timings["a"].host_ms is None


def test_no_round_starts_after_the_deadline_except_the_first_three():
    run = timing.sampler(lambda: None, "cpu")
    timings = timing.sample_in_turn({"a": run}, 100, until=time.monotonic())
    assert len(timings["a"].samples) == 3
