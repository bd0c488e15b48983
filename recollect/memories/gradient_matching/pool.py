"""What one choice is made from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from recollect.batch import Batch
from recollect.classes import Tally
from recollect.dictionary import Dictionary, joined, taken, to_remember
from recollect.memories.choice import Choice
from recollect.pursuit import Coreset


@dataclass(frozen=True)
class Pool:
    """Examples at hand, some of which are candidates, and the sum that is to be matched.

    Attributes:
        targets: of the examples at hand.
        places: which of them are candidates, ascending.
        target: what all examples add up to, also those that are no longer at hand; class by class where they matter.
        candidates: the embeddings that are chosen from.
    """

    targets: Tensor
    places: Tensor
    target: Tensor
    candidates: Dictionary

    @classmethod
    def of(cls, batch: Batch, target: Tensor, candidates: Dictionary, places: Tensor | None = None) -> Self:
        """Of a batch of which all are candidates, unless it is said which."""
        return cls(
            batch.targets.cpu(), torch.arange(len(batch)) if places is None else places.cpu(), target, candidates
        )

    @property
    def labels(self) -> Tensor:
        """The classes of the candidates."""
        return self.targets[self.places].long()

    def behind(self, batch: Batch, target: Tensor, candidates: Dictionary) -> "Pool":
        """The same with others before them, all of which are candidates."""
        return Pool(
            torch.cat([batch.targets.cpu(), self.targets]),
            torch.cat([torch.arange(len(batch)), len(batch) + self.places]),
            target + self.target,  # Alg. 2: g <- g + sum_i g_i
            joined(candidates, self.candidates),  # Alg. 2: G <- [C, G]
        )

    def choice(self, coreset: Coreset, seen: Tally | None, state: Mapping[str, Tensor]) -> Choice:
        """Which of the examples at hand stay, and what is to be remembered: the given state and what was chosen."""
        chosen, order = coreset.indices.cpu().sort()
        about = {
            "target": self.target,
            **to_remember(taken(self.candidates, chosen)),
            "error": torch.tensor(coreset.error, dtype=torch.float64),
        }
        if seen is not None:
            about |= {"classes": seen.classes, "counts": seen.counts}
        return Choice(self.places[chosen], coreset.weights.cpu()[order], {**state, **about})
