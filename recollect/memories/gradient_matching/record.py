"""What a memory knows of everything seen: two such records can be added, and examples taken out of one."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.batch import Batch, check_same_form
from recollect.classes import COUNTED, Tally, class_labels
from recollect.dictionary import Dictionary, joined, taken, weighted_sum
from recollect.memories.gradient_matching.pool import Pool
from recollect.memories.memory import OWN, TOTAL

FORGOTTEN = "forgotten"  # ids whose gradients were taken out of the target, ascending

_NOT_OF_DRAWS = ("target", "embeddings", "factors", "error", "waiting", "classes", "counts", FORGOTTEN, TOTAL, OWN)


@dataclass(frozen=True)
class Record:
    """The sum of everything seen, and the examples that are held, all of them with their embeddings.

    Attributes:
        held: the examples.
        own: the weights with which they came.
        rows: their embeddings.
        target: the sum of the embeddings of everything seen, class by class where classes matter.
        seen: how many of each class were seen, where classes matter.
        draws: what was prepared, as tensors.
    """

    held: Batch
    own: Tensor
    rows: Dictionary
    target: Tensor
    seen: Tally | None
    draws: Mapping[str, Tensor]

    def drawn_like(self, other: "Record") -> bool:
        """Whether both were prepared alike; the draws' numbers may differ by rounding between machines."""
        a, b = self.draws, other.draws
        if a.keys() != b.keys() or any(a[k].shape != b[k].shape for k in a):
            return False
        return all(torch.allclose(a[k].double().cpu(), b[k].double().cpu(), rtol=1e-6) for k in a)

    def plus(self, later: "Record") -> "Record":
        """The record of both streams, one after the other."""
        check_same_form(self.held, later.held)
        held, own = self.held.followed_by(later.held), torch.cat([self.own, later.own])
        rows, first, second, seen = joined(self.rows, later.rows), self.target, later.target, None
        if self.seen is not None and later.seen is not None:
            seen = self.seen.plus(later.seen)
            first, second = seen.spread(first, self.seen), seen.spread(second, later.seen)
        return Record(held, own, rows, first + second, seen, self.draws)

    def without(self, ids: Tensor, others: tuple[Batch, Dictionary] | None = None) -> tuple["Record", float]:
        """The record as if these had never come, and how much they counted.

        Args:
            ids: of those to be taken out; of these, the ones that are held are.
            others: examples that are not held and are to be taken out too, with their embeddings.
        """
        matches = torch.isin(self.held.ids, ids)
        stay, gone = (~matches).nonzero()[:, 0], matches.nonzero()[:, 0]
        rows, labels, lost = taken(self.rows, gone), self.held.targets[gone], self.own[gone]
        if others is not None:
            batch, more = others
            rows = joined(rows, more)
            labels, lost = torch.cat([labels, batch.targets]), torch.cat([lost, batch.weights])
        target, seen = self.target, self.seen
        if seen is None:
            target = target - weighted_sum(rows, torch.arange(len(lost)), lost)
        else:
            places = seen.places(class_labels(labels, COUNTED).cpu())
            target = target.clone()
            for place in places.unique():
                mine = (places == place).nonzero()[:, 0]
                target[place] -= weighted_sum(rows, mine, lost[mine])
            fewer = torch.bincount(places, lost.double().cpu(), minlength=len(seen.counts))
            seen = Tally(seen.classes, (seen.counts - fewer).to(seen.counts.dtype))
        left = Record(self.held.take(stay), self.own[stay], taken(self.rows, stay), target, seen, self.draws)
        return left, float(lost.sum(dtype=torch.float64))

    def pool(self) -> Pool:
        """Everything that is held, to be chosen from."""
        return Pool.of(self.held, self.target, self.rows)


def tally_of(state: Mapping[str, Tensor]) -> Tally | None:
    """How many of each class were seen, as a memory remembers it; None where classes do not matter."""
    return Tally(state["classes"].cpu(), state["counts"].cpu()) if "classes" in state else None


def forgotten_of(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Which examples were taken out, as it is remembered: a choice changes nothing about that."""
    return {name: value for name, value in state.items() if name == FORGOTTEN}


def draws_of(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What was prepared, among all that a memory remembers."""
    return {name: value for name, value in state.items() if name not in _NOT_OF_DRAWS}
