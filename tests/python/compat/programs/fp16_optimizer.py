"""Mixed precision before amp: network_to_half and FP16_Optimizer."""

import argparse

import torch
import torch.nn as nn
from apex.fp16_utils import FP16_Optimizer, network_to_half, to_python_float

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", default="O2")
parser.add_argument("--static-loss-scale", type=float, default=1)
args = parser.parse_args()
args.fp16 = args.opt_level in ("O2", "O3")
args.dynamic_loss_scale = args.opt_level == "O2"
torch.manual_seed(12)

model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
if args.fp16:
    model = network_to_half(model)
optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
if args.fp16:
    optimizer = FP16_Optimizer(
        optimizer,
        static_loss_scale=args.static_loss_scale,
        dynamic_loss_scale=args.dynamic_loss_scale,
        dynamic_loss_args={"init_scale": 2.0**32},
    )
for step in range(40):
    x = torch.randn(16, 4)
    loss = nn.functional.cross_entropy(model(x).float(), (x.sum(1) > 0).long())
    optimizer.zero_grad()
    if args.fp16:
        optimizer.backward(loss, update_master_grads=False)
        optimizer.update_master_grads()
        optimizer.clip_master_grads(5.0)
    else:
        loss.backward()
    optimizer.step()
    print("loss", to_python_float(loss.data))
linear = model[1][0] if args.fp16 else model[0]
print("weights", linear.weight.dtype)
if args.dynamic_loss_scale:
    assert optimizer.loss_scale < 2.0**32 and "fp32_groups_flat" not in optimizer.state_dict()
