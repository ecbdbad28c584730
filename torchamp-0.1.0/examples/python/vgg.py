"""VGG16 with batch norm, and the images it learns: digits, CIFAR-10 or made-up ones."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import torch
from digits import DIGITS_CSV, Digits, load_digits
from torch import Tensor, nn
from torch.nn.functional import interpolate

SIZE = 32  # pixels
CLASSES = 10
#: Channels at width 1; "M" halves the image.
LAYERS = [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"]
NOISE = 1.0  # standard deviation in made-up images, whose pattern is in 0 … 1
CIFAR_ROW = 1 + 3 * SIZE * SIZE  # bytes: the label, then red, green and blue


class Vgg16(nn.Sequential):
    """VGG16 with batch norm for images [n, 3, 32, 32]. ``width``: of its layers, 1 is VGG16."""

    def __init__(self, width: float) -> None:
        layers: list[nn.Module] = []
        channels = 3
        for layer in LAYERS:
            if layer == "M":
                layers.append(nn.MaxPool2d(2))
                continue
            out = max(1, round(width * int(layer)))
            layers += [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out)]
            layers.append(nn.ReLU())
            channels = out
        super().__init__(*layers, nn.Flatten(), nn.Linear(channels, CLASSES))


def load_images(data: list[str], count: int, device: torch.device) -> tuple[Digits, Digits]:
    """Returns (train, test), the first with at most ``count`` images [n, 3, 32, 32] in 0 … 1.
    ``data``: "digits", "synthetic", or "cifar10" and its folder."""
    if data[0] == "cifar10":
        train, test = load_cifar10(Path(data[1]), device)
    elif data[0] == "synthetic":
        train, test = made_up(count, device), made_up(max(count // 5, CLASSES), device)
    else:
        train, test = (enlarge(digits) for digits in load_digits(DIGITS_CSV, device))
    return train.take(torch.arange(min(count, len(train.labels)))), test


def enlarge(digits: Digits) -> Digits:
    """Digits [n, 1, 8, 8] as images [n, 3, 32, 32]."""
    images = interpolate(digits.images, size=SIZE, mode="bilinear")
    return Digits(images.repeat(1, 3, 1, 1), digits.labels)


def made_up(count: int, device: torch.device) -> Digits:
    """Images of noise over the pattern of their class."""
    patterns = torch.rand(CLASSES, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(CLASSES, (count,))
    images = interpolate(patterns[labels], size=SIZE) + NOISE * torch.randn(count, 3, SIZE, SIZE)
    return Digits(images.to(device), labels.to(device))


def load_cifar10(folder: Path, device: torch.device) -> tuple[Digits, Digits]:
    """From the binary batches (data_batch_1.bin …) or the Python pickles (data_batch_1 …) of
    CIFAR-10. A pickle can run any code: load only one that you trust."""
    suffix = ".bin" if (folder / "test_batch.bin").exists() else ""
    read = read_binary if suffix else read_pickle
    train = [read(folder / f"data_batch_{number}{suffix}") for number in range(1, 6)]
    test = read(folder / f"test_batch{suffix}")
    return as_images(np.concatenate(train), device), as_images(test, device)


def read_binary(path: Path) -> np.ndarray:
    """uint8 [n, CIFAR_ROW]"""
    return np.fromfile(path, dtype=np.uint8).reshape(-1, CIFAR_ROW)


def read_pickle(path: Path) -> np.ndarray:
    """uint8 [n, CIFAR_ROW]"""
    with path.open("rb") as file:
        content = pickle.load(file, encoding="bytes")
    labels = np.array(content[b"labels"], dtype=np.uint8)
    return np.concatenate([labels[:, None], content[b"data"]], axis=1)


def as_images(rows: np.ndarray, device: torch.device) -> Digits:
    """uint8 [n, CIFAR_ROW] → images in 0 … 1, and labels."""
    table = torch.from_numpy(rows)
    images: Tensor = table[:, 1:].reshape(-1, 3, SIZE, SIZE).float().div(255)
    return Digits(images.to(device), table[:, 0].long().to(device))
