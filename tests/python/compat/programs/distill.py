"""Distillation: two calls of initialize, one without an optimizer."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from apex import amp
from torch.optim.lr_scheduler import StepLR

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", default="O1", type=str)
args = parser.parse_args()
torch.manual_seed(3)

teacher = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3))
student = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(student.parameters(), lr=0.02, eps=1e-4)
student, optimizer = amp.initialize(student, optimizer, opt_level=args.opt_level, verbosity=False)
teacher = amp.initialize(teacher, opt_level=args.opt_level, verbosity=False)
scheduler = StepLR(optimizer, step_size=10, gamma=0.5)
teacher.eval()

for step in range(20):
    x = torch.randn(16, 6)
    with torch.no_grad():
        soft_targets = F.softmax(4 * teacher(x), dim=1)
    optimizer.zero_grad()
    loss = F.kl_div(F.log_softmax(student(x), dim=1), soft_targets, reduction="batchmean")
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    scheduler.step()
    print("loss", loss.item())
print("weights", student[0].weight.dtype)
assert teacher[0].weight.grad is None
assert all(v.dtype == torch.float32 for v in student.state_dict().values())
