"""k-means per class: rows that stand for the examples around them."""

import heapq
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from recollect.batch import Batch
from recollect.memories.choice import Choice
from recollect.memories.features import Features, check_features, features_of
from recollect.memories.memory import Memory
from recollect.randomness import derive_seed, seeded
from recollect.sharing import Shared

Rows = NDArray[np.float32]  # (n, features)
Numbers = NDArray[np.float64]  # (n,)

_ROUNDS = 20  # of k-means: later ones move centres less than another seed does
_TRIALS = 3  # rows that are drawn for each centre to start with
_FEW = 8  # at most one row too many for this many places is a small update, in which most of what is held stays
_MOST = 4096  # rows whose distances from one another are computed all at once
_BLOCK = 4096  # rows that are turned into float64 at a time


class Clustering(Memory):
    """Keeps the examples nearest to the centres of k-means, each with the weight of its cluster.

    No model is needed: distances are those of the inputs. Each class is clustered by itself. A class has clusters in
    proportion to how many of its examples were seen, and at least one, as long as there is room. As the stream goes
    on, what is held is clustered together with what arrives, and each example counts by its weight. So weights always
    add up to the number of examples seen.

    Targets that are not whole numbers are quantities, as are targets of several numbers per example: all examples are
    then clustered together, with the standardised target as one more feature.

    Fewer than `capacity` are kept only if a class has too few different examples.

    Args:
        capacity: how many examples are kept at most.
        features: a fixed function of the inputs that returns one vector per example; by default the flattened inputs.
        standardize: divide each feature by its deviation over everything seen so far. None does so if an example is a
            vector or several tensors, whose entries may have any units, but not for images, nor for what `features`
            returns.
        seed: where k-means starts.

    Example:
        >>> memory = Clustering(3)
        >>> inputs = torch.tensor([[0.0], [1.0], [2.0], [9.0], [5.0]])
        >>> memory.update(inputs, torch.tensor([0, 0, 0, 0, 1]))
        >>> memory.batch.ids, memory.batch.weights
        (tensor([1, 3, 4]), tensor([3., 1., 1.]))
    """

    counts_weights = True

    def __init__(
        self, capacity: int, *, features: Features | None = None, standardize: bool | None = None, seed: int = 0
    ) -> None:
        super().__init__(capacity, seed=seed)
        check_features(features)
        if not isinstance(standardize, bool | None):
            raise ValueError(f"standardize must be True, False or None, got {standardize!r}")
        self._features, self._standardize = features, standardize

    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        new = self._vectors(arrived)
        state = self._statistics(new, arrived)
        if self.seen + len(arrived) <= self.capacity:
            return Choice(torch.arange(len(held) + len(arrived)), self._own(held, arrived), state)
        rows = self._scaled(torch.cat([self._vectors(held), new]) if len(held) else new, state, arrived)
        weights = torch.cat([held.weights, arrived.weights]).double().cpu().numpy()
        labels = _classes(torch.cat([held.targets, arrived.targets]))
        indices, sizes = [], []
        members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        counts = [float(weights[group].sum()) for group in members]
        for group, share in zip(members, shares(counts, [len(g) for g in members], self.capacity), strict=True):
            if share:
                seed = derive_seed(self.seed, "clusters", self.seen, int(labels[group[0]]) % 2**32)
                chosen, size = represent(rows[group], weights[group], share, seed)
                indices.append(group[chosen])
                sizes.append(size)
        chosen, size = np.concatenate(indices), np.concatenate(sizes)
        size *= self._total(arrived) / size.sum()  # one, unless there are more classes than places
        order = np.argsort(chosen)
        return Choice(torch.from_numpy(chosen[order]), torch.from_numpy(size[order]), state)

    def _vectors(self, batch: Batch) -> Tensor:
        """The features of examples, followed by the targets where these are quantities."""
        quantities = _quantities(batch.targets)
        width = len(self._state["mean"]) - quantities if self.seen else None
        features = features_of(batch, self._features, width).cpu()
        if not quantities:
            return features
        return torch.cat([features, batch.targets.reshape(len(batch), -1).to(features).cpu()], dim=1)

    def _statistics(self, new: Tensor, arrived: Batch) -> dict[str, Tensor]:
        """The mean of everything seen and the sum of squares around it, in float64."""
        weights = arrived.weights.double().cpu()
        before, count, total = self.total_weight, float(weights.sum()), self._total(arrived)
        blocks = list(zip(new.split(_BLOCK), weights[:, None].split(_BLOCK), strict=True))
        mean = sum((w * block.double()).sum(0) for block, w in blocks) / count
        squares = sum((w * (block.double() - mean).square()).sum(0) for block, w in blocks)
        if self.seen:
            old = self._state["mean"].cpu()
            apart = mean - old
            squares = self._state["squares"].cpu() + squares + apart.square() * (before * count / total)
            mean = old + apart * (count / total)
        if not squares.isfinite().all():
            raise ValueError("inputs and targets must be numbers whose squares are finite, got larger ones: scale them")
        return {"mean": mean, "squares": squares}

    def _scaled(self, vectors: Tensor, state: dict[str, Tensor], arrived: Batch) -> Rows:
        """The features in units of their deviation, each its own or all the same, around their mean."""
        variance = state["squares"] / self._total(arrived)
        features = len(variance) - _quantities(arrived.targets)
        standardize, inputs = self._standardize, arrived.inputs
        if standardize is None:
            standardize = self._features is None and not (isinstance(inputs, Tensor) and inputs.ndim > 2)
        if not standardize:
            variance[:features] = variance[:features].mean()
        deviation = variance.sqrt()
        deviation[deviation == 0] = 1.0
        rows = torch.empty(vectors.shape, dtype=torch.float32)
        for block, out in zip(vectors.split(_BLOCK), rows.split(_BLOCK), strict=True):
            out.copy_((block.double() - state["mean"]) / deviation)
        return rows.numpy()

    def _state_without(self, stay: Tensor) -> dict[str, Tensor]:
        """Deviations stay as they were."""
        left = float(self._total_without(self._gone(stay))) / (self.total_weight or 1.0)
        return {**super()._state_without(stay), "squares": self._state["squares"] * left}

    def options(self) -> dict[str, Any]:
        function: dict[str, Any] = {} if self._features is None else {"features": {"function": "features"}}
        return {**function, "standardize": self._standardize}


def _quantities(targets: Tensor) -> int:
    """How many numbers each target consists of; none if it is the number of a class."""
    classes = targets.ndim == 1 and not targets.is_floating_point()
    return 0 if classes else targets[:1].numel()


def _classes(targets: Tensor) -> NDArray[np.int64]:
    """Class numbers; one class if targets are quantities."""
    return (torch.zeros(len(targets)) if _quantities(targets) else targets).long().cpu().numpy()


def shares(counts: list[float], available: list[int], capacity: int) -> list[int]:
    """Places in proportion to counts, at least one each and no more than are available (Sainte-Lague).

    If there are more classes than places, the largest get one.

    Example:
        >>> shares([900.0, 90.0, 2.0], [900, 3, 2], 10)
        [8, 1, 1]
    """
    places = [0] * len(counts)
    for i in sorted(range(len(counts)), key=lambda i: -counts[i])[:capacity]:
        places[i] = 1
    waiting = [(-counts[i] / 1.5, i) for i in range(len(counts)) if 0 < places[i] < available[i]]
    heapq.heapify(waiting)
    for _ in range(capacity - sum(places)):
        if not waiting:
            break
        _, i = heapq.heappop(waiting)
        places[i] += 1
        if places[i] < available[i]:
            heapq.heappush(waiting, (-counts[i] / (places[i] + 0.5), i))
    return places


def represent(rows: Rows, weights: Numbers, count: int, seed: int) -> tuple[NDArray[np.int64], Numbers]:
    """The rows nearest to the centres of weighted k-means, ascending, and the weight of each one's cluster.

    Example:
        >>> rows = np.array([[0], [1], [2], [9]], dtype=np.float32)
        >>> represent(rows, np.ones(4), 2, seed=0)
        (array([1, 3]), array([3., 1.]))
    """
    if count >= len(rows):
        return np.arange(len(rows)), weights
    threads = _threads()  # first, as it loads scikit-learn with care
    from sklearn.cluster import KMeans

    # More than one thread would add up in another order each time. OpenMP asks each thread by itself, BLAS all at once.
    with threads.limit(limits=1, user_api="openmp"), _quiet_with_one_thread():
        few = len(rows) <= min(count + count // _FEW, _MOST)
        start = _thinned(rows, weights, count) if few else _spread(rows, weights, count, np.random.default_rng(seed))
        fit = KMeans(len(start), init=rows[start], n_init=1, max_iter=_ROUNDS).fit(rows, sample_weight=weights)
    labels = fit.labels_.astype(np.int64)
    distances = np.square(rows - fit.cluster_centers_[labels]).sum(1)
    order = np.lexsort((distances, labels))
    nearest = order[np.flatnonzero(np.diff(labels[order], prepend=-1))]
    sizes = np.bincount(labels, weights)[labels[nearest]]
    order = np.argsort(nearest)
    return nearest[order], sizes[order]


def _spread(rows: Rows, weights: Numbers, count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Rows far from one another to start with: greedy k-means++ (Arthur and Vassilvitskii 2007).

    Each next row is drawn with a probability in proportion to its weight and its squared distance from those before;
    of a few that are drawn so, the one that leaves the least to cover. scikit-learn's does the same in several times
    the time, as it turns all rows into float64 at each step.
    """
    norms = np.square(rows).sum(1)
    narrow = weights.astype(np.float32)
    floor = 1e-6 * float(norms.max())  # below it, float32 cannot tell a row from one that is there already
    mass = np.cumsum(weights)
    left = np.full(len(rows), np.inf, dtype=np.float32)
    chosen: list[int] = []
    while len(chosen) < count and mass[-1] > 0:
        drawn = np.searchsorted(mass, random.random(_TRIALS) * mass[-1], side="right").clip(max=len(rows) - 1)
        apart = norms[drawn, None] + norms - 2 * (rows[drawn] @ rows.T)  # (trials, n)
        np.minimum(apart, left, out=apart)
        best = int(np.argmin(apart @ narrow))
        chosen.append(int(drawn[best]))
        left = apart[best]
        left[left <= floor] = 0
        mass = np.cumsum(left * weights)
    return np.array(chosen)


def _thinned(rows: Rows, weights: Numbers, count: int) -> NDArray[np.int64]:
    """All rows but a few to start with: one by one, the row goes that its nearest neighbour can best stand in for."""
    norms = np.square(rows).sum(1)
    apart = norms[:, None] + norms - 2 * (rows @ rows.T)
    np.fill_diagonal(apart, np.inf)
    nearest = apart.argmin(1)
    cost = weights * apart[np.arange(len(rows)), nearest]
    for _ in range(len(rows) - count):
        gone = int(cost.argmin())
        apart[:, gone] = cost[gone] = np.inf
        for i in np.flatnonzero((nearest == gone) & np.isfinite(cost)):
            nearest[i] = apart[i].argmin()
            cost[i] = weights[i] * apart[i, nearest[i]]
    return np.flatnonzero(np.isfinite(cost))


@Shared
@contextmanager
def _quiet_with_one_thread() -> Iterator[None]:
    with _threads().limit(limits=1, user_api="blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are fewer clusters than asked for
        yield


@cache
def _threads() -> Any:
    """What sets the threads of the libraries below NumPy and scikit-learn; looked for once, as that takes a while."""
    with seeded(0):  # one of the modules that it loads draws from Python's own generator
        import sklearn.cluster  # noqa: F401  # so that its libraries are there to be found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
