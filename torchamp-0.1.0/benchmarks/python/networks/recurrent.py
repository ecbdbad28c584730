"""An LSTM language model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from networks.task import Batch, Task


class LstmModel(nn.Module):
    def __init__(self, layers: int, width: int, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(tokens))[0])


def lstm(layers: int, width: int, batch: int, length: int, words: int) -> Task:
    def make_batch() -> Batch:
        tokens = torch.randint(words, (batch, length + 1))
        return Batch((tokens[:, :-1].contiguous(),), (tokens[:, 1:].contiguous(),))

    return Task(lambda: LstmModel(layers, width, words), make_batch, batch * length, "tokens")
