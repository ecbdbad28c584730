"""A GPT of characters, trained from scratch to its end at every opt level, in float32 and by
torch.amp, from several seeds.

    python char_gpt.py --preset original --seeds 5

It learns the text of Python's own help. Writes char_gpt.csv, char_gpt.png with the losses on text
that it has not seen, each as the mean and the range of the seeds, and summary.md.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import sys
from collections.abc import Sequence
from pydoc_data.topics import topics
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from lab import (
    caption,
    counted_bytes,
    finish,
    markdown_table,
    parse_command_line,
    write_csv,
)
from torch import Tensor, nn
from tqdm import tqdm

from torchamp import amp

PRESETS = {
    "small": {"steps": 30, "seeds": 1, "batches": 2},
    "original": {"steps": 2000, "seeds": 5, "batches": 40},
}
ARMS = ["float32", "torch.amp", "O1", "O2", "O4", "O5"]
TORCH_AMP = {"cpu": torch.bfloat16, "cuda": torch.float16}
CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 64, 64, 4, 2, 8
LEARNING_RATE, EVALUATIONS, LOSS_TOLERANCE = 3e-3, 10, 0.02


class Text:
    """Characters as numbers; a tenth of the text is kept for evaluation."""

    def __init__(self, device: torch.device) -> None:
        text = "\n".join(topics.values())
        self.characters = sorted(set(text))
        numbers = {character: i for i, character in enumerate(self.characters)}
        everything = torch.tensor([numbers[character] for character in text], device=device)
        end = len(everything) * 9 // 10
        self.parts = {"train": everything[:end], "unseen": everything[end:]}

    def batch(self, part: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Characters, and those that follow them."""
        text = self.parts[part]
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH, 1), generator=generator)
        places = (starts + torch.arange(CONTEXT + 1)).to(text.device)
        return text[places[:, :-1]], text[places[:, 1:]]


class Block(nn.Module):
    """Attention and a perceptron, each added to what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).transpose(1, 3)
        query, key, value = heads.unbind(2)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(nn.functional.gelu(self.wide(self.norms[1](x))))


class CharGPT(nn.Module):
    """Scores for the next character, at each place."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.scores = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)

    def forward(self, numbers: Tensor) -> Tensor:
        places = torch.arange(numbers.shape[1], device=numbers.device)
        return self.scores(self.norm(self.blocks(self.characters(numbers) + self.places(places))))


class Evaluation(NamedTuple):
    """A line of char_gpt.csv. loss: the mean on unseen text, in nats a character. mib: of weights,
    grads, masters, state and activations."""

    arm: str
    seed: int
    step: int
    loss: float
    mib: float


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]).float().flatten(0, 1), batch[1].flatten())


def train(arm: str, seed: int, text: Text, arguments: argparse.Namespace) -> list[Evaluation]:
    """One run from scratch. Every arm of a seed has the same first weights and batches."""
    torch.manual_seed(seed)
    device, steps = arguments.device, arguments.steps
    model = CharGPT(len(text.characters)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    if arm.startswith("O"):
        model, optimizer = amp.initialize(model, optimizer, opt_level=arm, verbosity=0)
    scaler = torch.amp.GradScaler(device.type, enabled=arm == "torch.amp" and device.type == "cuda")

    def casts() -> contextlib.AbstractContextManager:
        is_torchs = arm == "torch.amp"
        return torch.autocast(device.type, TORCH_AMP[device.type], enabled=is_torchs)

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    rows: list[Evaluation] = []
    for step in range(1, steps + 1):
        batch = text.batch("train", generator)
        optimizer.zero_grad()
        with casts():
            loss = loss_of(model, batch)
        if arm.startswith("O"):
            amp.scale_loss(loss, optimizer).backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        schedule.step()
        if step % max(steps // EVALUATIONS, 1) == 0 or step == steps:
            with casts():
                counted = counted_bytes(model, optimizer, functools.partial(loss_of, model, batch))
                unseen = unseen_loss(model, text, arguments.batches)
            rows.append(Evaluation(arm, seed, step, unseen, sum(counted.values()) / 2**20))
    if arm.startswith("O"):
        amp.release(model)
    return rows


@torch.no_grad()
def unseen_loss(model: nn.Module, text: Text, batches: int) -> float:
    generator = torch.Generator().manual_seed(0)
    losses = [loss_of(model, text.batch("unseen", generator)) for _ in range(batches)]
    return float(torch.stack(losses).mean())


def draw(rows: Sequence[Evaluation], arguments: argparse.Namespace) -> None:
    figure, (whole, end) = plt.subplots(1, 2, figsize=(11, 4.5))
    for number, arm in enumerate(arguments.arms):
        of_arm = [row for row in rows if row.arm == arm]
        steps = sorted({row.step for row in of_arm})
        losses = [[row.loss for row in of_arm if row.step == step] for step in steps]
        # Dashes that do not cover each other: the curves do.
        dashes = (3 * number, (3, 3 * (len(arguments.arms) - 1)))
        means = list(map(statistics.mean, losses))
        (line,) = whole.plot(steps, means, label=arm, linestyle=dashes, linewidth=2.5)
        lows, highs = list(map(min, losses)), list(map(max, losses))
        whole.fill_between(steps, lows, highs, alpha=0.05, color=line.get_color())
        end.plot([arm] * len(losses[-1]), losses[-1], "o", color=line.get_color(), alpha=0.6)
    whole.set(xlabel="step", ylabel="loss on unseen text, nats a character")
    for handle in whole.legend().legend_handles:
        handle.set_linestyle("-")
    end.set(ylabel="the same after the last step, a dot a seed")
    figure.suptitle(caption(arguments.device), fontsize=9)
    figure.tight_layout()
    figure.savefig(arguments.out / "char_gpt.png", dpi=150)


def final_losses(rows: Sequence[Evaluation], arm: str) -> list[float]:
    last = max(row.step for row in rows)
    return [row.loss for row in rows if row.arm == arm and row.step == last]


def disagreements(rows: Sequence[Evaluation], arms: Sequence[str]) -> list[str]:
    """The arms whose mean last loss is more than LOSS_TOLERANCE off the first one's."""
    means = {arm: statistics.mean(final_losses(rows, arm)) for arm in arms}
    base = means[arms[0]]
    return [
        f"expected a last loss of {arm} within {LOSS_TOLERANCE:.0%} of {arms[0]}'s, {base:.3f}, "
        f"got {mean:.3f}"
        for arm, mean in means.items()
        if abs(mean / base - 1) > LOSS_TOLERANCE
    ]


def table(rows: Sequence[Evaluation], arms: Sequence[str]) -> str:
    lines = []
    for arm in arms:
        losses = final_losses(rows, arm)
        spread = f"{min(losses):.3f}–{max(losses):.3f}"
        mib = max(row.mib for row in rows if row.arm == arm)
        lines.append([arm, f"{statistics.mean(losses):.3f}", spread, f"{mib:.1f}"])
    return markdown_table(["arm", "last loss, mean", "least to most", "MiB counted"], lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=ARMS)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, help="the number of runs of an arm")
    parser.add_argument("--batches", type=int, help="of unseen text, in each evaluation")
    arguments = parse_command_line(parser, "char_gpt", PRESETS)
    text = Text(arguments.device)
    runs = [(arm, arguments.seed + i) for i in range(arguments.seeds) for arm in arguments.arms]
    rows = [
        row for arm, seed in tqdm(runs, disable=None) for row in train(arm, seed, text, arguments)
    ]
    write_csv(rows, arguments.out / "char_gpt.csv")
    draw(rows, arguments)
    parts = [table(rows, arguments.arms), caption(arguments.device)]
    problems = disagreements(rows, arguments.arms)
    return finish("A GPT of characters", parts, problems, arguments.out)


if __name__ == "__main__":
    sys.exit(main())
