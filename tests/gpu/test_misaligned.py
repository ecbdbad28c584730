"""Tensors that start at any element of an allocation, alone or together, like bucket views."""

from __future__ import annotations

import itertools

import pytest
import torch
from amp_run import AmpRun
from on_card import CARD, CPU, assert_same_bits, needs_card
from own_kernels import needs_own_kernels
from step_case import ALGORITHMS, StepCase

from torchamp import ops

pytestmark = [needs_card, needs_own_kernels]

SIZES = (5, 33, 700, 2051, 9001)
OFFSETS = range(1, 8)
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def shifted(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """A copy that does not start at the first element of its allocation."""
    memory = torch.empty(tensor.numel() + offset, dtype=tensor.dtype, device=tensor.device)
    return memory[offset:].copy_(tensor)


def which_are_shifted(lists: int) -> list[tuple[int, ...]]:
    """Subsets of lists: each alone, all, and all but the first."""
    return [*((number,) for number in range(lists)), tuple(range(lists)), tuple(range(1, lists))]


def places(lists: int) -> list[tuple[tuple[int, ...], int, int]]:
    """(numbers of the shifted lists, shift, size) for each position."""
    return list(itertools.product(which_are_shifted(lists), OFFSETS, SIZES))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_steps(name, dtype):
    algorithm = ALGORITHMS[name]
    where = places(algorithm.lists)

    def arranged(number, i, tensor):
        numbers, offset, _ = where[i]
        return shifted(tensor, offset if number in numbers else 0)

    def stepped(device):
        sizes = [size for _, _, size in where]
        case = StepCase(algorithm, sizes, device, arranged, grad_dtypes=[dtype])
        for _ in range(3):
            case.step()
        return case.written()

    assert_same_bits(stepped(CARD), stepped(CPU))


OPS = {
    "scale": lambda lists, flags: ops.scale(lists[0], lists[1], 0.7, *flags),
    "unscale": lambda lists, flags: ops.unscale(
        lists[0], lists[1], torch.tensor(0.7).to(flags[0].device), flags[0], False, flags[1]
    ),
    "accumulate": lambda lists, flags: ops.unscale(
        lists[0], lists[1], torch.tensor(0.7).to(flags[0].device), flags[0], True, flags[1]
    ),
    "axpby": lambda lists, flags: ops.axpby(
        0.7, lists[0], 0.3, lists[1], lists[2], flags[0], found_inf_per_tensor=flags[1]
    ),
    "copy_cast": lambda lists, flags: ops.copy_cast(lists[0], lists[1]),
}


@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("name", OPS)
def test_ops(name, source, target):
    where = places(3)

    def run(device):
        generator = torch.Generator().manual_seed(0)

        def list_of(number, dtype):
            values = (torch.randn(size, generator=generator).to(dtype) for _, _, size in where)
            return [
                shifted(value.to(device), offset if number in numbers else 0)
                for value, (numbers, offset, _) in zip(values, where)
            ]

        lists = [list_of(number, dtype) for number, dtype in enumerate((source, target, target))]
        lists[0][11][2] = torch.inf
        flags = torch.zeros((), device=device), torch.zeros(len(where), device=device).byte()
        OPS[name](lists, flags)
        return [*lists[1], *lists[2], *flags]

    assert_same_bits(run(CARD), run(CPU))


@pytest.mark.parametrize("dtype", DTYPES)
def test_checks_see_the_first_and_the_last_element(dtype):
    values = [torch.ones(size, dtype=dtype, device=CARD) for size in SIZES]
    tensors = [shifted(value, offset) for value in values for offset in OFFSETS]
    for i, tensor in enumerate(tensors):
        for element in (0, tensor.numel() // 2, -1):
            tensor[element] = torch.nan
            found_inf = torch.zeros((), device=CARD)
            each = torch.zeros(len(tensors), dtype=torch.uint8, device=CARD)
            ops.check(tensors, found_inf, each)
            assert found_inf == 1 and each.nonzero().tolist() == [[i]]
            tensor[element] = 1


def bucket_views(sizes: list[int], seed: int, device: torch.device) -> list[torch.Tensor]:
    """Grads as in DistributedDataParallel with gradient_as_bucket_view=True: adjacent in one
    buffer, in reverse order of the parameters."""
    values = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(seed))
    bucket = values.half().to(device)
    return list(reversed(bucket.split(list(reversed(sizes)))))


@pytest.mark.parametrize("many", [False, True])
def test_views_of_a_bucket(many):
    sizes = [1, 3, 17, 1023, 2049, 9001, 64, 5] * (1 + 150 * many)

    def trained(device):
        run = AmpRun(device, sizes)
        for step in range(3):
            run.step(bucket_views(sizes, step, device))
        return run.written()

    assert any(view.storage_offset() % 2 for view in bucket_views(sizes, 0, CPU))
    assert_same_bits(trained(CARD), trained(CPU))
