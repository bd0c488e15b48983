"""The handful of rows beside which all others are small."""

from typing import NamedTuple

import torch
from torch import Tensor

from recollect.dictionary import Dictionary, Part
from recollect.numerics import sum_rows

_HANDFUL = 10  # outliers at most
_ONE_IN = 50  # rows at least for each outlier
_DWARFED = 0.9  # part of all squared norms that outliers hold at least
_CARRIED = 0.1  # if less than this part of the target is left without the outliers, they carry it


class Split(NamedTuple):
    """Rows that are kept with weight one, and what the others are to match."""

    apart: Tensor  # outliers, if they are kept so
    ordinary: Tensor  # true for each row that is not an outlier
    target: Tensor  # what is left to match
    total: Tensor  # with the rows apart
    carried: bool  # whether outliers make up nearly all of the total


def set_apart(dictionary: Dictionary, norms: Tensor, total: Tensor | None, limit: int) -> Split:
    """Find the outliers, and keep them with weight one where that leaves less to match and room for others.

    Args:
        dictionary: the candidates.
        norms: theirs.
        total: what is to be matched; the sum of all rows if None.
        limit: how many rows may be chosen.
    """
    outliers = find_outliers(norms)
    ordinary = without(len(dictionary), outliers)
    summed = total is None
    total = dictionary.sum() if total is None else total
    if not len(outliers):
        return Split(outliers, ordinary, total, total, False)
    # Summed without the outliers: beside them the others would be rounded away.
    rest = Part(dictionary, ordinary.nonzero()[:, 0]).sum() if summed else total - sum_rows(dictionary.rows(outliers))
    carried = float(rest.norm()) <= _CARRIED * float(total.norm())
    if 2 * len(outliers) <= limit and float(rest.norm()) < float(total.norm()):
        return Split(outliers, ordinary, rest, total, carried)
    return Split(outliers[:0], ordinary, total, total, carried)


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
