"""Herding (Welling 2009; Rebuffi et al. 2017): examples whose features average to their class's mean."""

from typing import Any

import torch
from torch import Tensor, nn

from recollect.batch import Batch
from recollect.classes import class_labels
from recollect.memories.choice import Choice
from recollect.memories.features import Features, check_features, features_of
from recollect.memories.memory import Memory


class Herding(Memory):
    """Keeps, for each class, the examples whose mean feature is closest to the mean over all of the class seen.

    Features must stay the same over the stream, so that class means are exact. Classes share the capacity equally; what
    a small class does not need goes to the others. The weight of an example is the number of examples of its class that
    were seen, divided by the number that are kept.

    Args:
        capacity: how many examples are kept at most.
        features: a fixed function of the inputs that returns one vector per example; by default the inputs.
        seed: only for `sample` and `loader`; what is kept is not random.

    Example:
        >>> memory = Herding(2)
        >>> memory.update(torch.tensor([[0.0], [4.0], [9.0], [1.0]]), torch.tensor([0, 0, 0, 1]))
        >>> memory.batch.ids, memory.batch.weights
        (tensor([1, 3]), tensor([3., 1.]))
    """

    per_example = ("features",)
    counts_weights = True

    def __init__(self, capacity: int, *, features: Features | None = None, seed: int = 0) -> None:
        super().__init__(capacity, seed=seed)
        check_features(features)
        self._features = features

    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        labels = class_labels(torch.cat([held.targets, arrived.targets]))
        known = self._state.get("features")
        new = features_of(arrived, self._features, None if known is None else known.shape[1])
        features = new if known is None else torch.cat([known, new])
        classes, counts, sums = self._totals(labels[len(held) :], new, arrived.weights if arrived.weighted else None)
        if self.seen + len(arrived) <= self.capacity:
            indices, weights = torch.arange(len(labels)), self._own(held, arrived)
        else:
            rows = [(labels == label).nonzero().flatten() for label in classes]
            shares = fair_shares([len(r) for r in rows], self.capacity)
            picks, weights_of = [], []
            for row, share, count, total_feature in zip(rows, shares, counts, sums, strict=True):
                if share:
                    picks.append(row[herd(features[row].double(), total_feature / count, share)])
                    weights_of.append(torch.full((share,), float(count) / share, dtype=torch.float64))
            indices, order = torch.cat(picks).sort()
            weights = torch.cat(weights_of)[order]
            weights *= self._total(arrived) / float(weights.sum())  # also for classes that have no place
        state = {"features": features[indices], "classes": classes, "counts": counts, "sums": sums}
        return Choice(indices, weights, state)

    def _totals(self, labels: Tensor, features: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Classes seen so far, how many of each, and the sums of their features in float64."""
        old = self._state.get("classes", labels[:0])
        classes = torch.cat([old, labels]).unique()
        whole = weights is None and not self._state.get("counts", labels).is_floating_point()
        counts = torch.zeros_like(classes, dtype=torch.long if whole else torch.float64)
        sums = torch.zeros(len(classes), features.shape[1], dtype=torch.float64, device=features.device)
        if len(old):
            places = torch.searchsorted(classes, old)
            counts[places], sums[places] = self._state["counts"].to(counts.dtype), self._state["sums"]
        places = torch.searchsorted(classes, labels)
        counts += torch.bincount(places, None if weights is None else weights.double(), minlength=len(classes))
        rows = features.double()
        sums.index_add_(0, places, rows if weights is None else rows * weights[:, None])
        return classes, counts, sums

    def _state_without(self, stay: Tensor) -> dict[str, Tensor]:
        """The classes' means lose what is forgotten too."""
        gone = torch.ones(len(self.batch), dtype=torch.bool, device=stay.device).index_fill(0, stay, False)
        places = torch.searchsorted(self._state["classes"], class_labels(self.batch.targets)[gone])
        own = self._own(self.batch, self.batch.take(stay[:0]))[gone].double()
        before = self._state["counts"]
        counts = (before - torch.bincount(places, own, minlength=len(before))).to(before.dtype)
        sums = self._state["sums"].index_add(0, places, own[:, None] * self._state["features"][gone].double(), alpha=-1)
        return {**super()._state_without(stay), "counts": counts, "sums": sums}

    def options(self) -> dict[str, Any]:
        return {} if self._features is None else {"features": {"function": "features"}}


def herd(features: Tensor, mean: Tensor, count: int) -> Tensor:
    """Greedily choose rows whose mean stays closest to `mean`, in the order of choice."""
    chosen = torch.zeros(count, dtype=torch.long, device=features.device)
    running = torch.zeros_like(mean)
    square = features.square().sum(1)
    available = torch.ones(len(features), dtype=torch.bool, device=features.device)
    for j in range(count):
        # |mean - (running + f) / (j + 1)|^2 = const + (|f|^2 - 2 <f, (j + 1) mean - running>) / (j + 1)^2
        distance = square - 2 * (features @ ((j + 1) * mean - running))
        distance[~available] = torch.inf
        k = int(distance.argmin())
        chosen[j], available[k] = k, False
        running += features[k]
    return chosen


def fair_shares(counts: list[int], capacity: int) -> list[int]:
    """Equal shares, none larger than its count; what is left over goes to the others, first come first."""
    shares = [0] * len(counts)
    room = min(capacity, sum(counts))
    while room:
        open_ones = [i for i, count in enumerate(counts) if shares[i] < count]
        step = max(1, room // len(open_ones))
        for i in open_ones:
            more = min(step, counts[i] - shares[i], room)
            shares[i] += more
            room -= more
    return shares
