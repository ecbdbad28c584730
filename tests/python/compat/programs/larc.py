"""Self-supervised pretraining with LARC around SGD, and a contrastive loss."""

import argparse

import apex
import torch
import torch.nn as nn
from apex.parallel.LARC import LARC

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", default="O1")
args = parser.parse_args()
torch.manual_seed(8)

model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=1e-6)
optimizer = LARC(optimizer=optimizer, trust_coefficient=0.02, clip=False)
model, optimizer = apex.amp.initialize(model, optimizer, opt_level=args.opt_level)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)

for step in range(30):
    x = torch.randn(16, 6)
    z = model(torch.cat([x, x + 0.1 * torch.randn(16, 6)]))
    z = nn.functional.normalize(z.float(), dim=1)
    logits = z @ z.t() / 0.5 - 1e4 * torch.eye(32)
    labels = torch.cat([torch.arange(16, 32), torch.arange(16)])
    loss = nn.functional.cross_entropy(logits, labels)
    optimizer.zero_grad()
    with apex.amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    scheduler.step()
    print("loss", loss.item())
print("weights", model[0].weight.dtype, "batchnorm", model[1].weight.dtype)
