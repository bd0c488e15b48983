"""Random projections with E[P^T P] = I, so that inner products are kept in expectation.

Each is drawn anew for every initialisation and adds one parameter's or one layer's contribution at a time,
so that a whole gradient never has to exist.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.embedding.layers import Call, Rule


class Projection(ABC):
    """A linear map from gradients to `width` numbers, applied piece by piece.

    Contributions are added to a buffer of `buffer_width` numbers per example, which `finish` turns into the result.
    """

    width: int
    buffer_width: int

    def to(self, device: torch.device) -> Self:
        """Move what was drawn; drawing itself is always on the CPU, so that a seed means the same everywhere."""
        return self

    @abstractmethod
    def add_parameter(self, buffer: Tensor, name: str, gradient: Tensor) -> None:
        """Add what one parameter's gradients (n, entries) contribute."""

    def add_call(self, buffer: Tensor, layer: str, rule: Rule, module: nn.Module, call: Call) -> None:
        """Add what one use of a layer contributes."""
        assert call.delta is not None
        n = len(buffer)
        for name, gradient in rule.gradient(module, call.input, call.delta, n).items():
            self.add_parameter(buffer, f"{layer}.{name}" if layer else name, gradient.reshape(n, -1))

    def finish(self, buffer: Tensor) -> Tensor:
        """The projected gradients, (n, width)."""
        return buffer


class Identity(Projection):
    """The gradient itself, parameters one after the other."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._slices = _slices(sizes)
        self.width = self.buffer_width = sum(sizes.values())

    def add_parameter(self, buffer: Tensor, name: str, gradient: Tensor) -> None:
        if name in self._slices:
            buffer[:, self._slices[name]] += gradient


class Sparse(Projection):
    """Very sparse random signs (App. A.1).

    Entries of P are +-(rho d)^(-1/2) with probability rho / 2 each and zero otherwise, independently, with rho =
    1 / sqrt(D) (Li et al. 2006). Only the d * sqrt(D) nonzeros are kept. Their places in the
    flattened d x D matrix are found by drawing the gaps between them, which are geometric.
    """

    def __init__(self, sizes: Mapping[str, int], dim: int, generator: torch.Generator) -> None:
        D = sum(sizes.values())
        self.width = self.buffer_width = dim
        rho = 1 / math.sqrt(D)
        places = _bernoulli_places(dim * D, rho, generator)
        signs = torch.randint(0, 2, (len(places),), generator=generator)
        values = (2.0 * signs - 1.0) / math.sqrt(rho * dim)
        rows, columns = places // D, places % D
        self._blocks = {}
        for name, piece in _slices(sizes).items():
            inside = (columns >= piece.start) & (columns < piece.stop)
            starts = torch.searchsorted(rows[inside], torch.arange(dim))
            self._blocks[name] = (columns[inside] - piece.start, starts, values[inside])

    def to(self, device: torch.device) -> Self:
        self._blocks = {
            name: (columns.to(device), starts.to(device), values.to(device))
            for name, (columns, starts, values) in self._blocks.items()
        }
        return self

    def add_parameter(self, buffer: Tensor, name: str, gradient: Tensor) -> None:
        if name in self._blocks:
            # A bag of table rows is a row of a sparse matrix times the table: torch's fastest such product.
            columns, starts, values = self._blocks[name]
            table = gradient.T.contiguous()  # (entries, n)
            buffer += F.embedding_bag(columns, table, starts, mode="sum", per_sample_weights=values).T


class Kronecker(Projection):
    """Both factors of a layer's gradient projected, then the result folded down to the width.

    For a layer with gradient sum_l delta_l a_l^T, dense random signs P (p x out) and Q (q x in) give
    (P (x) Q) vec(gradient) without forming it. The numbers of all layers stand side by side in a buffer; each gets a
    random sign, and the buffer is folded: entries `dim` apart are added. Both steps keep inner products in
    expectation; the first varies like 1/p + 1/q, the second like 1/dim, so the factors are kept wider than `dim` asks.
    A factor that is short is not projected at all, which is exact and free, and leaves more room for the other.
    Parameters without factors (gains, shifts, whatever has no rule) are count-sketched, or kept where they are short.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        factor_sizes: Mapping[str, tuple[int, int]],
        dim: int,
        generator: torch.Generator,
        widening: float = 4.0,
    ) -> None:
        self._factors: dict[str, tuple[Tensor | None, Tensor | None]] = {}
        self._hashes: dict[str, tuple[Tensor, Tensor]] = {}
        widths: dict[str, int] = {}
        share = widening * dim / max(1, len(factor_sizes))
        for layer, (n_out, n_in) in factor_sizes.items():
            p, q = _factor_widths(share, n_out, n_in)
            P = None if p == n_out else _signs(p, n_out, generator)
            Q = None if q == n_in else _signs(q, n_in, generator)
            self._factors[layer] = (P, Q)
            widths[layer] = p * q
        for name, size in sizes.items():
            if _layer_of(name) not in factor_sizes:
                if size > dim:
                    self._hashes[name] = _hash(size, dim, generator)
                widths[name] = min(size, dim)
        self._places = _slices(widths)
        self.buffer_width = sum(widths.values())
        folds = math.ceil(self.buffer_width / dim)
        self.width = min(dim, self.buffer_width)
        self._padding = folds * self.width - self.buffer_width
        self._signs_of_entries = _signed(self.buffer_width, generator)

    def to(self, device: torch.device) -> Self:
        self._factors = {
            layer: (None if P is None else P.to(device), None if Q is None else Q.to(device))
            for layer, (P, Q) in self._factors.items()
        }
        self._hashes = {name: (places.to(device), signs.to(device)) for name, (places, signs) in self._hashes.items()}
        self._signs_of_entries = self._signs_of_entries.to(device)
        return self

    def add_parameter(self, buffer: Tensor, name: str, gradient: Tensor) -> None:
        if name in self._hashes:
            places, signs = self._hashes[name]
            buffer[:, self._places[name]].index_add_(1, places, gradient * signs)
        elif name in self._places:
            buffer[:, self._places[name]] += gradient

    def add_call(self, buffer: Tensor, layer: str, rule: Rule, module: nn.Module, call: Call) -> None:
        if layer not in self._factors:
            super().add_call(buffer, layer, rule, module, call)
            return
        assert call.delta is not None
        P, Q = self._factors[layer]
        sketch = rule.sketch(module, call.input, call.delta, len(buffer), P, Q)
        buffer[:, self._places[layer]] += sketch.reshape(len(buffer), -1)

    def finish(self, buffer: Tensor) -> Tensor:
        signed = F.pad(buffer * self._signs_of_entries, (0, self._padding))
        return signed.reshape(len(buffer), -1, self.width).sum(1)


def _layer_of(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _slices(sizes: Mapping[str, int]) -> dict[str, slice]:
    slices, start = {}, 0
    for name, size in sizes.items():
        slices[name] = slice(start, start + size)
        start += size
    return slices


def _factor_widths(share: float, n_out: int, n_in: int) -> tuple[int, int]:
    """How wide to keep both factors, with p * q near the share.

    Either both are projected to about the same width, with variance 2 / sqrt(share), or the outputs are kept as
    they are, with variance n_out / share. The second is as good while n_out is at most twice the root of the share, and
    cheaper, since it is the inputs' side that costs.
    """
    side = math.sqrt(share)
    if n_out <= 2 * side:
        return n_out, min(n_in, max(1, round(share / n_out)))
    q = min(n_in, max(1, round(side)))
    return min(n_out, max(1, round(share / q))), q


def _signed(size: int, generator: torch.Generator) -> Tensor:
    return 2.0 * torch.randint(0, 2, (size,), generator=generator) - 1.0


def _hash(size: int, dim: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randint(0, dim, (size,), generator=generator), _signed(size, generator)


def _signs(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return _signed(rows * columns, generator).reshape(rows, columns) / math.sqrt(rows)


def _bernoulli_places(count: int, rho: float, generator: torch.Generator) -> Tensor:
    """Which of `count` independent trials with probability `rho` succeed, ascending."""
    if rho >= 1:
        return torch.arange(count)
    chunk = int(count * rho + 6 * math.sqrt(count * rho) + 16)
    places = torch.zeros(0, dtype=torch.int64)
    last = -1
    while last < count:
        gaps = torch.empty(chunk, dtype=torch.int64).geometric_(rho, generator=generator)
        found = last + gaps.cumsum(0)
        places, last = torch.cat([places, found]), int(found[-1])
    return places[places < count]
