"""A Wasserstein GAN whose critic's weights are clamped through .data after each step."""

import argparse

import torch
import torch.nn as nn
from apex import amp

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", default="O2")
parser.add_argument("--clip_value", type=float, default=0.05)
opt = parser.parse_args()
torch.manual_seed(2)

critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.RMSprop(critic.parameters(), lr=0.01, eps=1e-4)
critic, optimizer = amp.initialize(critic, optimizer, opt_level=opt.opt_level)
limit = opt.clip_value * (1 + 2**-10)  # up to float16's rounding

for i in range(20):
    real, fake = torch.randn(16, 2) + 1, torch.randn(16, 2) - 1
    optimizer.zero_grad()
    loss = critic(fake).mean() - critic(real).mean()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    for p in critic.parameters():
        p.data.clamp_(-opt.clip_value, opt.clip_value)
    print("loss", 1 + loss.item())
    # If masters drifted from the clamped weights, this would grow with every step.
    drift = max(v.abs().max().item() for v in critic.state_dict().values())
    assert drift <= limit, (drift, limit)
optimizer.param_groups[0]["lr"] = 0.0
optimizer.step()
assert max(p.abs().max().item() for p in amp.master_params(optimizer)) <= limit
print("weights", critic[0].weight.dtype)
