"""The first API: amp.init, a handle, a wrapped optimizer."""

import argparse

import torch
import torch.nn as nn
from apex import amp

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", default="O1")
args = parser.parse_args()
torch.manual_seed(10)

amp_handle = amp.init(enabled=args.opt_level == "O1", verbose=False)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = amp_handle.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5))


@amp.float_function
def margin(a, b):
    assert a.dtype == torch.float32 or not amp_handle.is_active()
    return (a - b).abs().mean()


for step in range(30):
    x = torch.randn(16, 4)
    optimizer.zero_grad()
    out = model(x)
    assert (out.dtype == torch.float16) == amp_handle.is_active()
    loss = nn.functional.cross_entropy(out, (x.sum(1) > 0).long())
    with optimizer.scale_loss(loss) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    print("loss", loss.item(), margin(out[:, 0], out[:, 1]).item())
amp_handle._clear_cache()
print("weights", model[0].weight.dtype)
