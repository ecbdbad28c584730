"""GPT-2, BERT and Llama."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from networks.task import Batch, Task


class Attention(nn.Module):
    """Multi-head self-attention, with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.into(x).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


class SeparateAttention(nn.Module):
    """BERT's self-attention, with separate projections for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.out(mixed.transpose(1, 2).flatten(2))


def feed_forward(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Gpt2Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.attention = Attention(width, heads, causal=True)
        self.feed_forward = feed_forward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.feed_forward(self.norms[1](x))


class Gpt2(nn.Module):
    """GPT-2 with its head tied to the embeddings."""

    def __init__(self, layers: int, width: int, heads: int, words: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Gpt2Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.apply(start_small)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.words(tokens) + self.positions(positions))
        return functional.linear(self.norm(x), self.words.weight)


class BertLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = SeparateAttention(width, heads)
        self.feed_forward = feed_forward(width)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](x + self.attention(x))
        return self.norms[1](x + self.feed_forward(x))


class Bert(nn.Module):
    """BERT with both pretraining heads: masked words, and whether two sentences follow each
    other."""

    def __init__(self, layers: int, width: int, heads: int, words: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(length, width)
        self.kinds = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(BertLayer(width, heads) for _ in range(layers)))
        self.pooler = nn.Linear(width, width)
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.word_bias = nn.Parameter(torch.zeros(words))
        self.pair = nn.Linear(width, 2)
        self.apply(start_small)

    def forward(self, tokens: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        kinds = torch.zeros_like(tokens)
        x = self.words(tokens) + self.positions(positions) + self.kinds(kinds)
        x = self.layers(self.norm(x))
        hidden = self.transform(x.index_select(1, masked))
        words = functional.linear(hidden, self.words.weight, self.word_bias)
        return words, self.pair(torch.tanh(self.pooler(x.select(1, 0))))


class GroupedAttention(nn.Module):
    """Llama's causal self-attention: several heads of queries share one of keys and values, and
    rotary embeddings of base 10,000 (arXiv:2104.09864) give positions."""

    def __init__(self, width: int, heads: int, shared: int, length: int) -> None:
        super().__init__()
        self.size, self.repeats = width // heads, heads // shared
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, shared * self.size, bias=False) for _ in range(2))
        frequencies = 10_000 ** -(torch.arange(0, self.size, 2) / self.size)
        angles = torch.outer(torch.arange(length), frequencies)
        self.register_buffer("sines", angles.sin(), persistent=False)
        self.register_buffer("cosines", angles.cos(), persistent=False)

    def turned(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        sines, cosines = (each[: x.shape[-2]].to(x.dtype) for each in (self.sines, self.cosines))
        turned = first * cosines - second * sines, second * cosines + first * sines
        return torch.cat(turned, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        query, key = self.turned(query), self.turned(key)
        key, value = (each.repeat_interleave(self.repeats, dim=1) for each in (key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class LlamaBlock(nn.Module):
    def __init__(self, width: int, hidden: int, heads: int, shared: int, length: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(width) for _ in range(2)])
        self.attention = GroupedAttention(width, heads, shared, length)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Llama 3 with a head of its own."""

    def __init__(self, layers: int, words: int, width: int, *shape: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(LlamaBlock(width, *shape) for _ in range(layers)))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.apply(start_small)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.words(tokens))))


def start_small(module: nn.Module) -> None:
    """The initial weights of these networks."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)


def next_tokens(words: int, batch: int, length: int) -> Batch:
    tokens = torch.randint(words, (batch, length + 1))
    return Batch((tokens[:, :-1].contiguous(),), (tokens[:, 1:].contiguous(),))


def gpt2(layers: int, width: int, heads: int, batch: int, length: int, words: int = 50257) -> Task:
    def make() -> Gpt2:
        return Gpt2(layers, width, heads, words, max(length, 1024))

    return Task(make, lambda: next_tokens(words, batch, length), batch * length, "tokens")


def llama(
    layers: int,
    width: int,
    hidden: int,
    heads: int,
    shared: int,
    batch: int,
    length: int,
    words: int,
) -> Task:
    """shared: how many heads keys and values have."""

    def make() -> Llama:
        return Llama(layers, words, width, hidden, heads, shared, length)

    return Task(make, lambda: next_tokens(words, batch, length), batch * length, "tokens")


def bert(layers: int, width: int, heads: int, batch: int, length: int, words: int = 30522) -> Task:
    """One token in seven is masked."""

    def make_batch() -> Batch:
        masked = torch.arange(3, length, 7)
        tokens = torch.randint(words, (batch, length))
        return Batch((tokens, masked), (tokens[:, masked], torch.randint(2, (batch,))))

    return Task(
        lambda: Bert(layers, width, heads, words, 512), make_batch, batch * length, "tokens"
    )
