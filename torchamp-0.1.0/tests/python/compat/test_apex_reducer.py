"""apex.parallel's Reducer and helpers over two gloo ranks."""

import pytest
import torch
from apex.parallel import Reducer, create_syncbn_process_group
from apex.parallel.distributed import (
    extract_tensors,
    flat_dist_call,
    split_by_type,
    split_half_float_double,
)
from ranks import assert_same_on_both, run_on_two_ranks
from torch import distributed, nn


def _reducer(rank):
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    reducer = Reducer(net)
    assert_same_on_both(*net.parameters())
    net[0].weight.grad = torch.full((2, 2), float(rank))
    net[1].weight.grad = torch.full((2, 2), float(rank), dtype=torch.float64)
    reducer.reduce()
    assert net[0].weight.grad[0, 0] == 0.5 and net[1].weight.grad[0, 0] == 0.5
    tensors = [torch.ones(2) * rank, torch.ones(3) * rank]
    Reducer(tensors).reduce()
    assert tensors[1].tolist() == [0.5] * 3


def _flat_calls(rank):
    tensors = [torch.ones(2) * rank, torch.ones(2).half() * rank, torch.ones(1) * rank]
    assert [len(group) for group in split_half_float_double(tensors)] == [2, 1]
    assert set(split_by_type(tensors)) == {"torch.FloatTensor", "torch.HalfTensor"}
    flat_dist_call(tensors, distributed.broadcast, (1,))
    assert all(bool((tensor == 1).all()) for tensor in tensors)


def _groups(rank):
    assert create_syncbn_process_group(0) is None
    assert distributed.get_world_size(create_syncbn_process_group(1)) == 1
    assert distributed.get_world_size(create_syncbn_process_group(2)) == 2
    with pytest.raises(AssertionError, match="expected group_size to divide"):
        create_syncbn_process_group(3)


def test_two_ranks():
    run_on_two_ranks(_reducer, _flat_calls, _groups)


def test_extract_tensors_goes_into_nests():
    a, b, found = torch.ones(1), torch.ones(2), []
    extract_tensors([a, (None, [b]), "text", 3], found)
    assert found[0] is a and found[1] is b and len(found) == 2
