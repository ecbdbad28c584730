"""A small translator whose log lines have the rank, which a filter of the root logger adds, and
whose layer norm looks at the arguments of apex's function."""

import argparse
import inspect
import logging
import os
import sys

import torch
from apex import amp
from apex.amp import _amp_state
from apex.amp.frontend import opt_levels
from apex.amp.handle import disable_casts
from apex.amp.lists import functional_overrides
from apex.contrib.xentropy import SoftmaxCrossEntropyLoss
from apex.normalization.fused_layer_norm import FusedLayerNormAffineFunction
from apex.optimizers import FusedAdam
from torch import nn
from torch.nn.parameter import Parameter

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", default="O2", choices=sorted(opt_levels))
parser.add_argument("--smoothing", type=float, default=0.1)
args = parser.parse_args()


class RankFilter(logging.Filter):
    def filter(self, record):
        record.rank = int(os.environ.get("RANK", 0))
        return True


def setup_logging():
    console = logging.StreamHandler(sys.stdout)
    console.setFormatter(logging.Formatter("%(rank)d: %(message)s"))
    logging.getLogger("").addHandler(console)
    logging.getLogger("").addFilter(RankFilter())
    logging.getLogger("").setLevel(logging.DEBUG)


class LayerNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-5, memory_efficient=False):
        super(LayerNorm, self).__init__()
        self.hidden_size = torch.Size((hidden_size,))
        self.eps, self.memory_efficient = eps, memory_efficient
        self.weight = Parameter(torch.ones(hidden_size))
        self.bias = Parameter(torch.zeros(hidden_size))

    def forward(self, input):
        known = inspect.getfullargspec(FusedLayerNormAffineFunction.forward).args
        options = (self.memory_efficient,) if "memory_efficient" in known else ()
        return FusedLayerNormAffineFunction.apply(
            input, self.weight, self.bias, self.hidden_size, self.eps, *options
        )


class Translator(nn.Module):
    def __init__(self, words=12, hidden=16):
        super(Translator, self).__init__()
        self.embed = nn.Embedding(words, hidden, padding_idx=0)
        self.encoder, self.norm = nn.Linear(hidden, hidden), LayerNorm(hidden)
        self.classifier = nn.Linear(hidden, words)

    def forward(self, source):
        return self.classifier(self.norm(torch.tanh(self.encoder(self.embed(source)))))


setup_logging()
logging.info(f"casts in float32: {len(functional_overrides.FP32_FUNCS)} functions")
torch.manual_seed(5)
model = Translator()
optimizer = FusedAdam(model.parameters(), lr=0.03)
model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level)
logging.info(f"level: {_amp_state.opt_properties.opt_level}")
assert hasattr(optimizer, "_post_amp_backward")

for i in range(20):
    source = torch.randint(1, 12, (6, 5))
    target = torch.where(source % 4 == 0, 0, 12 - source)  # some are padding
    logits = model(source).view(-1, 12)
    losses = SoftmaxCrossEntropyLoss.apply(logits, target.view(-1), args.smoothing, 0, True)
    assert losses.dtype == torch.float32 and not losses[target.view(-1) == 0].any()
    loss = losses.sum() / (target != 0).sum()
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    print("loss", loss.item())
if args.opt_level == "O1":
    with disable_casts():
        assert model(source).dtype == torch.float32
print("weights", model.encoder.weight.dtype)
