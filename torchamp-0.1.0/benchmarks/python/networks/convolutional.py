"""ResNet, VGG and a plain stack of convolutions, on images in channels-last order."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from networks.task import Batch, Task


def convolution(into: int, out: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution and its batch norm."""
    layer = nn.Conv2d(into, out, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(out))


class Bottleneck(nn.Module):
    def __init__(self, into: int, width: int, stride: int, widens: bool) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            convolution(into, width, 1),
            nn.ReLU(),
            convolution(width, width, 3, stride),
            nn.ReLU(),
            convolution(width, 4 * width, 1),
        )
        self.shortcut = convolution(into, 4 * width, 1, stride) if widens else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.convolutions(x) + self.shortcut(x))


def resnet_network(blocks: tuple[int, ...], width: int, classes: int) -> nn.Sequential:
    layers: list[nn.Module] = [convolution(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    into = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Bottleneck(into, width << stage, stride, widens=block == 0))
            into = 4 * (width << stage)
    return nn.Sequential(*layers, *head(into, classes))


def head(into: int, classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, classes)]


#: VGG16's convolutions, in units of the first layers' channels; 0 halves the image.
VGG16_WIDTHS = (1, 1, 0, 2, 2, 0, 4, 4, 4, 0, 8, 8, 8, 0, 8, 8, 8, 0)


def vgg_network(width: int, hidden: int, side: int, classes: int) -> nn.Sequential:
    """VGG16 without dropout, with which the loss need not fall."""
    layers: list[nn.Module] = []
    into = 3
    for factor in VGG16_WIDTHS:
        if factor:
            layers += [nn.Conv2d(into, factor * width, 3, padding=1), nn.ReLU()]
            into = factor * width
        else:
            layers.append(nn.MaxPool2d(2))
    features = into * (side // 32) ** 2
    for out in (hidden, hidden):
        layers += [nn.Linear(features, out), nn.ReLU()]
        features = out
    flat = next(i for i, layer in enumerate(layers) if isinstance(layer, nn.Linear))
    network = nn.Sequential(
        *layers[:flat], nn.Flatten(), *layers[flat:], nn.Linear(hidden, classes)
    )
    return network.apply(start_for_relu)


def start_for_relu(module: nn.Module) -> None:
    """Initial weights that preserve the variance of activations through many layers."""
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(module.bias)


def conv2d_network(width: int, classes: int) -> nn.Sequential:
    """Four convolutions, each followed by pooling."""
    layers: list[nn.Module] = []
    for into in (3, width, width, width):
        layers += [nn.Conv2d(into, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, *head(width, classes))


def images_task(make: Callable[[], nn.Module], batch: int, side: int, classes: int) -> Task:
    def make_batch() -> Batch:
        images = torch.randn(batch, 3, side, side).to(memory_format=torch.channels_last)
        return Batch((images,), (torch.randint(classes, (batch,)),))

    return Task(lambda: make().to(memory_format=torch.channels_last), make_batch, batch, "images")


def resnet(
    batch: int,
    side: int = 224,
    blocks: tuple[int, ...] = (3, 4, 6, 3),
    width: int = 64,
    classes: int = 1000,
) -> Task:
    return images_task(lambda: resnet_network(blocks, width, classes), batch, side, classes)


def vgg16(
    batch: int, side: int = 224, width: int = 64, hidden: int = 4096, classes: int = 1000
) -> Task:
    return images_task(lambda: vgg_network(width, hidden, side, classes), batch, side, classes)


def conv2d(batch: int, side: int, width: int, classes: int = 10) -> Task:
    return images_task(lambda: conv2d_network(width, classes), batch, side, classes)
