"""A Wasserstein GAN with a gradient penalty: double backward, two losses, positional loss_id."""

import argparse

import torch
import torch.nn as nn
from apex import amp

parser = argparse.ArgumentParser()
parser.add_argument("--opt_level", "--opt-level", default="O1")
parser.add_argument("--lambda_gp", type=float, default=10.0)
opt = parser.parse_args()
torch.manual_seed(5)

critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
generator = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
D_opt = torch.optim.Adam(critic.parameters(), lr=1e-2, betas=(0.0, 0.9), eps=1e-4)
G_opt = torch.optim.Adam(generator.parameters(), lr=1e-2, betas=(0.0, 0.9), eps=1e-4)
(critic, generator), (D_opt, G_opt) = amp.initialize(
    [critic, generator], [D_opt, G_opt], opt_level=opt.opt_level, num_losses=2
)


def gradient_penalty(real, fake):
    alpha = torch.rand(real.size(0), 1)
    interpolates = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = critic(interpolates)
    gradients = torch.autograd.grad(
        outputs=scores,
        inputs=interpolates,
        grad_outputs=torch.ones_like(scores),
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    return ((gradients.float().norm(2, dim=1) - 1) ** 2).mean()


for i in range(60):
    real = torch.randn(16, 2) * 0.1 + 2
    fake = generator(torch.randn(16, 2))
    D_opt.zero_grad()
    penalty = gradient_penalty(real, fake.detach())
    D_loss = critic(fake.detach()).mean() - critic(real).mean() + opt.lambda_gp * penalty
    with amp.scale_loss(D_loss, D_opt, 0) as scaled:
        scaled.backward()
    D_opt.step()
    G_opt.zero_grad()
    G_loss = -critic(generator(torch.randn(16, 2))).mean()
    with amp.scale_loss(G_loss, [G_opt], 1) as scaled:
        scaled.backward()
    G_opt.step()
    with torch.no_grad():
        print("loss", (generator(torch.zeros(4, 2)).float().mean() - 2).abs().item())
print("weights", critic[0].weight.dtype)
assert all(p.grad is not None for p in critic.parameters())
