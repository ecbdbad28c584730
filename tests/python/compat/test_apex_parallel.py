"""apex.parallel over two gloo ranks, and its arguments."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from apex import amp
from apex.parallel import DistributedDataParallel
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
    "plain": {},
    "delayed": {"delay_allreduce": True},
    "small_messages": {"message_size": 1},
    "predivided": {"message_size": 250000000, "gradient_predivide_factor": 2},
}


def _data_parallel(rank):
    for name, options in OPTIONS.items():
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
                torch.testing.assert_close(param.grad, sum(gathered(grad)) / 2, msg=name)


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


NOT_REDUCED = (
    r"^DistributedDataParallel: expected one backward for each forward that allreduce is enabled "
    r"for, got another, whose grads torch does not reduce; sum the losses of a forward, and of "
    r"forwards without a backward between them$"
)


def _no_backward_goes_unreduced(rank):
    """torch's DDP silently reduces only the first backward after a forward."""
    net = nn.Linear(3, 2, bias=False)
    parallel = DistributedDataParallel(net)
    x = torch.full((1, 3), float(rank + 1))
    out = parallel(x)
    out.sum().backward(retain_graph=True)
    assert net.weight.grad[0, 0] == 1.5
    with pytest.raises(RuntimeError, match=NOT_REDUCED):
        out.sum().backward()
    net.zero_grad()
    first, second = parallel(x), parallel(x)
    first.sum().backward()
    with pytest.raises(RuntimeError, match=NOT_REDUCED):
        second.sum().backward()
    net.zero_grad()
    with parallel.no_sync():
        out = parallel(x)
        for backwards in (1, 2):
            out.sum().backward(retain_graph=True)
            assert net.weight.grad[0, 0] == backwards * (rank + 1)
    with pytest.raises(RuntimeError, match=NOT_REDUCED):
        out.sum().backward()
    net.zero_grad()
    with torch.no_grad():
        parallel(x)
    out = parallel(x).sum()
    torch.autograd.grad(out, net.weight, retain_graph=True)
    out.backward()
    assert net.weight.grad[0, 0] == 1.5


def _micro_batches_and_gans_train(rank):
    """Several pairs of a forward and a backward a step, and backwards that pass it by."""
    net, generator = nn.Linear(3, 2), nn.Linear(3, 3)
    parallel, made = DistributedDataParallel(net), DistributedDataParallel(generator)
    x = torch.full((1, 3), float(rank + 1))
    for backwards in (1, 2, 3):
        parallel(x).sum().backward()
        assert net.weight.grad[0, 0] == 1.5 * backwards
    fake = made(x)
    parallel(fake.detach()).sum().backward()
    parallel(fake).sum().backward()
    assert gloo.are_same([param.grad for param in (*net.parameters(), *generator.parameters())])


def _the_wrapper_goes_with_its_last_reference(rank):
    net = nn.Linear(3, 2)
    parallel = DistributedDataParallel(net)
    parallel(torch.ones(1, 3)).sum().backward()
    gone = weakref.ref(parallel)
    del parallel
    gc.collect()
    assert gone() is None
    net.zero_grad()
    net(torch.full((1, 3), float(rank))).sum().backward()
    assert net.weight.grad[0, 0] == rank


def _copies_reduce_too(rank):
    """apex's wrapper could not be copied."""
    parallel = DistributedDataParallel(nn.Linear(3, 2))
    x = torch.full((1, 3), float(rank + 1))
    parallel(x).sum().backward()
    for twin in (copy.deepcopy(parallel), pickle.loads(pickle.dumps(parallel))):
        twin.zero_grad()
        out = twin(x).sum()
        out.backward(retain_graph=True)
        assert twin.module.weight.grad[0, 0] == 1.5
        with pytest.raises(RuntimeError, match=NOT_REDUCED):
            out.backward()
        assert twin.module.weight is not parallel.module.weight


def _switched_off(rank):
    net = nn.Linear(3, 2)
    parallel = DistributedDataParallel(net)
    x = torch.full((4, 3), float(rank + 1))
    parallel.disable_allreduce()
    parallel(x).sum().backward()
    assert net.weight.grad[0, 0] == 4.0 * (rank + 1)
    parallel.enable_allreduce()
    parallel(x).sum().backward()
    assert net.weight.grad[0, 0] == 12.0


def _flat_calls(rank):
    tensors = [torch.ones(2) * rank, torch.ones(2).half() * rank, torch.ones(1) * rank]
    flat_dist_call(tensors, distributed.broadcast, (1,))
    assert all(bool((tensor == 1).all()) for tensor in tensors)


def test_two_ranks():
    run_on_two_ranks(
        _data_parallel,
        _two_forwards_before_the_backwards,
        _no_backward_goes_unreduced,
        _micro_batches_and_gans_train,
        _the_wrapper_goes_with_its_last_reference,
        _copies_reduce_too,
        _switched_off,
        _flat_calls,
    )


@pytest.mark.parametrize(
    ("name", "value", "expected", "remedy"),
    [
        ("shared_param", True, None, "parameters may be shared without it"),
        ("retain_allreduce_buffers", True, False, "read grads from the parameters"),
        ("allreduce_always_fp32", True, False, "grads are divided before they are summed"),
        ("allreduce_communicators", ([None], [None]), None, "torch makes its own"),
        ("gradient_average", False, True, "multiply the loss by the number of ranks"),
    ],
)
def test_arguments_without_a_meaning_are_refused(name, value, expected, remedy, one_rank):
    with pytest.raises(ValueError) as raised:
        DistributedDataParallel(nn.Linear(2, 2), **{name: value})
    assert str(raised.value) == (
        f"DistributedDataParallel: expected {name} to be {expected}, got {value!r}; {remedy}"
    )
    DistributedDataParallel(nn.Linear(2, 2), **{name: expected})


def test_amp_refuses_a_wrapped_model(one_rank):
    """apex looked for its own wrapper and never found it."""
    with pytest.raises(RuntimeError, match="initialize first, then wrap"):
        amp.initialize(DistributedDataParallel(nn.Linear(2, 2)), opt_level="O2", verbosity=0)
