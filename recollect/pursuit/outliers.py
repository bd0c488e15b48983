"""The handful of rows beside which all others are small."""

import torch
from torch import Tensor

from recollect.dictionary import Dictionary
from recollect.numerics import sum_rows

_HANDFUL = 10  # outliers at most
_ONE_IN = 50  # at most so many of the rows are outliers
_DWARFED = 0.9  # part of the squared norms that outliers hold


def find_outliers(norms: Tensor) -> Tensor:
    """The handful of rows, if any, beside which all others together are small: lambda and weights are not theirs."""
    most = min(_HANDFUL, len(norms) // _ONE_IN)
    largest = norms.topk(most)
    squares = (norms / norms.max()).square()
    enough = squares[largest.indices].cumsum(0) >= _DWARFED * float(squares.sum())
    found = largest.indices[: int(enough.int().argmax()) + 1] if bool(enough.any()) else largest.indices[:0]
    return found if int((norms > 0).sum()) > len(found) else found[:0]


def without(n: int, some: Tensor) -> Tensor:
    """True for each of n candidates but some."""
    return torch.ones(n, dtype=torch.bool, device=some.device).index_fill(0, some, False)


def sum_of(dictionary: Dictionary, which: Tensor) -> Tensor:
    """The sum of some rows, without what others beside them would round away."""
    total = torch.zeros(dictionary.dim, dtype=torch.float64, device=which.device)
    for indices in which.nonzero()[:, 0].split(1024):
        total += sum_rows(dictionary.rows(indices))
    return total
