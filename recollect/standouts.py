"""Examples whose loss stands out, which are candidates whatever a shortlist draws.

A shortlist is drawn at random, which does no harm as long as every example has others like it. One whose features are a
hundred times as large as all others' has none: its gradient is part of what is to be matched, and no other row can
stand for it. On Covertype a single such row that was not drawn cost a sixth of the matching error. Its loss at the
draws gives it away, and every pass over the examples brings that out.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.batch import Batch

DEVIATIONS = 10.0
"""A loss stands out from so many deviations above the mean on: of Covertype's 464,809 rows 89 do, of the paper's other
tables none."""

PART = 10
"""At most one in so many candidates is one because it stands out."""

_LEAST = 0.01  # a deviation, over the mean: where all losses are nearly the same, none stands out


@dataclass(frozen=True)
class Standouts:
    """The examples with the highest losses so far, and what decides which of them stand out in the end.

    Attributes:
        loudest: those with the highest losses.
        losses: theirs.
        limit: how many of them are remembered at most.
        count: of all losses.
        total: their sum.
        squares: the sum of their squares.
    """

    loudest: Batch
    losses: Tensor
    limit: int
    count: int
    total: float
    squares: float

    @classmethod
    def of(cls, batch: Batch, losses: Tensor, candidates: int) -> "Standouts":
        """Of a batch with these losses, beside a shortlist of so many candidates."""
        losses, limit = losses.double().cpu(), _limit(candidates)
        found = cls(batch, losses, limit, len(losses), float(losses.sum()), float(losses.square().sum()))
        return found._loudest()

    def plus(self, other: "Standouts") -> "Standouts":
        """Of all that both have seen."""
        return Standouts(
            Batch.joined([self.loudest, other.loudest]),
            torch.cat([self.losses, other.losses]),
            self.limit,
            self.count + other.count,
            self.total + other.total,
            self.squares + other.squares,
        )._loudest()

    def _loudest(self) -> "Standouts":
        some = self.losses.topk(min(self.limit, len(self.losses))).indices.sort().values
        about = self.limit, self.count, self.total, self.squares
        return Standouts(self.loudest.take(some), self.losses[some], *about)

    def beside(self, drawn: Batch) -> Batch:
        """Those that were drawn and those that stand out, in the order in which they came."""
        loudest = self.losses.topk(min(_limit(len(drawn)), len(self.losses))).indices
        loud = loudest[self.losses[loudest] > _height(self.count, self.total, self.squares)]
        others = self.loudest.take(loud)
        others = others.take((~torch.isin(others.ids, drawn.ids)).nonzero()[:, 0].cpu())
        if not len(others):
            return drawn
        both = Batch.joined([drawn, others])
        return both.take(both.ids.argsort())


def with_standouts(drawn: Tensor, losses: Tensor | None) -> Tensor:
    """The places that were drawn and those of examples whose loss, if it is known, stands out, ascending.

    Example:
        >>> losses = torch.ones(1000)
        >>> losses[500] = 9.0
        >>> with_standouts(torch.tensor([3, 8]), losses)
        tensor([  3,   8, 500])
    """
    if losses is None:
        return drawn
    losses = losses.double().cpu()
    height = _height(len(losses), float(losses.sum()), float(losses.square().sum()))
    loudest = losses.topk(min(_limit(len(drawn)), len(losses))).indices
    places: Tensor = torch.cat([drawn, loudest[losses[loudest] > height].to(drawn.device)]).unique()
    return places


def _height(count: int, total: float, squares: float) -> float:
    """From where on losses stand out."""
    mean = total / count
    deviation = math.sqrt(max(0.0, squares / count - mean**2))
    return mean + DEVIATIONS * max(deviation, _LEAST * abs(mean))


def _limit(candidates: int) -> int:
    return max(1, candidates // PART)
