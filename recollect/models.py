"""The paper's networks (App. B.2)."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


def mlp(n_features: int, n_classes: int, hidden: Sequence[int] = (128, 128)) -> nn.Sequential:
    """Fully connected layers with ReLU: the paper's network for tables.

    Args:
        n_features: how many numbers an example has; images are flattened.
        n_classes: how many outputs there are.
        hidden: the widths of the hidden layers.

    Example:
        >>> mlp(54, 7)(torch.zeros(2, 54)).shape
        torch.Size([2, 7])
    """
    widths = [n_features, *hidden]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(widths[-1], n_classes))


def cnn(input_shape: tuple[int, int, int], n_classes: int) -> nn.Sequential:
    """A convolutional network: the paper's network for MNIST and Fashion-MNIST.

    It has three 5x5 convolutions with 32, 32 and 64 filters, each pooled 2x2, then 256 units.

    Args:
        input_shape: channels, height and width; at least 8 x 8.
        n_classes: how many outputs there are.

    Example:
        >>> cnn((1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    channels, height, width = input_shape
    layers: list[nn.Module] = []
    for filters in (32, 32, 64):
        layers += [nn.Conv2d(channels, filters, kernel_size=5, padding=2), nn.MaxPool2d(2), nn.ReLU()]
        channels, height, width = filters, height // 2, width // 2
    if not height * width:
        raise ValueError(f"images must be at least 8 x 8 for three poolings, got {input_shape[1:]}")
    units = [nn.Linear(channels * height * width, 256), nn.ReLU(), nn.Linear(256, n_classes)]
    return nn.Sequential(*layers, nn.Flatten(), *units)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around which the input is carried (He et al. 2016)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        carried = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + carried)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """A residual network with the parameter names of torchvision's."""

    def __init__(self, blocks: Sequence[int], n_classes: int, in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        stages: list[nn.Module] = []
        before = 64
        for stage, n_blocks in enumerate(blocks):
            width, stride = 64 * 2**stage, 1 if stage == 0 else 2
            stage_blocks = [ResidualBlock(before, width, stride)]
            stage_blocks += [ResidualBlock(width, width, 1) for _ in range(n_blocks - 1)]
            stages.append(nn.Sequential(*stage_blocks))
            before = width
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(before, n_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))  # type: ignore[no-any-return]


def resnet18(n_classes: int, in_channels: int = 3) -> ResNet:
    """ResNet-18 as in torchvision: its layout, initialisation and parameter names.

    Args:
        n_classes: how many outputs there are.
        in_channels: how many channels an image has.

    Example:
        >>> sum(p.numel() for p in resnet18(10).parameters())
        11181642
    """
    return ResNet([2, 2, 2, 2], n_classes, in_channels)
