"""Training in float8 reaches the losses of its level."""

import pathlib

import pytest
import torch
import torch.nn.functional as F
from nets import adam, initialized, sgd
from products import LEVELS, Blocks

from torchamp import amp

EXAMPLES = str(pathlib.Path(__file__).parents[3] / "examples" / "python")


def blocks(start):
    """The losses of a network that learns what another one says of random inputs."""
    teacher, model = Blocks(), start(Blocks(), adam, ["ff"])
    for _ in range(120):
        x = torch.randn(64, 32)
        yield F.cross_entropy(model(x), teacher(8 * x).argmax(1))


def digits(start):
    import digits

    model = start(digits.Net(), sgd, ["fc1"])
    train, _ = digits.load_digits(digits.DIGITS_CSV, torch.device("cpu"))
    for batch in digits.batches(train, epochs=5):
        yield F.cross_entropy(model(batch.images), batch.labels)


def char_gpt(start):
    import char_gpt

    text = char_gpt.Text(torch.device("cpu"))
    model = start(char_gpt.CharGPT(len(text.characters)), adam, ["blocks"])
    generator = torch.Generator().manual_seed(torch.initial_seed())
    for _ in range(150):
        yield char_gpt.loss_of(model, text.batch("train", generator))


def final_loss(task, level: str, seed: int, is_in_float8: bool) -> float:
    """The mean of the last sixth of the losses."""
    torch.manual_seed(seed)
    made, losses = [], []

    def start(model, optimizer, names):
        made.extend(initialized(level, model, optimizer, float8=names if is_in_float8 else False))
        return made[0]

    for loss in task(start):
        made[1].zero_grad()
        amp.scale_loss(loss, made[1]).backward()
        made[1].step()
        losses.append(loss.item())
    amp.release(made[0])
    last = losses[-(len(losses) // 6) :]
    return sum(last) / len(last)


RUNS = [
    *[(level, blocks) for level in LEVELS],
    *[pytest.param("O5", task, marks=pytest.mark.soak) for task in (digits, char_gpt)],
]


@pytest.mark.parametrize("level, task", RUNS)
def test_losses_are_within_the_spread_of_the_seeds(level, task, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    plain, found = (
        torch.tensor([final_loss(task, level, seed, is_in_float8) for seed in range(5)])
        for is_in_float8 in (False, True)
    )
    assert found.mean() < plain.mean() + plain.std()
    assert not torch.equal(found, plain)
