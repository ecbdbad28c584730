"""Fine-tuning a small transformer: accumulation, clipping, groups without decay, warm-up."""

import argparse
import logging

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

logger = logging.getLogger(__name__)
parser = argparse.ArgumentParser()
parser.add_argument("--fp16", action="store_true")
parser.add_argument("--fp16_opt_level", "--opt-level", type=str, default="O1")
parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
parser.add_argument("--max_grad_norm", type=float, default=1.0)
args = parser.parse_args()
args.fp16 = args.fp16_opt_level != "O0"
torch.manual_seed(42)

try:
    from apex.normalization.fused_layer_norm import FusedLayerNorm as BertLayerNorm
except ImportError:
    logger.info("Better speed can be achieved with apex")
    from torch.nn import LayerNorm as BertLayerNorm


class Model(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.embeddings = nn.Embedding(11, hidden)
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.LayerNorm = BertLayerNorm(hidden, eps=1e-12)
        self.classifier = nn.Linear(hidden, 2)

    def forward(self, input_ids, attention_mask=None, labels=None):
        x = self.embeddings(input_ids)
        mask = attention_mask[:, None, :].to(dtype=next(self.parameters()).dtype)
        mask = (1.0 - mask) * -10000.0
        scores = torch.matmul(self.query(x), self.key(x).transpose(-1, -2)) / 4 + mask
        probs = nn.Softmax(dim=-1)(scores)
        x = self.LayerNorm(x + torch.matmul(probs, self.value(x)))
        logits = self.classifier(x[:, 0])
        return nn.CrossEntropyLoss()(logits.view(-1, 2), labels.view(-1)), logits


model = Model()
no_decay = ["bias", "LayerNorm.weight"]
named = list(model.named_parameters())
groups = [
    {"params": [p for n, p in named if not any(d in n for d in no_decay)], "weight_decay": 0.01},
    {"params": [p for n, p in named if any(d in n for d in no_decay)], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=2e-2, eps=1e-4)
scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
if args.fp16:
    try:
        from apex import amp
    except ImportError:
        raise ImportError("Please install apex to use fp16 training.")
    model, optimizer = amp.initialize(model, optimizer, opt_level=args.fp16_opt_level)

for step in range(24):
    labels = torch.arange(8) % 2
    input_ids = torch.randint(0, 5, (8, 6)) + 5 * labels[:, None]
    batch = {"input_ids": input_ids, "attention_mask": torch.ones(8, 6), "labels": labels}
    loss = model(**batch)[0] / args.gradient_accumulation_steps
    if args.fp16:
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
    else:
        loss.backward()
    if (step + 1) % args.gradient_accumulation_steps == 0:
        params = amp.master_params(optimizer) if args.fp16 else model.parameters()
        torch.nn.utils.clip_grad_norm_(params, args.max_grad_norm)
        optimizer.step()
        scheduler.step()
        model.zero_grad()
    print("loss", loss.item() * args.gradient_accumulation_steps)
print("weights", model.query.weight.dtype)
