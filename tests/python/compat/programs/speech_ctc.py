"""Speech recognition: packed sequences, a bidirectional GRU, CTC in float32."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from apex import amp
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", default="O1")
parser.add_argument("--max-norm", default=400, type=int)
args = parser.parse_args()
torch.manual_seed(123456)
amp.register_float_function(torch, "sigmoid")


class DeepSpeech(nn.Module):
    def __init__(self):
        super(DeepSpeech, self).__init__()
        self.rnn = nn.GRU(6, 8, bidirectional=True)
        self.fc = nn.Linear(16, 4)

    def forward(self, x, lengths):
        x = pack_padded_sequence(x, lengths, enforce_sorted=False)
        x, h = self.rnn(x)
        x, output_lengths = pad_packed_sequence(x)
        gate = torch.sigmoid(x)
        return self.fc(x * gate.type_as(x)), output_lengths


model = DeepSpeech()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, nesterov=True)
model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level)
criterion = nn.CTCLoss(blank=0, reduction="sum", zero_infinity=True)
lengths = torch.tensor([12, 9, 12, 7])
targets = torch.tensor([[1, 2, 3], [3, 2, 1], [1, 1, 2], [2, 3, 1]])
target_lengths = torch.tensor([3, 3, 3, 3])
inputs = torch.randn(12, 4, 6)

for epoch in range(15):
    out, output_sizes = model(inputs, lengths)
    float_out = F.log_softmax(out.float(), dim=-1)
    loss = criterion(float_out, targets, output_sizes, target_lengths) / inputs.size(1)
    loss_value = loss.item()
    if math.isinf(loss_value) or math.isnan(loss_value) or loss_value < 0:
        raise SystemExit("Skipping grad update")
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), args.max_norm)
    optimizer.step()
    print("loss", loss_value)
print("weights", model.rnn.weight_ih_l0.dtype)
