"""The handful of rows beside which all others are small."""

import torch
from torch import Tensor

_HANDFUL = 10  # outliers at most
_ONE_IN = 50  # rows at least for each outlier
_DWARFED = 0.9  # part of all squared norms that outliers hold at least


def find_outliers(norms: Tensor) -> Tensor:
    """The handful of rows, if any, beside which all others together are small: they must not set lambda and weights."""
    most = min(_HANDFUL, len(norms) // _ONE_IN)
    largest = norms.topk(most)
    squares = (norms / norms.max()).square()
    enough = squares[largest.indices].cumsum(0) >= _DWARFED * float(squares.sum())
    found = largest.indices[: int(enough.int().argmax()) + 1] if bool(enough.any()) else largest.indices[:0]
    return found if int((norms > 0).sum()) > len(found) else found[:0]


def without(n: int, some: Tensor) -> Tensor:
    """True for each of n candidates but some."""
    return torch.ones(n, dtype=torch.bool, device=some.device).index_fill(0, some, False)
