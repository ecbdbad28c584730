"""Adversarial training: gradients of the input through scale_loss, then of the weights."""

import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from apex import amp

parser = argparse.ArgumentParser()
parser.add_argument("--epsilon", default=8, type=int)
parser.add_argument("--opt-level", default="O2", choices=["O0", "O1", "O2", "O3"])
parser.add_argument("--loss-scale", default="1.0", choices=["1.0", "dynamic"])
parser.add_argument("--master-weights", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)

epsilon = args.epsilon / 255.0
model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
model.train()
opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=5e-4)
amp_args = dict(opt_level=args.opt_level, loss_scale=args.loss_scale, verbosity=False)
if args.opt_level == "O2":
    amp_args["master_weights"] = args.master_weights
model, opt = amp.initialize(model, opt, **amp_args)
scheduler = torch.optim.lr_scheduler.CyclicLR(
    opt, base_lr=0.0, max_lr=0.2, step_size_up=10, step_size_down=10
)
for i in range(16):
    y = torch.arange(16) % 2
    X = torch.randn(16, 4) * 0.5 + (2 * y - 1).float()[:, None]
    delta = torch.zeros_like(X).uniform_(-epsilon, epsilon)
    delta.requires_grad = True
    loss = F.cross_entropy(model(X + delta), y)
    with amp.scale_loss(loss, opt) as scaled_loss:
        scaled_loss.backward()
    grad = delta.grad.detach()
    delta.data = torch.clamp(delta + 1.25 * epsilon * torch.sign(grad), -epsilon, epsilon)
    delta = delta.detach()
    assert grad.abs().max() > 0
    loss = F.cross_entropy(model(X + delta), y)
    opt.zero_grad()
    with amp.scale_loss(loss, opt) as scaled_loss:
        scaled_loss.backward()
    opt.step()
    scheduler.step()
    print("loss", loss.item())
best = copy.deepcopy(model.state_dict())
model.load_state_dict(best)
print("weights", model[0].weight.dtype, "batchnorm", model[1].weight.dtype)
