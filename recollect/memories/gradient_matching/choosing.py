"""How many candidates there are for the places of a memory, and how the places are filled from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recollect.batch import Batch
from recollect.candidates import gather, shortlist_length, shortlisted, total_of
from recollect.classes import Classes, Tally, pursue_classes
from recollect.dictionary import Dictionary, losses_of, taken, weighted_sum
from recollect.embedding import GradientEmbedding, Prepared
from recollect.memories.gradient_matching.pool import Pool
from recollect.onepass import keys_of
from recollect.pursuit import Coreset, pursue
from recollect.standouts import with_standouts

LEAST = 2.0
"""Candidates for each place among those that arrive, however few they are beside what has been seen."""

FEWEST = 1000
"""Candidates at least among those that arrive, as far as the shortlist goes: so few cost next to nothing, and a small
memory of classes that come one after the other needs them."""

ROOM = 4
"""One of so many places is left free for what comes next, where examples come a few at a time."""

DRAWN = 4.0
"""How many candidates there are for each place, over all that have come, where they come a few at a time."""


@dataclass(frozen=True)
class Choosing:
    """The options of a choice.

    Attributes:
        capacity: how many places there are.
        seed: of the shortlist.
        shortlist: how many candidates there are for each place; None if all are.
        classes: how much each class counts, and how many places it has.
        pursuit: options of `pursue`.
        progress: whether to show progress bars.
    """

    capacity: int
    seed: int
    shortlist: float | None
    classes: Classes
    pursuit: Mapping[str, Any]
    progress: bool

    @property
    def all_alike(self) -> bool:
        """Whether classes have neither weights nor places of their own."""
        return self.classes == (None, 0)

    def limit(self, count: int, before: float) -> int:
        """How many of `count` arriving examples are candidates at most, where those before stand for `before`."""
        return shortlist_length(self.capacity, self.shortlist_for(count, before + count))

    def shortlist_for(self, arrived: float, total: float) -> float | None:
        """How many candidates there are for each place, where what arrived is so much of everything up to then.

        As many as `shortlist` says for each place that they may take in the end: examples that are a tenth of all stand
        for a tenth of it. All of them where classes have weights and places of their own.
        """
        if self.shortlist is None or not self.all_alike:
            return self.shortlist
        least = max(LEAST, FEWEST / self.capacity)
        return max(min(self.shortlist, least), self.shortlist * arrived / (total or 1.0))

    def room(self, n: int) -> int:
        """How many places are left free after a choice for which n examples came: some, if they come a few at a time.

        Then not each of many small updates must choose anew. None are left where picks are to be the paper's, or
        classes have weights and places of their own.
        """
        patient = self.pursuit["rule"] == "least-squares" and not self.pursuit["exact"] and self.all_alike
        room = self.capacity // ROOM
        return room if patient and n <= room else 0

    def has_room(self, held: int, count: int) -> bool:
        """Whether so many examples can take free places until the next choice."""
        return held + count <= self.capacity and self.room(count) > 0

    def stand_ins(self, held: int, arrived: Batch, total: float) -> tuple[Tensor, Tensor] | None:
        """Which of those that came stand for all of them until the next choice, with which weights.

        They are drawn by their ids, as a shortlist of the whole stream would be. None if there are no longer enough
        free places beside those that are held, or all are to be candidates: then it is time to choose.
        """
        if self.shortlist is None:
            return None
        weights = arrived.weights.double()
        chances = weights * (min(self.shortlist, DRAWN) * self.capacity / total)
        race = keys_of(arrived.ids, self.seed) / chances
        some = race.topk(max(1, int((race < 1).sum())), largest=False).indices.sort().values
        if held + len(some) > self.capacity - self.capacity // ROOM // 4:
            return None
        stand = weights[some] / chances[some].clamp(max=1)
        stand *= weights.sum() / stand.sum()
        return some, stand

    def gathered(
        self,
        arrived: Batch,
        candidates: Dictionary | None,
        embedding: GradientEmbedding,
        prepared: Prepared,
        labels: Tensor | None,
        seen: Tally | None,
        total: float,
    ) -> Pool:
        """What arrived: the sum of its embeddings, and those on the shortlist, or standing out, as candidates."""
        weights = arrived.weights.to(embedding.device) if arrived.weighted else None
        about: dict[str, Any] = {"weights": weights, "labels": labels}
        shortlist = self.shortlist_for(float(arrived.weights.sum(dtype=torch.float64)), total)
        rows = shortlisted(
            arrived.ids.cpu(), self.capacity, shortlist, self.seed, seen=seen, classes=self.classes, **about
        )
        if candidates is None:
            options = {**about, "prepared": prepared, "progress": self.progress}
            target, candidates, rows = gather(embedding, arrived.inputs, arrived.targets, rows, **options)
        else:
            target = total_of(candidates, **about)
            if rows is not None:
                rows = with_standouts(rows, losses_of(candidates))
                candidates = taken(candidates, rows)
        if seen is not None and labels is not None:
            target = seen.spread(target, Tally.of(labels))
        return Pool.of(arrived, target, candidates, rows)

    def everything(self, pool: Pool, own: Tensor, seen: Tally | None) -> Coreset:
        """All of the pool, as there is room, each with the weight that it came with times the factor of its class."""
        weights = own.cpu()
        if seen is not None:
            weights = weights * seen.factors(self.classes[0])[seen.places(pool.labels)]
        return Coreset(torch.arange(len(pool.places)), weights, 0.0)

    def fitted(self, pool: Pool, count: float, seen: Tally | None, places: int) -> Coreset:
        """So many of the pool, whose weights add up to about the count.

        Where no weights of them are of use for the target, as may be once what it came from was forgotten, some stay
        all the same and weigh alike: whoever trains on what is held must find something.
        """
        size, options = min(places, len(pool.places)), {**self.pursuit, "progress": self.progress}
        if not size:
            return Coreset(torch.arange(0), torch.zeros(0, dtype=torch.float64), float(pool.target.any()))
        if seen is not None:
            return pursue_classes(pool.candidates, pool.labels, size, seen, pool.target, self.classes, **options)
        found = pursue(pool.candidates, size, target=pool.target, count=count, **options)
        if len(found) or self.pursuit["tolerance"] is not None:
            return found
        some = torch.arange(size, device=pool.target.device) * len(pool.places) // size  # of all of them
        weights = torch.full((size,), count / size, dtype=torch.float64, device=pool.target.device)
        missing = pool.target - weighted_sum(pool.candidates, some, weights)
        return Coreset(some, weights, float(missing.norm() / pool.target.norm().clamp(min=1e-300)))
