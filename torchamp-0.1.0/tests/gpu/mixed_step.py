"""One step of mixed-precision training with only the ops. It never waits for the device, so it can
be captured into a CUDA graph."""

import torch

from torchamp import ops

RULE = ops.ScaleRule(growth_interval=5)


class MixedStep:
    """A small float16 model with float32 masters, trained on one fixed batch.

    The scale starts so high that the first steps overflow and are skipped. Call the object to step.
    """

    def __init__(self, device: torch.device, init_scale: float = 2.0**24) -> None:
        generator = torch.Generator().manual_seed(1)
        self.data = torch.randn(64, 32, generator=generator).to(device, torch.float16)
        self.target = torch.randn(64, 8, generator=generator).to(device)
        torch.manual_seed(2)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)
        ).to(device)
        self.masters = [p.detach().clone() for p in self.model.parameters()]
        self.model.half()
        self.optimizer = torch.optim.SGD(self.masters, lr=0.05, fused=True)
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        self.loss_scale = torch.full((), init_scale, device=device)
        self.growth = torch.zeros((), dtype=torch.int32, device=device)
        self.hysteresis = torch.ones((), dtype=torch.int32, device=device)
        self.found_inf = torch.zeros((), device=device)
        self.loss = torch.zeros((), device=device)

    def __call__(self) -> None:
        params = list(self.model.parameters())
        for param in params:
            param.grad = None
        loss = torch.nn.functional.mse_loss(self.model(self.data).float(), self.target)
        (loss * self.loss_scale).backward()
        self.loss.copy_(loss.detach())
        inv_scale = self.loss_scale.reciprocal()
        self.found_inf.zero_()
        grads = [param.grad for param in params]
        ops.unscale(grads, [master.grad for master in self.masters], inv_scale, self.found_inf)
        ops.update_scale(self.loss_scale, self.growth, self.hysteresis, self.found_inf, RULE)
        self.optimizer.grad_scale, self.optimizer.found_inf = None, self.found_inf
        self.optimizer.step()
        ops.copy_cast(self.masters, [param.detach() for param in params])

    def state(self) -> torch.Tensor:
        """The values that a step changes, as one float32 vector for comparison."""
        scalars = torch.stack([self.loss_scale, self.found_inf, self.loss])
        return torch.cat([*(master.flatten() for master in self.masters), scalars]).clone()
