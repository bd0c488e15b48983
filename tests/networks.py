"""Networks with every kind of layer that the embedding must get right."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect import models


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16, padding_idx=0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(x)).mean(1))  # type: ignore[no-any-return]


class Strange(nn.Module):
    """Everything that a rule could get wrong: tied and reused weights, a free parameter, odd layouts, in-place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.twice = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.first.weight
        self.positions_first = nn.Linear(2, 2)
        self.by_hand = nn.Linear(6, 6)
        self.gain = nn.Parameter(torch.ones(6))
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(6, 3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(x))
        x = self.relu(self.twice(self.twice(x)))
        x = self.tied(x) * self.gain
        pieces = x.reshape(len(x), 3, 2).transpose(0, 1)  # (3, n, 2): the examples are not first
        x = self.positions_first(pieces).transpose(0, 1).reshape(len(x), 6)
        x = self.by_hand(x) + F.linear(x, self.by_hand.weight)
        return self.head(x)  # type: ignore[no-any-return]


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.odd = nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2))
        self.grouped = nn.Conv2d(4, 4, 3, groups=2, padding="same", bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.line = nn.Conv1d(4, 5, 4, padding="same")
        self.norm1 = nn.BatchNorm1d(5)
        self.circular = nn.Conv1d(5, 5, 3, padding=1, padding_mode="circular")
        self.group_norm = nn.GroupNorm(1, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.grouped(self.odd(x)))).flatten(2)
        x = F.relu(self.group_norm(self.circular(self.norm1(self.line(x)))))
        return self.head(x.mean(2))  # type: ignore[no-any-return]


class Tokens(nn.Module):
    """Examples and positions flattened into one dimension, then a LayerNorm without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.mix = nn.Linear(8, 8, bias=False)
        self.norm = nn.LayerNorm((4, 8), bias=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.mix(self.table(x).reshape(-1, 8)).reshape(len(x), 4, 8)
        return self.head(torch.tanh(self.norm(h)).mean(1))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), 4)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.head(h)  # type: ignore[no-any-return]


def _numbers(*shape: int) -> Tensor:
    return torch.randn(7, *shape, generator=torch.Generator().manual_seed(1))


def _tokens(length: int) -> Tensor:
    return torch.randint(0, 20, (7, length), generator=torch.Generator().manual_seed(1))


# name -> a function that makes the model, and seven inputs
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "mlp": (partial(models.mlp, 6, 3), _numbers(6)),
    "cnn": (partial(models.cnn, (1, 12, 12), 3), _numbers(1, 12, 12)),
    "resnet": (partial(models.ResNet, [1, 1, 1, 1], 3), _numbers(3, 32, 32)),
    "transformer": (Transformer, _tokens(5)),
    "strange": (Strange, _numbers(6)),
    "convolutions": (Convolutions, _numbers(2, 7, 6)),
    "tokens": (Tokens, _tokens(4)),
    "recurrent": (Recurrent, _numbers(5, 3)),
}
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 2])
