"""A training iteration at O2, and a graph of it."""

from __future__ import annotations

from typing import Any

import on_card
import torch
from torch import nn

from torchamp import amp


class Iteration:
    """A model trained on one batch, with an initial loss scale that overflows."""

    def __init__(
        self, make, lr: torch.Tensor | None = None, has_norms: bool = False, **options: Any
    ) -> None:
        torch.manual_seed(7)
        norm = nn.BatchNorm1d(64) if has_norms else nn.Identity()
        model = nn.Sequential(nn.Linear(16, 64), norm, nn.ReLU(), nn.Linear(64, 4)).cuda()
        self.x, self.target = torch.randn(32, 16).cuda(), torch.randn(32, 4).cuda()
        optimizer = make(model.parameters())
        if lr is not None:
            optimizer.param_groups[0]["lr"] = lr
        self.model, self.optimizer = amp.initialize(
            model, optimizer, opt_level="O2", max_loss_scale=2.0**24, **options
        )
        state = amp.state_dict()
        state["loss_scaler0"]["loss_scale"] = 2.0**24
        amp.load_state_dict(state)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(self.x).float(), self.target)
        amp.scale_loss(loss, self.optimizer).backward()
        amp.clip_grad_norm_(self.optimizer, 1.0)
        self.optimizer.step()

    def weights(self) -> torch.Tensor:
        return torch.cat([p.detach().float().flatten() for p in self.model.parameters()]).cpu()


def captured(run: Iteration) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    return on_card.captured(run)
