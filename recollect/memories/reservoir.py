"""Reservoir sampling (Vitter 1985) by random keys."""

from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from recollect.batch import Batch, check_same_form
from recollect.memories.memory import Choice, Memory
from recollect.randomness import derive_seed


class Reservoir(Memory):
    """Keeps a uniform random sample of everything seen.

    Each example gets a random key, a function of the seed and its place in the stream, and those with the smallest
    keys stay. So the sample is exactly uniform, does not depend on how the stream is cut into batches,
    and samples of several streams can be merged.

    Args:
        capacity: how many examples are kept at most.
        seed: the same seed keeps the same places of a stream; memories to be merged need different ones.

    Example:
        >>> memory = Reservoir(3)
        >>> memory.update(torch.zeros(100, 2), torch.zeros(100))
        >>> len(memory), memory.batch.weights.sum()
        (3, tensor(100.))
    """

    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        keys = torch.cat([self._state.get("keys", torch.zeros(0, dtype=torch.float64)), self._keys(arrived.ids)])
        return _smallest(keys, self.capacity, self.seen + len(arrived))

    def _keys(self, ids: Tensor) -> Tensor:
        """Uniform numbers in [0, 1) by hashing the ids (splitmix64)."""
        with np.errstate(over="ignore"):
            x = ids.numpy().astype(np.uint64) + np.uint64(1)
            x = x * np.uint64(0x9E3779B97F4A7C15) + np.uint64(derive_seed(self.seed, "keys"))
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x = x ^ (x >> np.uint64(31))
        return torch.from_numpy((x >> np.uint64(11)) * 2.0**-53)

    def merge(self, other: "Reservoir") -> Self:
        """A uniform sample of what both have seen. The other stream's ids follow this one's."""
        if self.seed == other.seed:
            raise ValueError(
                f"memories to be merged must have different seeds, got {self.seed} twice: "
                "their random keys would be the same"
            )
        check_same_form(self.batch, other.batch)
        merged = type(self)(self.capacity, seed=self.seed)
        later = other.batch
        both = self.batch.followed_by(Batch(later.inputs, later.targets, later.weights, later.ids + self.seen))
        keys = torch.cat([self._state["keys"], other._state["keys"]])
        choice = _smallest(keys, self.capacity, self.seen + other.seen)
        kept = both.take(choice.indices)
        merged._batch = Batch(kept.inputs, kept.targets, choice.weights.float(), kept.ids)
        merged._state = choice.state
        merged.seen = self.seen + other.seen
        return merged


def _smallest(keys: Tensor, capacity: int, seen: int) -> Choice:
    count = min(capacity, len(keys))
    indices = keys.topk(count, largest=False).indices.sort().values
    return Choice(indices, torch.full((count,), seen / count), {"keys": keys[indices]})
