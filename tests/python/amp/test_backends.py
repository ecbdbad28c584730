"""What the levels do not change: torch's global settings, and wrappers around the model."""

from __future__ import annotations

import pytest
import torch
from nets import LEVELS, Net, batch, initialized, sgd, train_step

from torchamp import amp


@pytest.fixture
def precision():
    """Restores torch's global settings."""
    before = torch.get_float32_matmul_precision()
    allowed = torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before)
    torch.backends.cudnn.allow_tf32 = allowed


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("allowed", [True, False])
def test_tf32_is_the_programs_choice(device, precision, level, allowed):
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed
    model, optimizer = initialized(level, Net(), sgd, device)
    train_step(model, optimizer)
    assert torch.backends.cuda.matmul.allow_tf32 is allowed
    assert torch.backends.cudnn.allow_tf32 is allowed
    assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")


@pytest.mark.parametrize("level", LEVELS)
def test_data_parallel_trains_as_the_model_alone(device, level):
    def trained(wrap):
        torch.manual_seed(0)
        model, optimizer = initialized(level, Net(), sgd, device)
        parallel = wrap(model)
        for seed in range(3):
            optimizer.zero_grad()
            x, target = (tensor.to(device) for tensor in batch(seed))
            loss = torch.nn.functional.cross_entropy(parallel(x).float(), target)
            amp.scale_loss(loss, optimizer).backward()
            optimizer.step()
        return [param.detach().clone() for param in model.parameters()]

    alone, wrapped = trained(lambda model: model), trained(torch.nn.DataParallel)
    torch.testing.assert_close(alone, wrapped)
