"""Gradient-based sample selection, greedy (Aljundi et al. 2019, Alg. 2)."""

from typing import Any

import numpy as np
import torch
from torch import nn

from recollect.batch import Batch
from recollect.checks import check_count
from recollect.losses import LossFunction, get_loss
from recollect.memories.choice import Choice
from recollect.memories.description import plain_options
from recollect.memories.local_embedding import embed_at
from recollect.memories.memory import Memory
from recollect.randomness import uniform_keys

_MOST_COMPARISONS = 10_000  # random numbers for all of them are drawn at once


class GSS(Memory):
    """Keeps examples whose gradients at the current model point in different directions.

    An arriving example is compared with a few kept ones: its score is one plus the largest cosine of their
    gradients. While there is room it stays. Later, if it points away from all it was compared with (score below
    one), it competes with a kept example drawn in proportion to the scores, and wins with probability
    C_i / (C_i + c). Gradients come from a copy of the model, and are projected, which keeps cosines to about
    1 / sqrt(dim). All kept examples have the same weight, or a weight in proportion to the one they came with.

    Args:
        capacity: how many examples are kept at most.
        comparisons: how many kept examples each arriving one is compared with.
        loss: "cross_entropy", "squared_error", "binary_cross_entropy", or a function of outputs and targets that
            returns one loss per example.
        dim: numbers per projected gradient.
        seed: decides comparisons and competitions.
    """

    needs_model = True
    counts_weights = True
    per_example = ("scores",)

    def __init__(
        self,
        capacity: int,
        *,
        comparisons: int = 10,
        loss: str | LossFunction = "cross_entropy",
        dim: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__(capacity, seed=seed)
        get_loss(loss)
        self._comparisons, self._dim = check_count("comparisons", comparisons), check_count("dim", dim)
        if self._comparisons > _MOST_COMPARISONS:
            raise ValueError(f"comparisons must be at most {_MOST_COMPARISONS}, got {comparisons}")
        self._loss = loss

    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        options: dict[str, Any] = {"loss": self._loss, "dim": self._dim, "seed": self.seed}
        directions, plan = embed_at(model, held, arrived, self._state, **options)
        directions = nn.functional.normalize(directions, dim=1)
        kept = list(range(len(held)))
        scores = self._state["scores"].tolist() if len(held) else []
        # Randomness is a function of the seed and the example's place, so that cutting the stream changes nothing.
        subsets = uniform_keys(self.seed, arrived.ids, "comparisons", count=self._comparisons).cpu().numpy()
        rivals, wins = (uniform_keys(self.seed, arrived.ids, what).cpu().numpy() for what in ("rival", "win"))
        rows = directions.cpu().numpy()
        pool = np.empty((min(self.capacity, len(rows)), rows.shape[1]), dtype=rows.dtype)
        pool[: len(kept)] = rows[: len(kept)]
        C = np.zeros(len(pool))
        C[: len(kept)] = scores
        for i in range(len(arrived)):
            position, n = len(held) + i, len(kept)
            c = 1.0
            if n:
                others = (subsets[i] * n).astype(np.int64)
                c = float((pool[others] @ rows[position]).max()) + 1
            if n < self.capacity:
                slot = n
                kept.append(position)
            elif c < 1:
                cumulative = np.cumsum(C)
                slot = min(int(np.searchsorted(cumulative, rivals[i] * cumulative[-1], side="right")), n - 1)
                if not wins[i] * (C[slot] + c) < C[slot]:
                    continue
                kept[slot] = position
            else:
                continue
            pool[slot], C[slot] = rows[position], c
        indices, order = torch.tensor(kept).sort()
        weights = self._in_proportion(held, arrived, indices)
        return Choice(indices, weights, {"scores": torch.from_numpy(C[: len(kept)])[order], **plan})

    def options(self) -> dict[str, Any]:
        return plain_options({"comparisons": self._comparisons, "loss": self._loss, "dim": self._dim})
