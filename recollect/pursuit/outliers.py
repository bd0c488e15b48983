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
_BETTER = 1.1  # if weight one leaves more than this times what other weights leave, the target asks for those
_ROUNDED = 1e-6  # part of the target that may be due to how it was added up


class Split(NamedTuple):
    """Rows that are kept with weight one, and what the others are to match."""

    apart: Tensor  # outliers, if they are kept so
    ordinary: Tensor  # true for each row that is not an outlier
    target: Tensor  # what is left to match
    total: Tensor  # with the rows apart
    carried: bool  # whether outliers make up nearly all of the total


def set_apart(dictionary: Dictionary, norms: Tensor, total: Tensor | None, limit: int) -> Split:
    """Find the outliers, and keep them with weight one where the target asks for that and there is room for others.

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
    others = Part(dictionary, ordinary.nonzero()[:, 0]).sum()
    rows = dictionary.rows(outliers)
    rest = others if summed else total - sum_rows(rows)
    carried = float(rest.norm()) <= _CARRIED * float(total.norm())
    room = 2 * len(outliers) <= limit and float(rest.norm()) < float(total.norm())
    if room and (summed or _asked_for_once(rows, others, total)):
        return Split(outliers, ordinary, rest, total, carried)
    return Split(outliers[:0], ordinary, total, total, carried)


def _asked_for_once(outliers: Tensor, others: Tensor, total: Tensor) -> bool:
    """Whether weights other than one would leave hardly less of the target, beside any multiple of all other rows.

    Rows of a shortlist, or of a memory that goes on, may stand for many like them; so may outliers among them.
    """
    rows = torch.cat([others[None], outliers.double()]).cpu()
    rows = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=1e-300)
    rest = (total - sum_rows(outliers)).cpu()

    def left_by(some: Tensor) -> float:
        weights = torch.linalg.lstsq(some.T, rest[:, None], driver="gelsd").solution  # rows may depend on others
        return float((rest - (some.T @ weights)[:, 0]).norm())

    return left_by(rows[:1]) <= _BETTER * left_by(rows) + _ROUNDED * float(total.norm())


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
