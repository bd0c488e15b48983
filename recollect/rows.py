"""How pursuit computes with rows: as numbers, or as the factors that they are outer products of.

Either way some rows are one matrix, which can be cut, indexed and grown. `Plain` has a row's numbers side by side.
`Outer` has the factors of last-layer gradients: C + H numbers per initialisation instead of C * H, and the product of
two rows takes C + H multiplications, as <d h^T, e k^T> = <d, e> <h, k>.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from recollect.numerics import CACHED_ROWS, gram, sum_rows

FEW_ROWS, _SMALL = 256, 2**13
"""Rows, and products of rows, that take all initialisations at once: fewer, short steps."""


class Form(Protocol):
    """What is asked of rows, whatever they look like."""

    def products(self, rows: Tensor, others: Tensor) -> Tensor:
        """The inner products of rows with other rows, (n, m)."""

    def gram(self, rows: Tensor) -> Tensor:
        """The inner products of rows with each other, (n, n), in float64."""

    def along(self, rows: Tensor, vector: Tensor) -> Tensor:
        """The inner products of rows with a vector, (n,), in the vector's precision."""

    def combined(self, weights: Tensor, rows: Tensor) -> Tensor:
        """The sum of rows, each times its weight, as a vector in float64."""

    def sum(self, rows: Tensor) -> Tensor:
        """The sum of rows as a vector in float64."""

    def formed(self, rows: Tensor) -> Tensor:
        """Rows as vectors, (n, entries of a vector)."""


class Plain:
    """Rows whose numbers stand side by side.

    Example:
        >>> Plain().combined(torch.tensor([2.0, 3.0]).double(), torch.eye(2))
        tensor([2., 3.], dtype=torch.float64)
    """

    def products(self, rows: Tensor, others: Tensor) -> Tensor:
        return rows @ others.T

    def gram(self, rows: Tensor) -> Tensor:
        return gram(rows)

    def along(self, rows: Tensor, vector: Tensor) -> Tensor:
        if rows.dtype == vector.dtype:
            return rows @ vector
        return torch.cat([block.to(vector.dtype) @ vector for block in rows.split(CACHED_ROWS)])

    def combined(self, weights: Tensor, rows: Tensor) -> Tensor:
        total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
        for part, block in zip(weights.split(CACHED_ROWS), rows.split(CACHED_ROWS), strict=True):
            total += part @ block.double()
        return total

    def sum(self, rows: Tensor) -> Tensor:
        return sum_rows(rows)

    def formed(self, rows: Tensor) -> Tensor:
        return rows


class Outer(NamedTuple):
    """Rows that are, for each of S initialisations, the C x H numbers of an outer product, and the C of its bias.

    Of these a matrix has delta and h, C + H numbers per initialisation.

    Attributes:
        inits: S.
        n_out: C.
        n_in: H.
        bias: whether there is one.
        constant: one more entry that all rows share; none if it is zero.
        padding: how many more entries vectors have: one for the constant, and others that are zero.

    Example:
        >>> form = Outer(1, 2, 3, False)
        >>> rows = torch.tensor([[1.0, 2.0, 1.0, 0.0, 1.0]])
        >>> form.sum(rows)
        tensor([1., 0., 1., 2., 0., 2.], dtype=torch.float64)
        >>> form.products(rows, rows)
        tensor([[10.]])
    """

    inits: int
    n_out: int
    n_in: int
    bias: bool
    constant: float = 0.0
    padding: int = 0

    @property
    def dim(self) -> int:
        """Numbers in a row, if it were formed."""
        return self.inits * self._per_init

    @property
    def width(self) -> int:
        """Numbers in a row of a matrix."""
        return self.inits * (self.n_out + self.n_in)

    @property
    def _per_init(self) -> int:
        return self.n_out * (self.n_in + self.bias)

    def pack(self, deltas: Tensor, inputs: Tensor) -> Tensor:
        """The matrix of some rows, of their factors, (S, n, C) and (S, n, H)."""
        return torch.cat([deltas, inputs], 2).transpose(0, 1).flatten(1)

    def factors(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Both factors, (S, n, C) and (S, n, H); what is written there is written to the matrix."""
        both = rows.unflatten(1, (self.inits, self.n_out + self.n_in)).transpose(0, 1)
        return both[..., : self.n_out], both[..., self.n_out :]

    def products(self, rows: Tensor, others: Tensor) -> Tensor:
        if len(rows) * len(others) <= _SMALL:
            (d, h), (e, k) = self.factors(rows), self.factors(others)
            lengths = h @ k.mT
            small: Tensor = (lengths.add_(1) if self.bias else lengths).mul_(d @ e.mT).sum(0)
            return small.add_(self.constant**2)
        total = torch.full((len(rows), len(others)), self.constant**2, dtype=rows.dtype, device=rows.device)
        for d, h, e, k in zip(*self.factors(rows), *self.factors(others), strict=True):
            lengths = h @ k.T
            total.addcmul_(d @ e.T, lengths.add_(1) if self.bias else lengths)
        return total

    def gram(self, rows: Tensor) -> Tensor:
        return self.products(rows, rows).double()

    def along(self, rows: Tensor, vector: Tensor) -> Tensor:
        total = torch.zeros(len(rows), dtype=vector.dtype, device=rows.device)
        if self.padding:
            total += self.constant * vector[self.dim]
        split = self.n_out * self.n_in
        if len(rows) <= FEW_ROWS:
            (d, h), v = self.factors(rows), vector[: self.dim].reshape(self.inits, -1)
            to_h = h.to(v.dtype) @ v[:, :split].reshape(-1, self.n_out, self.n_in).mT
            if self.bias:
                to_h += v[:, None, split:]
            return total.add_(to_h.mul_(d).sum((0, 2)))
        for d, h, v in zip(*self.factors(rows), vector[: self.dim].split(self._per_init), strict=True):
            total += along_factors(d.to(v.dtype), h.to(v.dtype), v[:split].reshape(self.n_out, self.n_in), v[split:])
        return total

    def combined(self, weights: Tensor, rows: Tensor) -> Tensor:
        if len(rows) <= FEW_ROWS:
            weighted, h = (factor.double() for factor in self.factors(rows))
            weighted = weighted * weights.double()[:, None]
            sums = (weighted.mT @ h).flatten(1)
            sums = torch.cat([sums, weighted.sum(1)], 1) if self.bias else sums
            return self._padded(sums.flatten(), weights)
        parts = []
        for d, h in zip(*self.factors(rows), strict=True):
            weighted = d.double() * weights.double()[:, None]
            parts.append((weighted.T @ h.double()).flatten())
            if self.bias:
                parts.append(weighted.sum(0))
        return self._padded(torch.cat(parts), weights)

    def _padded(self, combined: Tensor, weights: Tensor) -> Tensor:
        """With the entry that all rows share, and the zeros after it."""
        if not self.padding:
            return combined
        rest = combined.new_zeros(self.padding)
        rest[0] = self.constant * float(weights.sum(dtype=torch.float64))
        return torch.cat([combined, rest])

    def sum(self, rows: Tensor) -> Tensor:
        return self.combined(torch.ones(len(rows), dtype=torch.float64, device=rows.device), rows)

    def formed(self, rows: Tensor) -> Tensor:
        deltas, inputs = self.factors(rows)
        products = (deltas[..., None] * inputs[:, :, None, :]).flatten(2)  # (S, n, C * H)
        formed = (torch.cat([products, deltas], 2) if self.bias else products).transpose(0, 1).flatten(1)
        rest = formed.new_zeros(len(rows), self.padding)
        rest[:, :1] = self.constant
        return torch.cat([formed, rest], 1)


def along_factors(delta: Tensor, h: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    """The products delta^T (matrix h + bias) of the rows of both factors, (n,); there may be no bias.

    Example:
        >>> along_factors(torch.tensor([[1.0, 2.0]]), torch.ones(1, 3), torch.ones(2, 3), torch.tensor([1.0, 0.0]))
        tensor([10.])
    """
    to_h = h @ matrix.T
    if len(bias):
        to_h += bias
    return to_h.mul_(delta) @ to_h.new_ones(len(matrix))  # sums of a few numbers each are faster as a product
