"""How numbers are added up and kept: in float64 where it matters, exactly where promised, as fast as memory allows."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_LIMB = 40  # bits of a number that are added up together
_GRAM_ROWS = 64  # of a Gram matrix that are computed at a time
_CASTING = [kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind)]
CACHED_ROWS = 32
"""Rows are turned into float64 this many at a time, so that a block stays in the cache."""


def lazy_zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that cost nothing until touched; NumPy's come in large pages on Linux, five times faster to touch."""
    if device.type == "cpu" and dtype in (torch.float32, torch.float64):
        return torch.from_numpy(np.zeros(shape, dtype=np.float32 if dtype == torch.float32 else np.float64))
    return torch.zeros(shape, dtype=dtype, device=device)


def sum_rows(matrix: Tensor) -> Tensor:
    """The sum of all rows in float64, a cache-sized block at a time: ten times faster than torch's own."""
    total = torch.zeros(matrix.shape[1], dtype=torch.float64, device=matrix.device)
    for block in matrix.split(CACHED_ROWS):
        total += block.double().sum(0)
    return total


def row_norms(matrix: Tensor) -> Tensor:
    """The norm of each row, in float64, so that no square of a float32 number overflows or vanishes."""
    norms = torch.empty(len(matrix), dtype=torch.float64, device=matrix.device)
    # Into one tensor: many small ones, each made beside a large temporary, would keep all those from being used again.
    for block, place in zip(matrix.split(CACHED_ROWS), norms.split(CACHED_ROWS), strict=True):
        torch.linalg.vector_norm(block, dim=1, dtype=torch.float64, out=place)
    return norms


def gram(matrix: Tensor) -> Tensor:
    """The inner products of all rows with each other, as exact as the rows' precision: the lower half is computed.

    Example:
        >>> gram(torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
        tensor([[5., 3.],
                [3., 9.]], dtype=torch.float64)
    """
    products = torch.zeros(len(matrix), len(matrix), dtype=torch.float64, device=matrix.device)
    for start in range(0, len(matrix), _GRAM_ROWS):
        stop = start + _GRAM_ROWS
        products[start:, start:stop] = matrix[start:] @ matrix[start:stop].T
        products[start:stop, stop:] = products[stop:, start:stop].T
    return products


class ExactSum:
    """A sum of rows of float64 numbers that depends neither on the order in which they are added nor on who adds which.

    Each number is cut into whole multiples of powers of two, which add up without rounding: of the three highest powers
    that its row needs, so that 80 bits and more below the largest number of the row are kept, where float64 has 53.
    There is room for 2^22 additions.

    Example:
        >>> parts = torch.tensor([[1e16, 1.0], [1.0, 2.0], [-1e16, 4.0]], dtype=torch.float64)
        >>> total, other = ExactSum(1, 2), ExactSum(1, 2)
        >>> total.add(parts[:1])
        >>> for part in parts[1:]:
        ...     other.add(part[None])
        >>> total.merge(other)
        >>> total.value()
        tensor([[1., 7.]], dtype=torch.float64)
    """

    def __init__(self, rows: int, width: int) -> None:
        self.shape = rows, width
        self._limbs: dict[int, NDArray[np.int64]] = {}  # multiples of 2^(40 k), by k

    def add(self, values: Tensor, first: int = 0) -> None:
        """Add to some rows, from the first one on."""
        for row, numbers in enumerate(values.detach().cpu().double().numpy(), first):
            largest = float(np.abs(numbers).max(initial=0.0))
            if not math.isfinite(largest):
                raise ValueError("a sum must be of finite numbers, got NaN or infinity")
            top = math.frexp(largest)[1] // _LIMB
            left = numbers
            for k in range(top, top - 3, -1) if largest else ():
                multiples = np.trunc(np.ldexp(left, -_LIMB * k))
                left = left - np.ldexp(multiples, _LIMB * k)
                limb = self._limbs.get(k)
                if limb is None:
                    limb = self._limbs[k] = np.zeros(self.shape, dtype=np.int64)
                limb[row] += multiples.astype(np.int64)

    def merge(self, other: "ExactSum") -> None:
        """Add what another has added up."""
        for k, limb in other._limbs.items():
            self._limbs[k] = self._limbs[k] + limb if k in self._limbs else limb.copy()

    def value(self) -> Tensor:
        """The sum, rounded at the very end."""
        total = np.zeros(self.shape)
        for k in sorted(self._limbs):  # from the smallest on
            total += np.ldexp(self._limbs[k].astype(np.float64), _LIMB * k)
        return torch.from_numpy(total)


def power_of_two(value: float) -> float:
    """The power of two just below a positive number, or one: scaling by it is exact.

    Example:
        >>> power_of_two(5.0), power_of_two(0.3), power_of_two(0.0)
        (4.0, 0.25, 1.0)
    """
    return math.ldexp(1.0, math.frexp(value)[1] - 1) if value > 0 else 1.0


@contextmanager
def flushing_denormals() -> Iterator[None]:
    """Take numbers below 1e-38 for zero, in this thread and until the end of the block.

    Weight decay draws the weights of units that are never active towards zero without ever reaching it, and a product
    with a few such numbers takes several times as long.

    Example:
        >>> with flushing_denormals():
        ...     float(torch.tensor([1e-30]) * torch.tensor([1e-10]))
        0.0
        >>> float(torch.tensor([1e-30]) * torch.tensor([1e-10])) > 0
        True
    """
    before = float(torch.tensor([1e-30]) * torch.tensor([1e-10])) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch autocast off until the end of the block, in this thread.

    What is chosen must not depend on where it is asked for: an example would have another embedding within it than
    before it, and products of all candidates would be in half precision.
    """
    on = [kind for kind in _CASTING if torch.is_autocast_enabled(kind)]
    for kind in on:
        torch.set_autocast_enabled(kind, False)
    try:
        yield
    finally:
        for kind in on:
            torch.set_autocast_enabled(kind, True)


def single(value: Tensor) -> Tensor:
    """In float32 if it is in half precision, in which nothing should be added up."""
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
