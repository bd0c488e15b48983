"""How long it will take to take in many rows, measured on a few of them before it starts."""

import time

from torch import Tensor

from recollect.embedding import GradientEmbedding, MakeModel
from recollect.selection import SHORTLIST

LONG = 50_000
"""From so many rows on, people are told beforehand how long it may take."""

_SAMPLE = 256
_PURSUIT = 6e-11  # seconds per kept row, candidate and dimension: 2000 of 20,000 rows of 9840 numbers take 23 s


def expected_seconds(
    make_model: MakeModel, loss: str, features: Tensor, targets: Tensor, *, rows: int, block: int, size: int
) -> float:
    """For so many rows like these, taken in blocks, and `size` of them kept.

    Nothing is decided on these examples: the embedding that is measured is thrown away.
    """
    embedding = GradientEmbedding(make_model, loss=loss)
    features, targets = features[:_SAMPLE], targets[:_SAMPLE]
    prepared = embedding.prepare(features, targets)
    start = time.perf_counter()
    embedding.total(features, targets, prepared=prepared)
    summing = (time.perf_counter() - start) / len(targets)
    start = time.perf_counter()
    dim = embedding.dictionary(features, targets, prepared=prepared).dim
    forming = (time.perf_counter() - start) / len(targets)
    blocks = max(1, round(rows / block))
    candidates = min(rows / blocks, SHORTLIST * size)
    choosing = candidates * forming + _PURSUIT * size * candidates * dim
    return rows * summing + blocks * choosing
