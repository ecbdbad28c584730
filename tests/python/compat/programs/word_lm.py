"""A word-level language model: an LSTM with carried-over hidden states, clipping, annealing."""

import argparse

import torch
import torch.nn as nn

try:
    from apex import amp
    from apex.fp16_utils import *  # noqa: F403
except ImportError:
    raise ImportError("Please install apex to run this example.")

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", type=str, default="O1")
parser.add_argument("--clip", type=float, default=0.25)
args = parser.parse_args()
torch.manual_seed(1111)


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid):
        super(RNNModel, self).__init__()
        self.drop = nn.Dropout(0.1)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, 1)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nhid = nhid
        self.encoder.weight.data.uniform_(-0.1, 0.1)
        self.decoder.bias.data.fill_(0)

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        decoded = self.decoder(output.view(output.size(0) * output.size(1), output.size(2)))
        return decoded.view(output.size(0), output.size(1), decoded.size(1)), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters()).data
        return (weight.new_zeros(1, bsz, self.nhid), weight.new_zeros(1, bsz, self.nhid))


def repackage_hidden(h):
    if torch.is_tensor(h):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


data = torch.arange(60).remainder(5).view(30, 2)
model = RNNModel(5, 8, 8)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level)


def evaluate():
    model.eval()
    with torch.no_grad():
        output, _ = model(data[:-1], model.init_hidden(2))
        return criterion(output.view(-1, 5), data[1:].view(-1)).item()


for epoch in range(6):
    model.train()
    hidden = model.init_hidden(2)
    for i in range(0, 28, 7):
        hidden = repackage_hidden(hidden)
        model.zero_grad()
        output, hidden = model(data[i : i + 7], hidden)
        loss = criterion(output.view(-1, 5), data[i + 1 : i + 8].view(-1))
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), args.clip)
        optimizer.step()
    print("loss", evaluate())
    for group in optimizer.param_groups:
        group["lr"] *= 0.95
print("weights", model.rnn.weight_ih_l0.dtype)
