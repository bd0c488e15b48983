"""Reservoir sampling (Vitter 1985) by random keys; where examples come with weights, VarOpt (Cohen et al. 2009)."""

from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from recollect.batch import Batch, check_same_form
from recollect.memories.choice import Choice
from recollect.memories.memory import Memory
from recollect.randomness import derive_seed, uniform_keys


class Reservoir(Memory):
    """Keeps a uniform random sample of everything seen.

    Each example gets a random key, a function of the seed and its place in the stream, and those with the smallest
    keys stay. So the sample is exactly uniform, does not depend on how the stream is divided into batches, and samples
    of several streams can be merged.

    If examples come with weights other than one, an example is kept with a probability in proportion to its weight, or
    for sure if its weight is large enough. The weights of what is kept always add up to the total, and are right on
    average for any part of the stream.

    Args:
        capacity: how many examples are kept at most.
        seed: the same seed keeps the same places of a stream; memories to be merged need different ones.

    Example:
        >>> memory = Reservoir(3)
        >>> memory.update(torch.zeros(100, 2), torch.zeros(100))
        >>> len(memory), memory.batch.weights.sum()
        (3, tensor(100.))
    """

    cuts_freely = True
    counts_weights = True

    per_example = ("keys", "adjusted")

    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        if arrived.weighted or "adjusted" in self._state:
            weights = torch.cat([self._adjusted(), arrived.weights.double()])
            if not len(held):  # whatever was forgotten, those that come stand for everything
                weights *= self._total(arrived) / float(weights.sum())
            draws = uniform_keys(self.seed, arrived.ids, "drop")
            return _thinned(weights, self.capacity, draws, self._state)
        keys = uniform_keys(self.seed, arrived.ids)
        if "keys" in self._state:
            keys = torch.cat([self._state["keys"], keys])
        return _smallest(keys, self.capacity, self._total(arrived), self._state, self._bound())

    def merge(self, other: Memory) -> Self:
        """A uniform sample of what both have seen. The other stream's ids follow this one's.

        Its capacity is this one's, or the other's if that is smaller and has been exceeded: of a stream only the
        examples with the smallest keys are known, so that no larger sample of both can be uniform.
        """
        if not isinstance(other, Reservoir):
            raise ValueError(f"a reservoir can be merged with a reservoir, got {type(other).__name__}")
        sources = torch.cat([self._sources(), other._sources().to(self.device)])
        if len(sources.unique()) < len(sources):
            twice = self.seed if self.seed == other.seed else "one that was merged before"
            raise ValueError(
                f"memories to be merged must have different seeds, got {twice} twice: "
                "their random keys would be the same"
            )
        if not other.seen:
            return copy(self)
        later = other.batch.to(self.device)
        mine = self.batch if self.seen else later.take(torch.arange(0))
        check_same_form(mine, later)
        by_weight = any("adjusted" in memory._state for memory in (self, other))
        smaller = other.seen > len(other) and not by_weight
        capacity = min(self.capacity, other.capacity) if smaller else self.capacity
        merged = type(self)(capacity, seed=self.seed).to(self.device)
        later = replace(later, ids=later.ids + self.seen)
        both, nothing = mine.followed_by(later), later.take(torch.arange(0))
        count, total = self.seen + other.seen, self.total_weight + other.total_weight
        if by_weight:
            weights = torch.cat([self._adjusted(), other._adjusted().to(self.device)])
            draws = uniform_keys(self.seed, later.ids, "merge")
            choice = _thinned(weights, capacity, draws, {"sources": sources})
        else:
            keys = other._state["keys"].to(self.device)
            keys = torch.cat([self._state.get("keys", keys[:0]), keys])
            bound = torch.minimum(self._bound(), other._bound().to(self.device))
            choice = _smallest(keys, capacity, total, {"sources": sources}, bound)
        theirs = other._own(other.batch, other.batch.take(torch.arange(0)))
        own = torch.cat([self._own(mine, nothing), theirs.to(self.device)])
        merged._commit(nothing, replace(both, weights=own), choice, count, total)
        return merged

    def forget(self, ids: Any) -> Tensor:
        """Remove examples that must be deleted; returns those of the ids that were not held.

        Their places are taken again as slowly as a reservoir takes in new examples, so that the sample stays uniform.
        The others' weights are scaled to add up to that much less than before. On any error the memory is as before.

        Args:
            ids: places in the stream, as in `batch.ids`.
        """
        missing = super().forget(ids)
        if "adjusted" in self._state:
            self._state["adjusted"] = self.batch.weights.double()
        return missing

    def _bound(self) -> Tensor:
        """The smallest key that did not stay; examples with larger ones would not have stayed either."""
        return self._state.get("bound", torch.tensor(torch.inf, dtype=torch.float64).to(self.device))

    def _adjusted(self) -> Tensor:
        """What each example held stands for, in float64."""
        if "adjusted" in self._state:
            return self._state["adjusted"]
        share = self.total_weight / max(1, len(self))
        return torch.full((len(self),), share, dtype=torch.float64).to(self.device)

    def _sources(self) -> Tensor:
        """Which streams of keys have been drawn from: one for each memory that was merged into this one."""
        if "sources" in self._state:
            return self._state["sources"]
        return torch.tensor([derive_seed(self.seed, "keys")]).to(self.device)


def _smallest(keys: Tensor, capacity: int, total: float, state: dict[str, Tensor], bound: Tensor) -> Choice:
    """Those with the smallest keys, of which none is above the bound: where some were forgotten there may be fewer."""
    some = (keys < bound).nonzero()[:, 0]
    indices = some[keys[some].topk(min(capacity, len(some)), largest=False).indices].sort().values
    gone = torch.ones_like(keys, dtype=torch.bool)
    gone[indices] = False
    bound = torch.minimum(bound, keys[gone].min()) if bool(gone.any()) else bound
    about = {**state, "keys": keys[indices]} | ({"bound": bound} if bool(bound.isfinite()) else {})
    weights = torch.full((len(indices),), total / max(1, len(indices)), dtype=torch.float64)
    return Choice(indices, weights, about)


def _thinned(weights: Tensor, capacity: int, draws: Tensor, state: dict[str, Tensor]) -> Choice:
    """One after the other, the last as many as there are draws join those before, and one goes if there is no room."""
    a, u = weights.cpu().numpy(), draws.cpu().numpy()
    first = len(a) - len(u)
    kept, held = list(range(first)), a[:first]
    for i, draw in enumerate(u, first):
        kept.append(i)
        held = np.append(held, a[i])
        if len(kept) > capacity:
            gone, held = drop_one(held, float(draw))
            del kept[gone]
    indices, adjusted = torch.tensor(kept).to(weights.device), torch.from_numpy(held).to(weights.device)
    about = {name: value for name, value in state.items() if name not in ("keys", "bound")}
    return Choice(indices, adjusted, {**about, "adjusted": adjusted})


def drop_one(weights: NDArray[np.float64], draw: float) -> tuple[int, NDArray[np.float64]]:
    """Which of some weights goes, and what the others become, so that each is on average what it was (VarOpt).

    A weight above the threshold t stays as it is. One below goes with probability 1 - weight / t, or becomes t, which
    is such that on average, and so always, one goes; then the sum stays the same.

    Args:
        weights: above zero, at least two.
        draw: a number in [0, 1) that decides.

    Example:
        >>> drop_one(np.array([1.0, 5.0, 2.0]), 0.5)
        (0, array([5., 3.]))
        >>> drop_one(np.array([1.0, 5.0, 2.0]), 0.9)
        (2, array([3., 5.]))
    """
    ascending = np.sort(weights)
    thresholds = np.cumsum(ascending)[1:] / np.arange(1, len(weights))  # of the 2, 3, ... lightest
    enough = np.append(ascending[2:] >= thresholds[:-1], True)
    t = float(thresholds[int(enough.argmax())])
    chances = np.cumsum((1 - weights / t).clip(min=0))
    gone = min(int(np.searchsorted(chances, draw * chances[-1], side="right")), len(weights) - 1)
    return gone, np.delete(np.maximum(weights, t), gone)
