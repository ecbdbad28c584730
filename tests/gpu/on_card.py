"""The card, and the record of its work."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

CPU = torch.device("cpu")
CARD = torch.device("cuda", 0)

needs_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
needs_two_cards = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def captured(body: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Captures the work of body() as a graph, without running it."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


class Recording:
    """Records the card's work from now until stop()."""

    def __init__(self) -> None:
        self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        torch.cuda.synchronize()
        self._profile.start()

    def stop(self) -> list[str]:
        """The names of the kernels and copies, in order."""
        torch.cuda.synchronize()
        self._profile.stop()
        on_card = torch.autograd.DeviceType.CUDA
        events = [event for event in self._profile.events() if event.device_type == on_card]
        events.sort(key=lambda event: event.time_range.start)
        return [event.name for event in events if "Sync" not in event.name]


def assert_same_bits(got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    """Compares tensors on any devices."""
    assert len(got) == len(expected)
    if torch.equal(_bytes_of(got), _bytes_of(expected)):
        return
    pairs = enumerate(zip(got, expected))
    different = [i for i, pair in pairs if not torch.equal(*(_bytes_of([t]) for t in pair))]
    pytest.fail(
        f"{len(different)} of {len(got)} tensors differ, the first ones are {different[:9]}"
    )


def _bytes_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    rows = [t.detach().contiguous().view(-1).view(torch.uint8) for t in tensors]
    return torch.cat(rows).cpu()
