"""Which examples are candidates: drawn for a shortlist, or standing out; and what all examples add up to."""

import math
from typing import Any

import torch
from torch import Tensor

from recollect.batch import Inputs, map_inputs
from recollect.checks import check_number
from recollect.classes import Classes, Tally, sums_by_class
from recollect.dictionary import Dictionary, weighted_sum
from recollect.embedding import GradientEmbedding, Prepared
from recollect.onepass import drawn, keys_of
from recollect.standouts import with_standouts

SHORTLIST = 10.0
"""How many candidates there are by default for each example that is kept."""


def shortlisted(
    ids: Tensor,
    size: int,
    shortlist: float | None,
    seed: int,
    *,
    weights: Tensor | None = None,
    labels: Tensor | None = None,
    seen: Tally | None = None,
    classes: Classes = (None, 0),
) -> Tensor | None:
    """Which of the arriving examples are candidates for `size` places, as ascending positions; None for all.

    They are drawn by their ids, so that who deals out the examples, and in which portions, changes nothing. An example
    that counts twice as much, by its weight or its class, is twice as likely to be one, and there are some of each
    class that has places.

    Example:
        >>> shortlisted(torch.arange(100), 2, 3.0, seed=0).shape
        torch.Size([6])
    """
    if shortlist is None or (count := shortlist_length(size, shortlist)) >= len(ids):
        return None
    by_class = labels is not None and seen is not None
    if weights is None and not by_class:
        return drawn(ids, count, seed)
    keys = -torch.log1p(-keys_of(ids, seed))  # exponential: divided by twice as much, one is twice as likely the first
    if weights is not None:
        keys /= weights.to(keys)
    class_weight, min_per_class = classes
    places = torch.zeros(len(ids), dtype=torch.long, device=keys.device)
    if labels is not None and seen is not None:
        places = seen.places(labels).to(keys.device)
        keys /= seen.factors(class_weight).to(keys.device)[places]
    candidates = torch.zeros(len(ids), dtype=torch.bool, device=keys.device)
    candidates[keys.topk(count, largest=False).indices] = True
    for place in places.unique() if min_per_class else ():
        mine = (places == place).nonzero()[:, 0]
        some = min(math.ceil(shortlist * min_per_class), len(mine))
        candidates[mine[keys[mine].topk(some, largest=False).indices]] = True
    return candidates.nonzero()[:, 0]


def shortlist_length(size: int, shortlist: float | None) -> int:
    """How many candidates there are for `size` places, where not all are."""
    if shortlist is None or not (math.isfinite(check_number("shortlist", shortlist)) and shortlist >= 1):
        raise ValueError(f"shortlist must be a number of at least 1, or None for all, got {shortlist!r}")
    return math.ceil(shortlist * size)


def gather(
    embedding: GradientEmbedding,
    inputs: Inputs,
    targets: Tensor,
    rows: Tensor | None,
    *,
    weights: Tensor | None = None,
    labels: Tensor | None = None,
    prepared: Prepared | None = None,
    progress: bool = False,
) -> tuple[Tensor, Dictionary, Tensor | None]:
    """The sum of the embeddings of all examples, those of the candidates, and which these are; None if they are all.

    Candidates are the rows that were drawn and those that stand out, or all if `rows` is None. With weights each
    example counts so much in the sum. With labels there are sums by class, in the order of the classes.
    """
    if labels is not None:
        prepared = prepared or embedding.prepared or embedding.prepare(inputs, targets)  # on all, not on one class
    if rows is None:
        candidates = embedding.dictionary(inputs, targets, prepared=prepared, progress=progress)
        return total_of(candidates, weights, labels), candidates, None

    def some(rows: Tensor) -> tuple[Inputs, Tensor]:
        return map_inputs(lambda t: t[rows], inputs), targets[rows]

    options: dict[str, Any] = {"prepared": prepared, "progress": progress}
    if labels is None:
        total, losses = embedding.total_and_losses(inputs, targets, weights=weights, **options)
    else:
        members = [(labels == label).nonzero()[:, 0] for label in labels.unique()]
        count = [None if weights is None else weights[m] for m in members]
        found = [
            embedding.total_and_losses(*some(m), weights=w, **options) for m, w in zip(members, count, strict=True)
        ]
        total = torch.stack([one for one, _ in found])
        losses = torch.cat([of_class for _, of_class in found])[torch.cat(members).argsort().to(embedding.device)]
    rows = with_standouts(rows, losses)
    return total, embedding.dictionary(*some(rows), prepared=prepared, progress=progress), rows


def total_of(candidates: Dictionary, weights: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
    """The sum of embeddings that are there, each times its weight, in float64; by class, in their order, with labels.

    Example:
        >>> from recollect.dictionary import InMemory
        >>> total_of(InMemory(torch.eye(2)), torch.tensor([3.0, 1.0]))
        tensor([3., 1.], dtype=torch.float64)
    """
    if labels is not None:
        return sums_by_class(candidates, labels, weights)
    if weights is None:
        return candidates.sum()
    return weighted_sum(candidates, torch.arange(len(candidates), device=weights.device), weights)
