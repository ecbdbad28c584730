"""apex.parallel over two gloo ranks, and its arguments."""

import copy
import gc
import pickle
import warnings
import weakref

import pytest
import torch
from apex import amp
from apex.parallel import DistributedDataParallel, Reducer
from apex.parallel.distributed import flat_dist_call
from processes import gloo
from processes.ranks import gathered, run_on_two_ranks
from torch import distributed, nn


class Net(nn.Module):
    """A net in which only some forwards use `extra`."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.extra = nn.Linear(4, 4)

    def forward(self, x, uses_extra=True):
        x = self.norm(self.first(x))
        return self.extra(x) if uses_extra else x


OPTIONS = {
    "plain": ({}, 1.0),
    "delayed": ({"delay_allreduce": True}, 1.0),
    "small_messages": ({"message_size": 1}, 1.0),
    "float32": ({"allreduce_always_fp32": True}, 1.0),
    "sum": ({"gradient_average": False}, 2.0),
    "predivided": ({"gradient_predivide_factor": 4.0}, 1.0),
    "predivided_sum": ({"gradient_predivide_factor": 4.0, "gradient_average": False}, 0.5),
}


def _data_parallel(rank):
    for name, (options, factor) in OPTIONS.items():
        torch.manual_seed(rank)
        net = Net()
        net.norm.running_mean.fill_(float(rank))
        parallel = DistributedDataParallel(net, **options)
        assert isinstance(parallel, nn.parallel.DistributedDataParallel)
        assert list(parallel.state_dict())[0] == "module.first.weight"
        assert gloo.are_same([*net.parameters(), net.norm.running_mean])
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(10 + rank))
        for uses_extra in (True, False, True):
            net.zero_grad()
            with parallel.no_sync():
                _own_backward(net, x, uses_extra)
            own = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
            net.zero_grad()
            parallel(x, uses_extra).square().sum().backward()
            for param, grad in zip(net.parameters(), own):
                if grad is None:
                    assert param.grad is None or not param.grad.any()
                    continue
                wanted = sum(gathered(grad)) / 2 * factor
                torch.testing.assert_close(param.grad, wanted, msg=name)


def _own_backward(net, x, uses_extra):
    mean, var = net.norm.running_mean.clone(), net.norm.running_var.clone()
    net(x, uses_extra).square().sum().backward()
    net.norm.running_mean.copy_(mean)
    net.norm.running_var.copy_(var)


def _two_forwards_before_the_backwards(rank):
    """As for a discriminator: torch's broadcast of buffers would break the first graph."""
    net = Net()
    parallel = DistributedDataParallel(net)
    real, fake = parallel(torch.randn(6, 3)), parallel(torch.randn(6, 3))
    (real.sum() - fake.sum()).backward()
    assert gloo.are_same([param.grad for param in net.parameters()])
    a, b = gathered(net.norm.running_mean)
    assert not torch.equal(a, b), "statistics are each rank's own"


def _every_backward_is_reduced(rank):
    """torch's DDP silently reduces only the first backward after a forward."""
    net = nn.Linear(3, 2, bias=False)
    parallel = DistributedDataParallel(net)
    x = torch.full((1, 3), float(rank + 1))
    out = parallel(x)
    for backwards in (1, 2, 3):
        out.sum().backward(retain_graph=True)
        assert net.weight.grad[0, 0] == 1.5 * backwards
    net.zero_grad()
    first, second = parallel(x), parallel(x)
    first.sum().backward()
    second.sum().backward()
    assert net.weight.grad[0, 0] == 3.0
    net.zero_grad()
    with parallel.no_sync():
        parallel(x).sum().backward()
    assert net.weight.grad[0, 0] == rank + 1
    parallel(x).sum().backward()
    assert net.weight.grad[0, 0] == 3.0


def _the_wrapper_goes_with_its_last_reference(rank):
    net = nn.Linear(3, 2)
    parallel = DistributedDataParallel(net)
    parallel(torch.ones(1, 3)).sum().backward()
    gone = weakref.ref(parallel._late_backwards)
    del parallel
    gc.collect()
    assert gone() is None
    net.zero_grad()
    net(torch.full((1, 3), float(rank))).sum().backward()
    assert net.weight.grad[0, 0] == rank


def _copies_reduce_too(rank):
    """apex's wrapper could not be copied."""
    parallel = DistributedDataParallel(nn.Linear(3, 2), gradient_average=False)
    x = torch.full((1, 3), float(rank + 1))
    parallel(x).sum().backward()
    for twin in (copy.deepcopy(parallel), pickle.loads(pickle.dumps(parallel))):
        twin.zero_grad()
        twin(x).sum().backward()
        assert twin.module.weight.grad[0, 0] == 3.0
        assert twin.module.weight is not parallel.module.weight


def _switched_off(rank):
    net = nn.Linear(3, 2)
    parallel = DistributedDataParallel(net)
    x = torch.full((4, 3), float(rank + 1))
    parallel.disable_allreduce()
    parallel(x).sum().backward()
    assert net.weight.grad[0, 0] == 4.0 * (rank + 1)
    net.zero_grad()
    out = parallel(x).sum()
    parallel.enable_allreduce()
    out.backward()
    assert net.weight.grad[0, 0] == 6.0
    net.zero_grad()
    parallel(x).sum().backward()
    assert net.weight.grad[0, 0] == 6.0


def _switched_off_too_late(rank):
    """apex stopped at once; here the pending backward is reduced, and a warning says so."""
    parallel = DistributedDataParallel(nn.Linear(3, 2))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        parallel.disable_allreduce()
        parallel.enable_allreduce()
        out = parallel(torch.full((4, 3), float(rank + 1))).sum()
        parallel.disable_allreduce()
    out.backward()
    assert parallel.module.weight.grad[0, 0] == 6.0
    assert [str(each.message) for each in seen] == [
        "disable_allreduce: expected no forward that waits for its backward, got one, whose grads "
        "are reduced; call it before the forward"
    ]
    assert seen[0].filename == __file__


def _reducer(rank):
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    reducer = Reducer(net)
    assert gloo.are_same(list(net.parameters()))
    net[0].weight.grad = torch.full((2, 2), float(rank))
    net[1].weight.grad = torch.full((2, 2), float(rank), dtype=torch.float64)
    reducer.reduce()
    assert net[0].weight.grad[0, 0] == 0.5 and net[1].weight.grad[0, 0] == 0.5
    tensors = [torch.ones(2) * rank, torch.ones(3) * rank]
    Reducer(tensors).reduce()
    assert tensors[1].tolist() == [0.5] * 3


def _flat_calls(rank):
    tensors = [torch.ones(2) * rank, torch.ones(2).half() * rank, torch.ones(1) * rank]
    flat_dist_call(tensors, distributed.broadcast, (1,))
    assert all(bool((tensor == 1).all()) for tensor in tensors)


def _low_precision_sums_in_float32(rank):
    net = nn.Linear(1, 1, bias=False).half()
    parallel = DistributedDataParallel(net, allreduce_always_fp32=True)
    parallel(torch.full((1, 1), 4e4, dtype=torch.half)).float().sum().backward()
    assert net.weight.grad.dtype == torch.float16
    assert net.weight.grad.item() == pytest.approx(4e4, rel=1e-3)


def test_two_ranks():
    run_on_two_ranks(
        _data_parallel,
        _two_forwards_before_the_backwards,
        _every_backward_is_reduced,
        _the_wrapper_goes_with_its_last_reference,
        _copies_reduce_too,
        _switched_off,
        _switched_off_too_late,
        _reducer,
        _flat_calls,
        _low_precision_sums_in_float32,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shared_param", True),
        ("retain_allreduce_buffers", True),
        ("allreduce_communicators", ([None], [None])),
    ],
)
def test_arguments_without_a_meaning_are_refused(name, value, one_rank):
    with pytest.raises(ValueError) as raised:
        DistributedDataParallel(nn.Linear(2, 2), **{name: value})
    expected = f"DistributedDataParallel: expected {name} to be left out, got {value!r}"
    assert str(raised.value) == expected


def test_amp_refuses_a_wrapped_model(one_rank):
    """apex looked for its own wrapper and never found it."""
    with pytest.raises(RuntimeError, match="initialize first, then wrap"):
        amp.initialize(DistributedDataParallel(nn.Linear(2, 2)), opt_level="O2", verbosity=0)
