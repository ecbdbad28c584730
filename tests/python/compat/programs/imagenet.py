"""Classification on several ranks: argparse strings, apex's DDP and batch norm, resuming."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn

try:
    from apex import amp, optimizers
    from apex.multi_tensor_apply import multi_tensor_applier
    from apex.parallel import DistributedDataParallel as DDP
    from apex.parallel import convert_syncbn_model
except ImportError:
    raise ImportError("Please install apex from https://www.github.com/nvidia/apex")

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--resume", default="", type=str)
parser.add_argument("--save", default="", type=str)
parser.add_argument("--local_rank", default=os.getenv("LOCAL_RANK", 0), type=int)
parser.add_argument("--world-size", default=1, type=int)
parser.add_argument("--rendezvous", default="", type=str)
parser.add_argument("--sync_bn", action="store_true")
parser.add_argument("--opt-level", type=str, default="O0")
parser.add_argument("--keep-batchnorm-fp32", type=str, default=None)
parser.add_argument("--loss-scale", type=str, default=None)
args = parser.parse_args()
torch.manual_seed(0)

args.distributed = args.world_size > 1
if args.distributed:
    dist.init_process_group(
        "gloo", args.rendezvous, rank=args.local_rank, world_size=args.world_size
    )
model = nn.Sequential(
    nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
)
if args.sync_bn:
    model = convert_syncbn_model(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
model, optimizer = amp.initialize(
    model,
    optimizer,
    opt_level=args.opt_level,
    keep_batchnorm_fp32=args.keep_batchnorm_fp32,
    loss_scale=args.loss_scale,
)
if args.distributed:
    model = DDP(model, delay_allreduce=True)
criterion = nn.CrossEntropyLoss()
start_epoch = 0
if args.resume:
    checkpoint = torch.load(args.resume, map_location="cpu")
    start_epoch = checkpoint["epoch"]
    model.load_state_dict(checkpoint["state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    amp.load_state_dict(checkpoint["amp"])

for epoch in range(start_epoch, args.epochs):
    for param_group in optimizer.param_groups:
        param_group["lr"] = 0.1 * (0.8**epoch)
    torch.manual_seed(100 + 10 * epoch + args.local_rank)
    for i in range(4):
        target = torch.arange(8) % 2
        input = torch.randn(8, 1, 4, 4) + target.float().view(-1, 1, 1, 1)
        loss = criterion(model(input), target)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    print("loss", loss.item())
    if args.save:
        state = {"epoch": epoch + 1, "state_dict": model.state_dict(), "amp": amp.state_dict()}
        state["optimizer"] = optimizer.state_dict()
        torch.save(state, args.save % epoch)
net = model.module if args.distributed else model
print("weights", net[0].weight.dtype, "batchnorm", net[1].weight.dtype)
print("sum", sum(p.double().abs().sum().item() for p in model.parameters()))
