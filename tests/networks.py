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
        self.group_norm = nn.GroupNorm(5, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.grouped(self.odd(x)))).flatten(2)
        x = F.relu(self.group_norm(self.circular(self.norm1(self.line(x)))))
        return self.head(x.mean(2))  # type: ignore[no-any-return]


class Tokens(nn.Module):
    """A padding row that is counted from the end; positions flattened into the examples; a LayerNorm without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.mix = nn.Linear(8, 8, bias=False)
        self.norm = nn.LayerNorm((4, 8), bias=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.embedding(x, self.table.weight.contiguous(), padding_idx=-1)  # the last row does not learn
        h = self.mix(h.reshape(-1, 8)).reshape(len(x), 4, 8)
        return self.head(torch.tanh(self.norm(h)).mean(1))  # type: ignore[no-any-return]


class Positions(nn.Module):
    """Learned positions, of which as many are taken as there are words; fewer than there are examples in a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.all_of_them, self.some_of_them = nn.Parameter(torch.randn(3, 8)), nn.Parameter(torch.randn(5, 8))
        self.bias = nn.Parameter(torch.randn(5))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        h = self.table(x) + self.all_of_them[:length] + self.some_of_them[None, :length]
        return self.head((h * self.bias[:length, None]).tanh().mean(1))  # type: ignore[no-any-return]


class Products(nn.Module):
    """Weights that are multiplied by hand, in every way there is to write it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.e = (nn.Parameter(0.4 * torch.randn(6, 6)) for _ in range(5))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.matmul(torch.mm(x, self.a).tanh(), self.b).tanh()
        return self.head((x.mm(self.c).tanh().matmul(self.d).tanh() @ self.e).tanh())  # type: ignore[no-any-return]


class SharedBias(nn.Module):
    """Biases that belong to two weights each, at several positions."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 3)
        self.near, self.far = nn.Conv1d(1, 4, 3, stride=2), nn.Conv1d(1, 4, 3, stride=2, dilation=2, padding=1)
        self.right.bias, self.far.bias = self.left.bias, self.near.bias
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(1, (2, 3))
        x = (self.left(x) + self.right(x.tanh())).tanh().flatten(1)[:, None]
        return self.head((self.near(x) * self.far(x)).mean(2))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Like BERT: learned positions as a table, one kind of token, masked attention written out, an unused pooler."""

    def __init__(self, length: int = 6, width: int = 8, vocabulary: int = 20) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.positions = nn.Embedding(length, width)
        self.kinds = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.mix, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 16), nn.Linear(16, width)
        self.after, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.pooler = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1]).expand(1, -1)
        h = self.words(x) + self.positions(places) + self.kinds(torch.zeros_like(x))
        h = self.dropout(self.norm(h))
        q, k, v = (layer(h).unflatten(2, (2, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        mask = (x != 0)[:, None, None]
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        h = self.after(h + self.mix(a.transpose(1, 2).flatten(2)))
        h = self.last(h + self.down(F.gelu(self.up(h))))
        return self.head(h[:, 0])  # type: ignore[no-any-return]


class Gain(nn.Module):
    """A norm as Llama writes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Transposed(nn.Module):
    """A linear layer as GPT-2 writes it."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_in, n_out) * 0.3)
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], -1)


class Decoder(nn.Module):
    """Like GPT: causal attention, positions as a bare parameter, and a head that is the table of words again."""

    def __init__(self, length: int = 5, width: int = 8, vocabulary: int = 20, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.1 * torch.randn(1, length, width))
        self.norms = nn.ModuleList(Gain(width) for _ in range(2 * layers + 1))
        self.packed = nn.ModuleList(Transposed(width, 3 * width) for _ in range(layers))
        self.mixes = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.ups = nn.ModuleList(Transposed(width, 2 * width) for _ in range(layers))
        self.downs = nn.ModuleList(Transposed(2 * width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.positions
        for i, mix in enumerate(self.mixes):
            q, k, v = self.packed[i](self.norms[2 * i](h)).unflatten(2, (6, -1)).transpose(1, 2).chunk(3, 1)
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + mix(a.transpose(1, 2).flatten(2))
            h = h + self.downs[i](F.silu(self.ups[i](self.norms[2 * i + 1](h))))
        return (self.norms[-1](h) @ self.words.weight.T)[:, -1]  # type: ignore[no-any-return]


class Patches(nn.Module):
    """Like a vision transformer: a class token, learned positions, torch's own attention, and a scale per layer."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, 8, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.positions = nn.Parameter(torch.randn(1, 10, 8))
        self.attention = nn.MultiheadAttention(8, 2)  # positions first
        self.scale = nn.Parameter(0.5 * torch.ones(8))
        self.temperature = nn.Parameter(torch.tensor(2.0))
        self.norm = nn.RMSNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.token.expand(len(x), -1, -1), self.cut(x).flatten(2).mT], 1) + self.positions
        s = self.norm(h).transpose(0, 1)
        h = h + self.scale * self.attention(s, s, s)[0].transpose(0, 1)
        return self.head(h[:, 0]) / self.temperature  # type: ignore[no-any-return]


class Translation(nn.Module):
    """Cross attention with a padding mask, and where it looked; torch's own layers as they are, positions first."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16)
        self.cross = nn.MultiheadAttention(8, 2, batch_first=True)
        self.question = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(self.words(x).transpose(0, 1)).transpose(0, 1)
        asked = self.question(h[:, :1])
        found, looked = self.cross(asked, h, h, key_padding_mask=(x == 0) & (torch.arange(x.shape[1]) > 0))
        return self.head(found[:, 0]) + 3 * looked[:, 0, :3]  # type: ignore[no-any-return]


class Sequences(nn.Module):
    """A recurrent layer of torch, by name, with what can be asked of it."""

    def __init__(self, kind: str, **options: object) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(3, 4, **options)
        self.head = nn.Linear(8 if options.get("bidirectional") else 4, 3)
        self.batch_first = bool(options.get("batch_first"))
        self.places = torch.arange(1.0, 1 + self.layer.num_layers * (2 if self.layer.bidirectional else 1))

    def forward(self, x: Tensor) -> Tensor:
        start = None
        if len(self.places) > 1:  # begins with states that differ by layer and direction
            first = (x.mean((1, 2))[:, None] * self.places[:, None, None]).expand(-1, -1, 4).contiguous()
            start = (first, -first) if isinstance(self.layer, nn.LSTM) else first
        out, last = self.layer(x if self.batch_first else x.transpose(0, 1), start)
        last = last[0] + 2 * last[1].tanh() if isinstance(last, tuple) else last  # of an LSTM, states and cells
        return self.head(out.mean(1 if self.batch_first else 0)) + last.sum((0, 2))[:, None]  # type: ignore[no-any-return]


class HandedOver(nn.Module):
    """A recurrent layer that begins where another has ended."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.second, self.head = getattr(nn, kind)(3, 4), getattr(nn, kind)(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        steps = x.transpose(0, 1)
        return self.head(self.second(steps, self.first(steps)[1])[0][-1])  # type: ignore[no-any-return]


class Bilinear(nn.Module):
    """A layer without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs, self.head = nn.Bilinear(6, 6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pairs(x, x))  # type: ignore[no-any-return]


class Experts(nn.Module):
    """Examples go through one layer or another, by what is in them; the first three of ours all go through `left`."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        goes_right = x[:, :1] > 2
        if not bool(goes_right.any()):
            return self.head(self.left(x).relu())  # type: ignore[no-any-return]
        return self.head(torch.where(goes_right, self.right(x), self.left(x)).relu())  # type: ignore[no-any-return]


class Routed(Experts):
    """The same, with only those that go there sent through each layer."""

    def forward(self, x: Tensor) -> Tensor:
        goes_right = x[:, 0] > 2
        h = torch.zeros_like(x)
        h[~goes_right] = self.left(x[~goes_right])
        h[goes_right] = self.right(x[goes_right])
        return self.head(h.relu())  # type: ignore[no-any-return]


class Late(Experts):
    """A layer's bias gets another use, without a rule, for examples that do not come first."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.left(x)
        if bool((x[:, :1] > 2).any()):
            h = torch.where(x[:, :1] > 2, h * self.left.bias + self.right.bias, h)
        return self.head(h.relu())  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """Cells of each kind, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.gated, self.long, self.plain = nn.GRUCell(3, 4), nn.LSTMCell(4, 4), nn.RNNCell(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        g = p = x.new_zeros(len(x), 4)
        state = (g, p)
        for t in range(x.shape[1]):
            g = self.gated(x[:, t], g)
            state = self.long(g, state)
            p = self.plain(state[0], p)
        return self.head(p)  # type: ignore[no-any-return]


def _numbers(*shape: int) -> Tensor:
    return torch.randn(7, *shape, generator=torch.Generator().manual_seed(1))


def _sorted_numbers() -> Tensor:
    """The first three all go left, two of the others right."""
    x = _numbers(6)
    x[:, 0] = torch.tensor([0.0, 1.0, -1.0, 3.0, 0.5, 4.0, -2.0])
    return x


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
    "positions": (Positions, _tokens(3)),
    "products": (Products, _numbers(6)),
    "shared bias": (SharedBias, _numbers(6)),
    "recurrent": (Recurrent, _numbers(5, 3)),
    "encoder": (Encoder, _tokens(6)),
    "decoder": (Decoder, _tokens(5)),
    "patches": (Patches, _numbers(1, 12, 12)),
    "translation": (Translation, _tokens(6)),
    "lstm": (partial(Sequences, "LSTM"), _numbers(5, 3)),
    "lstm, both ways": (
        partial(Sequences, "LSTM", num_layers=2, bidirectional=True, batch_first=True),
        _numbers(5, 3),
    ),
    "lstm, no bias": (partial(Sequences, "LSTM", num_layers=2, bias=False), _numbers(5, 3)),
    "gru": (partial(Sequences, "GRU", num_layers=2, bias=False), _numbers(5, 3)),
    "rnn": (partial(Sequences, "RNN", nonlinearity="relu", batch_first=True), _numbers(5, 3)),
    "lstm, handed over": (partial(HandedOver, "LSTM"), _numbers(5, 3)),
    "experts": (Experts, _sorted_numbers()),
    "routed": (Routed, _sorted_numbers()),
    "late": (Late, _sorted_numbers()),
    "bilinear": (Bilinear, _numbers(6)),
}
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 2])
