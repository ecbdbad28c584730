"""The optimizers of pytorch_optimizer and timm, most of which build on a base of the collection,
train at each level as without torchamp, and those that initialize was not given are left alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch
from torch import nn

from torchamp import amp

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("libraries"),
]

#: How many of a collection train this net by plain PyTorch from a learning rate alone.
COUNTS = {"pytorch_optimizer": 100, "timm.optim": 20}
#: torch's products on a CPU may differ in the last bit with the memory that they get.
EQUAL = 1e-5
#: Kate diverges on this net in float32 too.
LEFT_OUT = {"Kate"}


def makers(collection: str) -> dict[str, Callable]:
    module = importlib.import_module(collection)
    return {
        name: lambda params, kind=kind: kind(params, lr=1e-2)
        for name, kind in vars(module).items()
        if isinstance(kind, type)
        and issubclass(kind, torch.optim.Optimizer)
        and not kind.__module__.startswith("torch.")
        and name not in LEFT_OUT
    }


def losses(make: Callable, level: str | None = None) -> list[float]:
    """The losses of eight steps; without a level, of plain PyTorch."""
    plain = losses(make) if level is not None else None
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    data = torch.randn(64, 16)
    optimizer = make(net.parameters())
    if level is not None:
        net, optimizer = amp.initialize(
            net, optimizer, opt_level=level, loss_scale=128.0, verbosity=0
        )
    found = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = (net(data) - data[:, :4].sin()).pow(2).mean()
        found.append(loss.item())
        if level is None:
            loss.backward()
        else:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        optimizer.step()
    if level is not None:
        # Another of the class is left alone. O1 and O4 cast all ops of the thread.
        assert level in ("O1", "O4") or losses(make) == pytest.approx(plain, rel=EQUAL)
        amp.release(net)
    return found


@pytest.mark.parametrize("collection", COUNTS)
def test_each_trains_as_without_torchamp(collection):
    pytest.importorskip(collection, reason=f"{collection} is not installed")
    wrong, count = {}, 0
    for name, make in makers(collection).items():
        try:
            expected = losses(make)
        except Exception:
            continue  # it needs other arguments
        count += 1
        gained = expected[0] - expected[-1]
        for level in ("O0", "O1", "O2", "O4", "O5"):
            found = losses(make, level)
            if level == "O0":
                is_right = found == pytest.approx(expected, rel=EQUAL)
            else:
                is_right = found[0] - found[-1] == pytest.approx(gained, rel=0.25, abs=3e-3)
            if not is_right:
                wrong[name, level] = found, expected
    assert wrong == {}
    assert count >= COUNTS[collection]
