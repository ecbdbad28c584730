"""apex.parallel's batch norm over ranks, against one batch norm over all of the data."""

import pytest
import torch
from apex.parallel import SyncBatchNorm, convert_syncbn_model, create_syncbn_process_group
from processes.ranks import gathered, run_on_two_ranks
from torch import distributed, nn

SIZES = [(5, 3), (5, 3, 4), (5, 3, 4, 2), (5, 3, 2, 2, 2)]


def _of_ranks(rank):
    for size in SIZES:
        for momentum in (0.1, None):
            _compare(rank, size, momentum, torch.float64)
    _compare(rank, (5, 3, 4), 0.1, torch.float32, offset=1e3)


def _compare(rank, size, momentum, dtype, offset=0.0):
    """Batches of different sizes on the ranks: 3 and 2."""
    generator = torch.Generator().manual_seed(1)
    x = (torch.randn(size, generator=generator, dtype=torch.float64) + offset).to(dtype)
    grad = torch.randn(size, generator=generator, dtype=torch.float64)
    exact = nn.SyncBatchNorm(3, momentum=momentum).double()
    ours = SyncBatchNorm(3, momentum=momentum).to(dtype)
    wide = x.double().requires_grad_()
    wanted = nn.functional.batch_norm(
        wide, exact.running_mean, exact.running_var, exact.weight, exact.bias, True, momentum or 1.0
    )
    wanted.backward(grad)
    part = slice(0, 3) if rank == 0 else slice(3, 5)
    own = x[part].detach().clone().requires_grad_()
    result = ours(own)
    result.backward(grad[part].to(dtype))
    tolerance = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {}
    torch.testing.assert_close(result.double(), wanted[part], **tolerance)
    torch.testing.assert_close(own.grad.double(), wide.grad[part], **tolerance)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(
            getattr(ours, name).double(), getattr(exact, name), rtol=1e-5, atol=1e-5
        )
    torch.testing.assert_close(sum(gathered(ours.bias.grad)).double(), exact.bias.grad, **tolerance)


def _forms(rank):
    torch.manual_seed(0)
    x = torch.randn(4, 3, 5, 5)
    plain = SyncBatchNorm(3)
    half = SyncBatchNorm(3)(x.half())
    assert half.dtype == torch.float16
    untracked = SyncBatchNorm(3, track_running_stats=False)
    torch.testing.assert_close(untracked(x).mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="at least 2D"):
        plain.train()(torch.randn(3))


def _groups(rank):
    assert create_syncbn_process_group(0) is None
    assert distributed.get_world_size(create_syncbn_process_group(1)) == 1
    assert distributed.get_world_size(create_syncbn_process_group(2)) == 2
    with pytest.raises(AssertionError, match="expected group_size to divide"):
        create_syncbn_process_group(3)


def test_two_ranks():
    run_on_two_ranks(_of_ranks, _forms, _groups)


def test_one_process_is_a_batch_norm():
    x = torch.randn(4, 3, 5)
    torch.testing.assert_close(SyncBatchNorm(3)(x), nn.BatchNorm1d(3)(x))


def test_converting_keeps_what_was_there():
    """apex lost the training mode and requires_grad of parameters."""
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, eps=1e-3), nn.InstanceNorm2d(4))
    net.add_module("inner", nn.Sequential(nn.BatchNorm1d(4, affine=False), SyncBatchNorm(4)))
    net[1].eval().weight.requires_grad_(False)
    norm, instance, sync = net[1], net[2], net.inner[1]
    assert convert_syncbn_model(net) is net
    new = net[1]
    assert type(new) is SyncBatchNorm and new.eps == 1e-3 and not new.training
    assert new.weight is norm.weight and not new.weight.requires_grad
    assert new.running_mean is norm.running_mean
    assert net[2] is instance and net.inner[1] is sync
    assert type(net.inner[0]) is SyncBatchNorm and net.inner[0].weight is None
    assert list(net.state_dict()) == list(convert_syncbn_model(net).state_dict())


def test_a_root_is_converted_too():
    root = convert_syncbn_model(nn.BatchNorm2d(4))
    assert type(root) is SyncBatchNorm
    assert isinstance(root, nn.modules.batchnorm._BatchNorm)


@pytest.mark.parametrize("options", [{"channel_last": True}, {"fuse_relu": True}])
def test_other_layouts_and_a_relu_are_torch_s(options):
    told = {"channel_last": False, "fuse_relu": False, **options}
    with pytest.raises(ValueError) as raised:
        SyncBatchNorm(3, **options)
    assert str(raised.value) == (
        f"SyncBatchNorm: expected channel_last and fuse_relu to be False, got "
        f"{told['channel_last']} and {told['fuse_relu']}; use torch.channels_last and torch.nn.ReLU"
    )
    if "channel_last" in options:
        with pytest.raises(ValueError, match="^SyncBatchNorm: expected channel_last"):
            convert_syncbn_model(nn.BatchNorm2d(4), channel_last=True)
