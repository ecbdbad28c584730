"""What programs of both languages do beside what the mirror follows. Most of it is wrong."""

from __future__ import annotations

import torch
from fuzz.events import Backward
from fuzz.run import Run
from torch.optim import Optimizer

from torchamp import amp


class LanguagesRun(Run):
    ends = {"raise": KeyError, "hook": KeyError}
    other: LanguagesRun | None = None

    def another(self) -> None:
        """The optimizer of another training that begins alike is the last from now on."""
        self.other = LanguagesRun(self.setup)
        self.other.begin()
        self.optimizers.append(self.other.optimizers[0])

    def use(self, call: Backward) -> torch.Tensor:
        if call.ends != "outside":
            return super().use(call)
        loss = self.loss(call)
        loss.backward()
        return loss

    def loss(self, call: Backward) -> torch.Tensor:
        loss = super().loss(call)
        return loss if call.dtype is None else loss.to(call.dtype)

    def backward_in_block(
        self, call: Backward, loss: torch.Tensor, scaled_loss: torch.Tensor
    ) -> None:
        if call.ends == "another":
            (self.loss(call) * 2).backward()
        elif call.ends == "part":
            (scaled_loss * 1).backward()
        elif call.ends == "grad":
            params = [self.params[i] for i in call.reach]
            for param, grad in zip(params, torch.autograd.grad(scaled_loss, params)):
                param.grad = grad
        else:
            super().backward_in_block(call, loss, scaled_loss)

    def end_block(self, ends: str | None, loss: torch.Tensor, of: list[Optimizer]) -> None:
        super().end_block(ends, loss, of)
        if ends == "clip_norm":
            amp.clip_grad_norm_(of, 1.0)
        elif ends == "clip_value":
            amp.clip_grad_value_(of, 1.0)
        elif ends == "release":
            amp.release(self.model)

    def close(self) -> None:
        for run in (self, self.other):
            if run is not None and run.amp is not None:
                run.amp.close()
