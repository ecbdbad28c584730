"""resumed_training.py <level> <file> <end>: trains with dropout and a scheduler, and draws batches
from torch's default generator, up to before step <end>. Goes on from <file> if it is there, and
writes it. Prints what the masters, the learning rate and the loss are then.
"""

import os
import sys

import torch
from torch import nn

from torchamp import amp
from torchamp.optimizers import FusedAdamW


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 8), torch.randint(0, 3, (16,))


def train(level: str, path: str, end: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3))
    optimizer = FusedAdamW(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5], 0.5)
    first = 0
    if os.path.exists(path):
        extra = amp.load(model, optimizer, path)
        first = extra["step"]
        scheduler.load_state_dict(extra["scheduler"])
        torch.set_rng_state(extra["rng"])
    for _ in range(first, end):
        x, target = batch()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).float(), target)
        amp.scale_loss(loss, optimizer).backward()
        optimizer.step()
        scheduler.step()
    extra = {"step": end, "scheduler": scheduler.state_dict(), "rng": torch.get_rng_state()}
    amp.save(model, optimizer, path, extra)
    masters = torch.cat([param.detach().flatten() for param in amp.master_params(optimizer)])
    print(masters.view(torch.int32).tolist(), scheduler.get_last_lr(), loss.item())


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], int(sys.argv[3]))
