"""Masters on two ranks after a whole run, and models in half with float32 batch norms."""

import pytest
import torch
from apex import amp
from apex.fp16_utils import FP16Model
from apex.parallel import DistributedDataParallel
from ranks import assert_same_on_both, run_on_two_ranks
from torch import nn


def _trained(rank):
    """Each rank trains on data of its own from weights of its own."""
    for level, dtype in (("O2", torch.float16), ("O5", torch.bfloat16)):
        for wrap in (DistributedDataParallel, nn.parallel.DistributedDataParallel):
            torch.manual_seed(rank)
            x, target = torch.randn(16, 64), torch.randn(16, 8)
            model = nn.Linear(64, 8)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
            model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
            parallel = wrap(model)
            losses = []
            for _ in range(40):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(parallel(x), target)
                with amp.scale_loss(loss, optimizer) as scaled_loss:
                    scaled_loss.backward()
                optimizer.step()
                losses.append(loss.item())
            assert losses[-1] < 0.9 * losses[0]
            masters = list(amp.master_params(optimizer))
            assert_same_on_both(*masters, *model.parameters())
            for param, master in zip(model.parameters(), masters):
                assert (param.dtype, master.dtype) == (dtype, torch.float32)
                assert torch.equal(param, master.to(dtype)) and not torch.equal(param, master)


def test_ranks_agree_on_masters_and_models():
    run_on_two_ranks(_trained)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(10, 10, 2)
        self.norm = nn.BatchNorm2d(10)

    def forward(self, x):
        return self.conv(self.norm(x))


def nested():
    inner = nn.Sequential(nn.Conv2d(3, 10, 2), nn.BatchNorm2d(10, affine=False), Block(), Block())
    return nn.Sequential(nn.BatchNorm2d(3), inner)


@pytest.mark.parametrize("given", [torch.float32, torch.float16, torch.float64])
def test_affine_norms_at_any_depth_stay_float32(given, device):
    model = FP16Model(nested().to(device))
    network = model.network
    kept = {network[0], network[1][2].norm, network[1][3].norm}
    for module in model.modules():
        expected = torch.float32 if module in kept else torch.float16
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            assert tensor.dtype == (expected if tensor.is_floating_point() else torch.int64)
    out = model(torch.randn(8, 3, 16, 32, device=device).to(given))
    assert out.dtype == torch.float16 and out.isfinite().all()
    out.float().sum().backward()
    assert all(param.grad.dtype == param.dtype for param in model.parameters())
