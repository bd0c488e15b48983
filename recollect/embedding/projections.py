"""Random projections with E[P^T P] = I, so that inner products are kept in expectation.

Each is drawn anew for every initialisation and adds one parameter's or one layer's contribution at a time,
so that a whole gradient never has to exist.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from recollect.embedding.layers import RULES, FactorRule, Sides, Use
from recollect.embedding.plan import Unit

_CACHED = 32  # the gradients of so many examples stay in the cache: sparse products are twice as fast as with 128


class Projection(ABC):
    """A linear map from gradients to `width` numbers, applied piece by piece."""

    width: int

    def to(self, device: torch.device) -> Self:
        """Move what was drawn; drawing itself is always on the CPU, so that a seed means the same everywhere."""
        return self

    @abstractmethod
    def add_parameter(self, out: Tensor, name: str, gradient: Tensor) -> None:
        """Add the projection of one parameter's gradients (n, entries) to `out` (n, width)."""

    def add_uses(self, out: Tensor, uses: Sequence[Use]) -> None:
        """Add what the uses of parameters in one pass contribute."""
        for use in uses:
            self.add_use(out, use)

    def add_use(self, out: Tensor, use: Use) -> None:
        """Add what one use contributes."""
        n = len(out)
        for name, gradient in RULES[use.rule].gradients(use, n).items():
            self.add_parameter(out, name, gradient.reshape(n, -1))


class Identity(Projection):
    """The gradient itself, parameters one after the other."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._slices = _slices(sizes)
        self.width = sum(sizes.values())

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
        self.width = dim
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

    def add_uses(self, out: Tensor, uses: Sequence[Use]) -> None:
        """A few examples at a time, and laid out with the examples last until all layers are added."""
        n = len(out)
        for start in range(0, n, _CACHED):
            rows = slice(start, min(start + _CACHED, n))
            total = out.new_zeros(self.width, rows.stop - rows.start)
            for use in uses:
                assert use.delta is not None
                input, delta = _of_examples(use.input, rows, n), _of_examples(use.delta, rows, n)
                self.add_use(total.T, replace(use, input=input, delta=delta))
            out[rows] += total.T

    def add_parameter(self, buffer: Tensor, name: str, gradient: Tensor) -> None:
        if name in self._blocks:
            # A bag of table rows is a row of a sparse matrix times the table: torch's fastest such product.
            columns, starts, values = self._blocks[name]
            table = gradient.T.contiguous()  # (entries, n)
            weights = values.to(table.dtype)
            buffer += F.embedding_bag(columns, table, starts, mode="sum", per_sample_weights=weights).T


class Kronecker(Projection):
    """Both factors of a layer's gradient projected, and the layers' results laid over one another.

    For a layer with gradient sum_l delta_l a_l^T, random signs P (p x out) and Q (q x in) give
    (P (x) Q) vec(gradient) without forming it: p * q numbers, at most `dim`, added to the result from some place
    on. A factor that is short is not projected but only given random signs, which is exact, cheap, and leaves more
    room for the other. Parameters without factors (gains, shifts, whatever has no rule) are given random signs
    and added likewise, or count-sketched where they are longer than `dim`.

    All of this keeps inner products in expectation, since any two different entries meet with independent signs. The
    first step varies like 1/p + 1/q, the overlap like 1/dim, so layers are kept wider than an equal share of `dim`:
    `widening` times as wide.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        units: Mapping[str, Unit],
        dim: int,
        generator: torch.Generator,
        widening: float = 4.0,
    ) -> None:
        self.width = dim
        self._units = dict(units)
        self._factors: dict[str, Sides] = {}
        self._starts: dict[str, int] = {}
        self._signs: dict[str, Tensor] = {}
        self._hashes: dict[str, Tensor] = {}
        single = [name for name in sizes if name not in units and not any(name == unit.bias for unit in units.values())]
        places = iter(_places(len(units) + len(single)))
        share = min(dim, widening * dim / max(1, len(units)))
        for weight, unit in units.items():
            p, q = _factor_widths(share, unit.n_out, unit.n_in)
            P, Q = _signs(p, unit.n_out, generator), _signs(q, unit.n_in, generator)
            self._factors[weight] = _sides(P, Q, unit.bias is not None)
            self._starts[weight] = round(next(places) * (dim - p * q))
        for name in single:
            size = sizes[name]
            self._signs[name] = 2.0 * torch.randint(0, 2, (size,), generator=generator) - 1.0
            if size > dim:
                self._hashes[name] = torch.randint(0, dim, (size,), generator=generator)
            else:
                self._starts[name] = round(next(places) * (dim - size))

    def to(self, device: torch.device) -> Self:
        self._factors = {layer: sides.to(device) for layer, sides in self._factors.items()}
        self._signs = {name: value.to(device) for name, value in self._signs.items()}
        self._hashes = {name: value.to(device) for name, value in self._hashes.items()}
        return self

    def add_parameter(self, out: Tensor, name: str, gradient: Tensor) -> None:
        if name in self._hashes:
            out.index_add_(1, self._hashes[name], gradient * self._signs[name].to(gradient.dtype))
        elif name in self._signs:
            start = self._starts[name]
            out[:, start : start + gradient.shape[1]].addcmul_(gradient, self._signs[name].to(gradient.dtype))
        elif name in self._units:
            unit, (P, Q, shift) = self._units[name], self._factors[name].to(gradient.dtype)
            formed = gradient.unflatten(1, (unit.n_out, -1) if unit.rows_are_outputs else (-1, unit.n_out))
            left = _times(P, formed if unit.rows_are_outputs else formed.mT)  # (n, p, in)
            products = _widened(_times(Q, left.mT).mT, Q, shift)
            self._place_of(out, name, *products.shape[1:]).add_(products)
        else:  # a bias, the last column of its weight
            weight = next(weight for weight, unit in self._units.items() if unit.bias == name)
            P, Q, shift = self._factors[weight].to(gradient.dtype)
            assert shift is not None
            column = shift if Q.ndim == 2 else F.pad(shift.reshape(1), (len(Q), 0))
            products = _times(P, gradient[:, :, None]) * column
            self._place_of(out, weight, *products.shape[1:]).add_(products)

    def add_use(self, out: Tensor, use: Use) -> None:
        if use.weight not in self._factors:
            super().add_use(out, use)
            return
        assert use.delta is not None
        rule, unit, sides = RULES[use.rule], self._units[use.weight], self._factors[use.weight].to(use.delta.dtype)
        assert isinstance(rule, FactorRule)
        self._add_products(out, use.weight, *_project(rule, unit, use, len(out), sides))
        if use.bias is not None and use.bias != unit.bias:
            self.add_parameter(out, use.bias, rule.bias_gradient(use, len(out)))

    @staticmethod
    def stacked(projections: Sequence["Kronecker"]) -> "Kronecker":
        """The projections of several draws of one model in one, for `add_stack`."""
        stack = copy.copy(projections[0])
        stack._factors = {
            layer: _stacked([projection._factors[layer] for projection in projections]) for layer in stack._factors
        }
        return stack

    def add_stack(self, out: Tensor, use: Use) -> None:
        """As `add_use` for several draws, which come first in `out` (draws, n, width) and in what was noted."""
        assert use.weight is not None and use.delta is not None
        rule, unit, sides = RULES[use.rule], self._units[use.weight], self._factors[use.weight].to(use.delta.dtype)
        assert isinstance(rule, FactorRule)

        def one(a: Tensor, delta: Tensor, sides: Sides) -> tuple[Tensor, Tensor]:
            return _project(rule, unit, replace(use, input=a, delta=delta), out.shape[1], sides)

        dims = (0, 0, Sides(0, 0, None if sides.shift is None else 0))  # type: ignore[arg-type]
        self._add_products(out, use.weight, *vmap(one, dims)(use.input, use.delta, sides))

    def _add_products(self, out: Tensor, weight: str, left: Tensor, right: Tensor) -> None:
        """Add the products of (..., p, positions) and (..., positions, q) where they belong in (..., width)."""
        place = self._place_of(out, weight, left.shape[-2], right.shape[-1])
        if left.shape[-1] == 1:
            place.addcmul_(left, right)
        elif place.ndim == 3:
            place.baddbmm_(left, right)
        else:
            place.add_(left @ right)

    def _place_of(self, out: Tensor, weight: str, p: int, q: int) -> Tensor:
        start = self._starts[weight]
        return out[..., start : start + p * q].unflatten(-1, (p, q))  # type: ignore[no-any-return]


def _of_examples(value: Tensor, rows: slice, n: int) -> Tensor:
    """The part of some of n examples, each of which may have several entries in the first dimension."""
    positions = len(value) // n
    return value[rows.start * positions : rows.stop * positions]


def _places(count: int) -> list[float]:
    """Evenly spread from 0 to 1."""
    return [i / max(1, count - 1) for i in range(count)]


def _project(rule: FactorRule, unit: Unit, use: Use, n: int, sides: Sides) -> tuple[Tensor, Tensor]:
    """P and Q applied to both factors of a use, (n, p, positions) and (n, positions, q)."""
    P, Q, shift = sides
    if rule.rows_are_outputs(use) == unit.rows_are_outputs:
        left = rule.out_factor(use, n, P)
        right = rule.in_factor(use, n, Q, shift if use.bias is not None and use.bias == unit.bias else None)
    else:  # a table that is also a linear layer's weight has its sides exchanged
        left, right = rule.in_factor(use, n, P), rule.out_factor(use, n, Q)
    return left.mT, _widened(right, Q, shift)


def _times(M: Tensor, X: Tensor) -> Tensor:
    """M X for each example, where a vector stands for its diagonal matrix."""
    return M[:, None] * X if M.ndim == 1 else M @ X


def _widened(right: Tensor, Q: Tensor, shift: Tensor | None) -> Tensor:
    """With a zero for the bias, where Q has a place for it that was not filled."""
    missing = len(Q) + (shift is not None) - right.shape[-1] if Q.ndim == 1 else 0
    return F.pad(right, (0, missing)) if missing else right


def _slices(sizes: Mapping[str, int]) -> dict[str, slice]:
    slices, start = {}, 0
    for name, size in sizes.items():
        slices[name] = slice(start, start + size)
        start += size
    return slices


def _stacked(sides: Sequence[Sides]) -> Sides:
    shifts = [side.shift for side in sides if side.shift is not None]
    P, Q = torch.stack([side.P for side in sides]), torch.stack([side.Q for side in sides])
    return Sides(P, Q, torch.stack(shifts) if shifts else None)


def _factor_widths(share: float, n_out: int, n_in: int) -> tuple[int, int]:
    """How wide to keep both factors, with p * q at most the share.

    Either both are projected to about the same width, with variance 2 / sqrt(share), or the outputs are kept as
    they are, with variance n_out / share. The second is as good while n_out is at most twice the root of the share, and
    cheaper, since it is the inputs' side that costs. Widths that are multiples of the processor's vectors take half the
    time of those that are one less.
    """
    side = math.sqrt(share)
    if n_out <= min(2 * side, share):
        return n_out, min(n_in, max(1, int(share / n_out)))
    p = min(n_out, _in_vectors(side))
    return p, min(n_in, _in_vectors(share / p))


def _in_vectors(width: float, vector: int = 8) -> int:
    return max(1, int(width)) if width < 2 * vector else int(width) // vector * vector


def _sides(P: Tensor, Q: Tensor, has_bias: bool) -> Sides:
    if not has_bias:
        return Sides(P, Q, None)
    return Sides(P, Q[..., :-1].contiguous(), Q[..., -1].contiguous())


def _signs(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Random signs as a matrix; as a vector, for one sign per entry, where nothing is gained by projecting."""
    if rows == columns:
        return 2.0 * torch.randint(0, 2, (rows,), generator=generator) - 1.0
    return (2.0 * torch.randint(0, 2, (rows, columns), generator=generator) - 1.0) / math.sqrt(rows)


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
