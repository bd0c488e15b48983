"""What is to be matched with what, and in which numbers."""

import math
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from recollect.dictionary import Dictionary, InMemory, factors_of
from recollect.numerics import CACHED_ROWS, lazy_zeros, power_of_two
from recollect.rows import Form, Outer, Plain

Center: TypeAlias = Literal["uniform", "zero"]
Rule: TypeAlias = Literal["least-squares", "inner-product"]
Nonnegative: TypeAlias = bool | Literal["clip"]

SINGLE = 1e-4  # lambda over the mean squared norm from which on a float32 matrix of products will do
_SINGLE_FACTOR = 5e-4  # the same for a float32 factor, whose rounding adds up where rows outnumber their dimensions

_ABOVE_ROUNDING = 3.0  # of four fits with three times less, one is thousands of times worse

_HOLD = 0.1  # the entry that holds the count, over the root of the mean squared norm
_IN_RANGE = 1e15  # rows of about this norm, or its inverse, may have a factor whose square is hardly a float32
_NOISE = 1e-7  # less than this part of a squared norm cannot be told from nothing by a scan in float32
_PADDING = 16  # entries: a cache line


@dataclass(frozen=True)
class Problem:
    """What is to be matched with what, in units in which rows and target have norms of about one.

    To hold the count, every row has one more entry, `constant`, which is to add up to `constant * count`.
    """

    dictionary: Dictionary
    g: Tensor
    norms: Tensor
    unit: float  # of the rows
    regularization: float
    center: Center
    rule: Rule
    size: int
    dtype: torch.dtype  # of the factor
    exact: bool
    constant: float
    count: float
    square: float  # mean squared norm of the rows, in these units
    weight_unit: float  # weights times this are the caller's

    def goal(self) -> Tensor:
        """The target with the entry for the count, padded so that rows stay aligned in memory."""
        if not self.constant:
            return self.g
        goal = torch.nn.functional.pad(self.g, (0, _PADDING))
        goal[self.dictionary.dim] = self.constant * self.count
        return goal

    @cached_property
    def form(self) -> Form:
        """In which form rows are computed with."""
        if (kept := factors_of(self.dictionary)) is not None:
            return kept.form._replace(constant=self.constant, padding=_PADDING if self.constant else 0)
        return Plain()

    @property
    def width(self) -> int:
        """Of rows in that form."""
        form = self.form
        return form.width if isinstance(form, Outer) else len(self.goal())

    def rows(self, indices: Tensor) -> Tensor:
        if (kept := factors_of(self.dictionary)) is not None:
            factors = kept.packed(indices).to(self.dtype)
            kept.form.factors(factors)[0].mul_(1 / self.unit)
            return factors
        dim = self.dictionary.dim
        rows = lazy_zeros(
            len(indices), dim + (_PADDING if self.constant else 0), dtype=self.dtype, device=self.g.device
        )
        # In memory a few at a time, so that they stay in the cache; elsewhere each call has its price.
        here = isinstance(self.dictionary, InMemory)
        pieces = (part.split(CACHED_ROWS if here else len(part) or 1) for part in (rows, indices))
        for out, some in zip(*pieces, strict=True):
            torch.mul(self.dictionary.rows(some), 1 / self.unit, out=out[:, :dim])
        if self.constant:
            rows[:, dim] = self.constant
        return rows

    def products(self, vectors: Tensor) -> Tensor:
        """The products of all rows with a vector or with the columns of a matrix."""
        dim = self.dictionary.dim
        # Half of the unit goes to either side: neither the vectors nor the products leave the range of float32.
        half = power_of_two(math.sqrt(self.unit))
        length = power_of_two(float(vectors[:dim].norm()))
        products = self.dictionary.products(vectors[:dim] / (half * length)).double() * (half * length / self.unit)
        return products + self.constant * vectors[dim] if self.constant else products

    def squares(self) -> Tensor:
        """What of each candidate would be left to fit, were nothing chosen: its squared norm and lambda."""
        return self.norms.square() + self.constant**2 + self.regularization

    def scores(self, c: Tensor, left: Tensor, indices: Tensor | None = None) -> Tensor:
        """Inner products over the root of what is left, which rounding may have made too small, of all or of some."""
        norms = self.norms if indices is None else self.norms[indices]
        least = _NOISE * (norms.square() + self.regularization) + sys.float_info.min
        return c / torch.maximum(left, least).sqrt()


def scaled(
    dictionary: Dictionary,
    target: Tensor,
    norms: Tensor,
    ordinary: Tensor,
    open_: Tensor,
    *,
    regularization: float,
    relative: bool,
    center: Center,
    rule: Rule,
    size: int,
    exact: bool,
    count: float | None,
) -> Problem:
    """The problem in units in which ordinary rows and the target have norms of about one.

    Units are powers of two, so that nothing is rounded.
    """
    square = float(norms[ordinary].square().mean())
    unit = min(max(power_of_two(math.sqrt(square)), 2.0**-126), 2.0**126)  # float32 can be divided by it
    weight_unit = power_of_two(float(target.norm()) / unit)
    square /= unit**2
    lambda_ = regularization * (square if relative else unit**-2)
    return Problem(
        dictionary,
        target / unit / weight_unit,
        norms / unit,
        unit,
        lambda_,
        center,
        rule,
        size,
        _precision(dictionary, lambda_, square, float(norms[open_].max()) / unit, unit, exact),
        exact,
        constant=_HOLD * math.sqrt(square) if count is not None else 0.0,
        count=0.0 if count is None else count / weight_unit,
        square=square,
        weight_unit=weight_unit,
    )


def _precision(
    dictionary: Dictionary, lambda_: float, square: float, longest: float, unit: float, exact: bool
) -> torch.dtype:
    """float32 for the factor where lambda is well above what it cannot tell apart, otherwise float64.

    So it is for the longest rows, whose products are rounded most, and where one of the factors that rows are made of
    may be so long that its square leaves float32.
    """
    single = dictionary.dtype == torch.float32 and not exact and _SINGLE_FACTOR * square <= lambda_ <= 1e12 * square
    inside = _IN_RANGE**-1 < unit < _IN_RANGE or factors_of(dictionary) is None
    return torch.float32 if single and inside and above_rounding(lambda_, longest, torch.float32) else torch.float64


def above_rounding(lambda_: float, longest: float, dtype: torch.dtype) -> bool:
    """Whether lambda is well above what rounding adds to the products of the longest rows with one another.

    If it is not, fits of rows that are nearly parallel go astray, or end in an error.
    """
    return lambda_ >= _ABOVE_ROUNDING * torch.finfo(dtype).eps * longest**2
