"""One iteration, checked stage by stage, with an overflow at each parameter in turn."""

import math

import pytest
import torch
from nets import Net, adam, changed, everything, initialized, loss_of, overflow_at, train_step

from torchamp import amp

NAMES = [name for name, _ in Net().named_parameters()]
LEVELS = {"O0": "dynamic", "O1": None, "O2": None, "O3": "dynamic", "O5": "dynamic"}


class Watch:
    """The state that an iteration may write, and which stage wrote what."""

    def __init__(self, model, optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.scaler = optimizer._torchamp.session.scalers[0]
        self.seen = self.look()

    def look(self) -> dict[str, torch.Tensor]:
        tensors = everything(self.model, self.optimizer)
        for kind, params in (
            ("scaled_grads", self.model.parameters()),
            ("master_grads", amp.master_params(self.optimizer)),
        ):
            grads = {
                f"{kind}.{i}": p.grad.clone() for i, p in enumerate(params) if p.grad is not None
            }
            tensors.update(grads)
        tensors["scale"] = torch.tensor(self.scaler.state(), dtype=torch.float64)
        tensors["skip"] = torch.tensor(self.optimizer._torchamp.core.has_overflowed())
        return tensors

    def written(self) -> set[str]:
        """The kinds of tensors written since the last call."""
        before, self.seen = self.seen, self.look()
        return {name.split(".")[0] for name in changed(before, self.seen)}


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("position", [None, *range(len(NAMES))], ids=["none", *NAMES])
@pytest.mark.parametrize("level", LEVELS)
def test_an_iteration(level, position, value):
    model, optimizer = initialized(level, Net(), adam, loss_scale=LEVELS[level])
    train_step(model, optimizer)
    overflows = position is not None
    watch = Watch(model, optimizer)
    has_masters = optimizer._torchamp.core.has_masters
    grads = {"scaled_grads", "master_grads"}

    optimizer.zero_grad()
    assert watch.written() == grads
    loss = loss_of(model)
    assert watch.written() == set(), "forward writes batch norm's buffers only"
    bad = list(model.parameters())[position] if overflows else torch.ones(1, requires_grad=True)
    with overflow_at(bad, value), amp.scale_loss(loss, optimizer) as scaled_loss:
        assert scaled_loss.item() == pytest.approx(loss.item() * watch.scaler.loss_scale())
        assert watch.written() == set()
        scaled_loss.backward()
        kinds = watch.written()
        assert kinds == grads, "batch norm's grads are both"
    kinds = watch.written()
    assert {"scale", "master_grads"} <= kinds
    assert kinds - {"scale", "master_grads"} <= {"scaled_grads", "skip"}
    assert ("skip" in kinds) == overflows
    assert watch.scaler.loss_scale() == (2.0**15 if overflows else 2.0**16)

    optimizer.step()
    kinds = watch.written()
    if overflows:
        assert kinds <= {"skip", *grads}, "a skipped step wrote more"
    else:
        assert {"model", "master", "state"} <= kinds and "scaled_grads" not in kinds
    assert ("master_grads" in kinds) == (has_masters or overflows)
    assert not watch.seen["skip"]

    train_step(model, optimizer)
    assert {"model", "master", "state"} <= watch.written(), "the next step is not skipped"
