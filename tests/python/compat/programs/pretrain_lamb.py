"""Pretraining with FusedLAMB; manual reduction and overflow check with apex's private names."""

import argparse

import amp_C
import apex_C
import torch
import torch.nn as nn
from apex import amp
from apex.amp import _amp_state
from apex.optimizers import FusedLAMB

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", default="O2")
parser.add_argument("--init_loss_scale", type=int, default=2**20)
parser.add_argument("--save", default="", type=str)
parser.add_argument("--resume", default="", type=str)
parser.add_argument("--steps", type=int, default=24)
args = parser.parse_args()
torch.manual_seed(6)

model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = FusedLAMB(model.parameters(), lr=0.05)
model, optimizer = amp.initialize(
    model,
    optimizer,
    opt_level=args.opt_level,
    loss_scale="dynamic",
    cast_model_outputs=torch.float16,
)
_amp_state.loss_scalers[0]._loss_scale = args.init_loss_scale
start = 0
if args.resume:
    checkpoint = torch.load(args.resume)
    start = checkpoint["step"]
    model.load_state_dict(checkpoint["model"])
    optimizer._lazy_init_maybe_master_weights()
    optimizer._amp_stash.lazy_init_called = True
    optimizer.load_state_dict(checkpoint["optimizer"])
    for param, saved in zip(amp.master_params(optimizer), checkpoint["master params"]):
        param.data.copy_(saved.data)
    amp.load_state_dict(checkpoint["amp"])
overflow_buf = torch.zeros(1, dtype=torch.int32)


def take_optimizer_step():
    scaler = _amp_state.loss_scalers[0]
    loss_scale = scaler.loss_scale()
    grads = [p.grad for p in amp.master_params(optimizer) if p.grad is not None]
    flat = torch.empty(sum(g.numel() for g in grads), dtype=torch.float16)
    views = apex_C.unflatten(flat, grads)
    overflow_buf.zero_()
    amp_C.multi_tensor_scale(65536, overflow_buf, [grads, views], loss_scale)
    overflow_buf.zero_()
    amp_C.multi_tensor_scale(65536, overflow_buf, [views, grads], 1.0 / loss_scale)
    scaler._overflow_buf = overflow_buf
    if scaler.update_scale() == 0:
        optimizer.step()
    else:
        print("skipped", scaler.loss_scale())
        if _amp_state.opt_properties.master_weights:
            for param in optimizer._amp_stash.all_fp32_from_fp16_params:
                param.grad = None
    for param in model.parameters():
        param.grad = None


for step in range(start, args.steps):
    torch.manual_seed(step)
    x = torch.randn(32, 6)
    loss = nn.functional.cross_entropy(model(x).float(), x[:, :3].argmax(1))
    with amp.scale_loss(loss, optimizer, delay_overflow_check=True) as scaled_loss:
        scaled_loss.backward()
    take_optimizer_step()
    print("loss", loss.item())
    if args.save:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        state.update({"master params": list(amp.master_params(optimizer)), "amp": amp.state_dict()})
        torch.save(state, args.save % step)
print("weights", model[0].weight.dtype)
print("sum", sum(p.double().abs().sum().item() for p in model.parameters()))
