"""An encoder and a decoder with separate optimizers, one of which steps rarely, and delayed
unscaling over micro-batches."""

import argparse

import torch
import torch.nn as nn
from apex import amp

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", default="O1")
parser.add_argument("--accumulate", type=int, default=2)
params = parser.parse_args()
torch.manual_seed(4)

models = {
    "encoder": nn.Sequential(nn.Linear(4, 8), nn.Tanh()),
    "decoder": nn.Linear(8, 4),
    "critic": nn.Linear(8, 1),
}
optimizers = {
    name: torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    for name, model in models.items()
}
names = sorted(models)
new_models, new_optimizers = amp.initialize(
    [models[k] for k in names],
    [optimizers[k] for k in names],
    opt_level="O%i" % int(params.opt_level[1:]),
)
models = dict(zip(names, new_models))
optimizers = dict(zip(names, new_optimizers))

for n_iter in range(40):
    x = torch.randn(16, 4)
    hidden = models["encoder"](x)
    loss = nn.functional.mse_loss(models["decoder"](hidden).float(), x)
    used = ["encoder", "decoder"]
    if n_iter % 4 == 3:
        loss = loss + 0.1 * models["critic"](hidden).float().pow(2).mean()
        used.append("critic")
    delay_unscale = (n_iter + 1) % params.accumulate != 0
    with amp.scale_loss(loss, [optimizers[k] for k in used], delay_unscale=delay_unscale) as scaled:
        scaled.backward()
    if not delay_unscale:
        for k in used:
            nn.utils.clip_grad_norm_(amp.master_params(optimizers[k]), 5)
            optimizers[k].step()
            optimizers[k].zero_grad()
    print("loss", loss.item())
print("weights", models["decoder"].weight.dtype)
