"""Networks for images by their published architectures: VGG (Simonyan and Zisserman, 2015, with batch normalisation),
ResNet (He et al., 2016) and wide ResNet (Zagoruyko and Komodakis, 2016).

They are written here because libraries have no knob for the width of VGG and ResNet.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from bench.workloads.models.pacing import Pacer

_CHANNELS, _IMAGE, _CLASSES = 3, 224, 1000
_WIDTHS = (64, 128, 256, 512)
_FEW_CLASSES, _SMALLEST_IMAGE = 10, 32
_VGG: Mapping[str, tuple[int, ...]] = {
    "vgg11": (1, 1, 2, 2, 2),
    "vgg16": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
}
_VGG_HIDDEN, _VGG_POOLED = 4096, 7
_RESNET: Mapping[str, tuple[tuple[int, ...], int]] = {
    "resnet50": ((3, 4, 6, 3), 1),
    "wideresnet101": ((3, 4, 23, 3), 2),
}
"""Blocks of each stage, and the factor of the width of their middle layers."""

_EXPANSION = 4


class VisionModel(nn.Module):
    """A sequence of blocks on images of shape (batch, 3, side, side), whose output are logits, (batch, classes).

    Attributes:
        blocks: the parts that are paced and sharded one by one.
    """

    def __init__(self, name: str, scale: float) -> None:
        super().__init__()
        self.side = max(_SMALLEST_IMAGE, round(_IMAGE * scale))
        self.classes = max(_FEW_CLASSES, round(_CLASSES * scale))
        layers = _vgg(name, scale, self.classes) if name in _VGG else _resnet(name, scale, self.classes)
        self.layers = nn.ModuleList(layers)
        self.pacer = Pacer(0.0, 1)

    @property
    def blocks(self) -> list[nn.Module]:
        """All of them, in order."""
        return list(self.layers)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """The logits."""
        self.pacer.begin()
        for number, layer in enumerate(self.layers):
            values = self.pacer.after(number, layer(values))
        return values

    def samples(self, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Noise that is brighter the higher the number of its class, of a few classes."""
        targets = torch.randint(_FEW_CLASSES, (count,), generator=generator)
        images = torch.randn(count, _CHANNELS, self.side, self.side, generator=generator)
        return images + targets.view(-1, 1, 1, 1) / 2, targets

    @staticmethod
    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy."""
        return nn.functional.cross_entropy(logits, targets)


def _scaled(width: int, scale: float) -> int:
    return max(4, round(width * scale))


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return [convolution, nn.BatchNorm2d(outputs)]


def _vgg(name: str, scale: float, classes: int) -> list[nn.Module]:
    widths = [_scaled(width, scale) for width in (*_WIDTHS, _WIDTHS[-1])]
    blocks: list[nn.Module] = []
    inputs = _CHANNELS
    for width, layers in zip(widths, _VGG[name], strict=True):
        block: list[nn.Module] = []
        for _ in range(layers):
            block += [*_convolution(inputs, width, 3), nn.ReLU()]
            inputs = width
        blocks.append(nn.Sequential(*block, nn.MaxPool2d(2)))
    hidden = _scaled(_VGG_HIDDEN, scale)
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(_VGG_POOLED), nn.Flatten())
    return [
        *blocks,
        nn.Sequential(pooled, nn.Linear(inputs * _VGG_POOLED**2, hidden), nn.ReLU()),
        nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)),
    ]


class BottleneckBlock(nn.Module):
    """A residual block: convolutions of size 1, 3 and 1, beside a shortcut."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            *(*_convolution(inputs, width, 1), nn.ReLU()),
            *(*_convolution(width, width, 3, stride), nn.ReLU()),
            *_convolution(width, outputs, 1),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of both paths, rectified."""
        return nn.functional.relu(self.path(values) + self.shortcut(values))


def _resnet(name: str, scale: float, classes: int) -> list[nn.Module]:
    depths, factor = _RESNET[name]
    inputs = _scaled(_WIDTHS[0], scale)
    stem = nn.Sequential(*_convolution(_CHANNELS, inputs, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
    blocks: list[nn.Module] = [stem]
    for stage, (width, depth) in enumerate(zip(_WIDTHS, depths, strict=True)):
        for number in range(max(1, round(depth * scale))):
            stride = 2 if stage > 0 and number == 0 else 1
            outputs = _scaled(width, scale) * _EXPANSION
            blocks.append(BottleneckBlock(inputs, _scaled(width * factor, scale), outputs, stride))
            inputs = outputs
    return [*blocks, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))]
