"""Weight grads accumulated by cuBLAS: compared with float64, on streams, in graphs, in threads."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from on_card import CARD, captured, needs_card
from torch import nn

from torchamp import amp

pytestmark = needs_card

#: Rows, outputs, columns.
SIZES = [(1, 1, 1), (7, 5, 3), (64, 128, 96), (1000, 257, 129)]
DTYPES = [torch.float16, torch.bfloat16]


class WeightGrads:
    """A layer, micro-batches for it, and the expected grad of its weight."""

    def __init__(
        self, sizes: tuple[int, int, int] = SIZES[2], dtype=torch.float16, seed=0, batches=3
    ) -> None:
        rows, outputs, columns = sizes
        generator = torch.Generator().manual_seed(seed)

        def batch(width):
            return torch.randn(rows, width, generator=generator).to(dtype)

        pairs = [(batch(columns), batch(outputs)) for _ in range(batches)]
        self._exact = sum(grad.double().T @ x.double() for x, grad in pairs)
        magnitude = sum(grad.double().abs().T @ x.double().abs() for x, grad in pairs)
        # Four times the error bound of float32 sums of this many terms.
        self._bound = magnitude * (rows * batches * 2.0**-22)
        self._pairs = [(x.to(CARD), grad.to(CARD)) for x, grad in pairs]
        layer = nn.Linear(columns, outputs, bias=False, device=CARD, dtype=dtype)
        self.layer = amp.accumulate_weight_grads(layer)

    @property
    def grad(self) -> torch.Tensor:
        return self.layer.weight.grad

    def add_up(self) -> None:
        for x, grad in self._pairs:
            self.layer(x).backward(grad)

    def assert_right(self, times: int = 1) -> None:
        assert self.grad.dtype == torch.float32
        error = (self.grad.cpu().double() - times * self._exact).abs()
        assert (error <= times**2 * self._bound).all(), f"off by {(error / self._bound).max()}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_sums_are_those_of_float64_but_for_float32s_rounding(sizes, dtype):
    grads = WeightGrads(sizes, dtype)
    grads.add_up()
    grads.assert_right()


@pytest.mark.parametrize("dtype", DTYPES)
def test_on_a_side_stream(dtype):
    grads = WeightGrads(dtype=dtype)
    grads.add_up()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        grads.grad.zero_()
        grads.add_up()
    stream.synchronize()
    grads.assert_right()


def test_a_backward_from_another_stream_ends_with_the_grad():
    grads = WeightGrads(SIZES[3], batches=1)
    grads.add_up()
    weight = grads.layer.weight
    node_of_default_stream = weight.view_as(weight).grad_fn.next_functions[0][0]
    grads.grad.zero_()
    ((x, grad),) = grads._pairs
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        output = grads.layer(x)
        torch.cuda._sleep(50_000_000)
    output.backward(grad)
    seen = grads.grad.clone()
    torch.cuda.synchronize()
    assert torch.equal(seen, grads.grad) and seen.any()
    grads.assert_right()
    del node_of_default_stream


def test_twenty_captures_take_no_more_memory_than_three():
    grads = WeightGrads(SIZES[3])
    grads.add_up()
    reserved = []
    for _ in range(20):
        grads.grad.zero_()
        graph = captured(grads.add_up)
        for _ in range(2):
            graph.replay()
        grads.assert_right(times=2)
        del graph
        gc.collect()
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
    assert max(reserved[3:]) <= reserved[2], reserved


def test_a_graph_beside_steps_outside_of_it():
    grads = WeightGrads()
    grads.add_up()
    grads.grad.zero_()
    graph = captured(grads.add_up)
    for _ in range(2):
        graph.replay()
        grads.add_up()
    grads.assert_right(times=4)


def test_in_two_threads():
    begin = threading.Barrier(2)

    def added_up(seed):
        grads = WeightGrads(SIZES[3], seed=seed)
        torch.cuda.synchronize()
        begin.wait(60)
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                if grads.grad is not None:
                    grads.grad.zero_()
                grads.add_up()
            torch.cuda.current_stream().synchronize()
        grads.assert_right()

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(added_up, seed) for seed in range(2)]:
            done.result()
