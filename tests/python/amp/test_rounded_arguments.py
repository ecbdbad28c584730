"""Arguments whose numbers 16 bits move, such as boxes, are told once."""

import pytest
import torch
from nets import initialized, warned
from torch import nn

from torchamp import amp

MESSAGE = (
    "forward: expected arguments whose numbers {} holds, got 'targets', some of which it moves by "
    "{}; where they have to be exact, as boxes, times and positions, initialize with "
    "keep_fp32='targets'"
)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.box = nn.Linear(4, 4)
        self.seen = []

    def forward(self, images, targets=()):
        self.seen = [target["boxes"] for target in targets]
        return self.box(images)


BOXES = torch.tensor([[2713.3, 402.7, 2791.9, 455.1]])


def told(model, images, *targets) -> list[str]:
    with warned() as texts:
        for _ in range(2):
            model(images, [{"boxes": target} for target in targets])
    return texts


@pytest.mark.parametrize(
    ("level", "dtype", "moved"), [("O2", torch.float16, "0.7"), ("O5", torch.bfloat16, "7.9")]
)
def test_boxes_are_told_once_and_kept_by_name(level, dtype, moved):
    model, _ = initialized(level, Detector())
    assert told(model, torch.ones(1, 4), BOXES) == [MESSAGE.format(dtype, moved)]
    amp.release(model)
    model, _ = initialized(level, model, keep_fp32="targets")
    assert told(model, torch.ones(1, 4), BOXES) == []
    assert torch.equal(model.seen[0], BOXES)


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([0.0, -1e9, -1e9]),
        torch.full((3,), torch.finfo(torch.float32).min),
        torch.tensor([0.0, -torch.inf]),
        torch.rand(8),
        torch.arange(0.0, 250.0),
    ],
    ids=["mask", "lowest", "infinite", "small", "whole"],
)
@pytest.mark.parametrize("level", ["O2", "O5"])
def test_masks_and_what_16_bits_hold_are_not_told(level, values):
    model, _ = initialized(level, Detector())
    assert told(model, torch.ones(1, 4), values) == []


@pytest.mark.parametrize("level", ["O0", "O1", "O4"])
def test_nothing_is_told_where_arguments_are_not_cast(level):
    model, _ = initialized(level, Detector())
    assert told(model, torch.ones(1, 4), BOXES) == []


def test_the_first_argument_and_evaluation_are_not_told():
    model, _ = initialized("O5", Detector())
    with torch.no_grad():
        assert told(model, torch.ones(1, 4), BOXES) == []
    assert told(model, 1000.3 * torch.rand(1, 4), torch.ones(1)) == []
