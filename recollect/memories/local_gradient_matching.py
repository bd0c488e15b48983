"""Gradient matching at the learner's current parameters (App. A.4)."""

from typing import Any, Unpack

import torch
from torch import nn

from recollect.batch import Batch
from recollect.memories.local_embedding import embed_at
from recollect.memories.memory import Choice, Memory, plain_options
from recollect.numerics import sum_rows
from recollect.pursuit import pursue
from recollect.selection import MatchingOptions, split_options


class LocalGradientMatching(Memory):
    """Keeps the weighted examples whose gradients at the current model add up to those of everything seen.

    Embeddings change with the model, so those of the kept are computed anew at each update, and the target is
    approximated by the kept, with their weights, and what arrived. One set of parameters takes the place of many
    initialisations, with as many numbers in all.

    Args:
        capacity: how many examples are kept at most.
        seed: the same seed gives the same memory.
        **options: keyword arguments of `GradientEmbedding` and `pursue`, except those about initialisation.
    """

    needs_model = True

    def __init__(self, capacity: int, *, seed: int = 0, **options: Unpack[MatchingOptions]) -> None:
        super().__init__(capacity, seed=seed)
        for name in ("inits", "init", "init_scale", "calibrate"):
            if name in options:
                raise ValueError(f"{name} has no meaning at the learner's own parameters: leave it out")
        self._embedding_options, self._pursuit_options = split_options({"dim": 10_000, **options})

    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        embeddings = embed_at(model, held, arrived, seed=self.seed, **self._embedding_options)
        if self.seen + len(arrived) <= self.capacity:
            return Choice(torch.arange(len(embeddings)), torch.ones(len(embeddings)))
        weights = torch.cat([held.weights, arrived.weights]).double()
        target = sum_rows(embeddings[len(held) :])
        target += weights[: len(held)] @ embeddings[: len(held)].double()
        size = min(self.capacity, len(embeddings))
        coreset = pursue(embeddings, size, target=target, **self._pursuit_options)
        indices, order = coreset.indices.sort()
        return Choice(indices, coreset.weights[order])

    def options(self) -> dict[str, Any]:
        return plain_options({**self._embedding_options, **self._pursuit_options})
