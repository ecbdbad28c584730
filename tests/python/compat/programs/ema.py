"""Averaged weights, swapped in through .data for evaluation and saving, then swapped out."""

import argparse
import io

import torch
import torch.nn as nn
from apex import amp

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", default="O2")
args = parser.parse_args()
torch.manual_seed(9)


class EMA(object):
    def __init__(self, model, decay):
        self.model, self.decay, self.shadow, self.backup = model, decay, {}, {}
        for name, param in model.named_parameters():
            self.shadow[name] = param.data.clone()

    def update(self):
        for name, param in self.model.named_parameters():
            average = (1.0 - self.decay) * param.data + self.decay * self.shadow[name]
            self.shadow[name] = average.clone()

    def apply_shadow(self):
        for name, param in self.model.named_parameters():
            self.backup[name] = param.data
            param.data = self.shadow[name]

    def restore(self):
        for name, param in self.model.named_parameters():
            param.data = self.backup[name]
        self.backup = {}


model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02, eps=1e-4)
model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level)
ema = EMA(model, 0.9)
for step in range(30):
    x = torch.randn(16, 4)
    loss = nn.functional.mse_loss(model(x).float(), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    ema.update()
    if step % 10 == 9:
        before = {k: v.clone() for k, v in model.state_dict().items()}
        ema.apply_shadow()
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        saved = torch.load(file)
        for name, value in saved.items():
            assert torch.equal(value.to(ema.shadow[name].dtype), ema.shadow[name]), name
        ema.restore()
        after = model.state_dict()
        assert all(torch.equal(before[k], after[k]) for k in before), "the swap left a trace"
    print("loss", loss.item())
print("weights", model[0].weight.dtype)
