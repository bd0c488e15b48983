"""Reservoir sampling (Vitter 1985) by random keys."""

from typing import Self

import torch
from torch import Tensor, nn

from recollect.batch import Batch, check_same_form
from recollect.memories.memory import Choice, Memory
from recollect.randomness import uniform_keys


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
        keys = torch.cat(
            [self._state.get("keys", torch.zeros(0, dtype=torch.float64)), uniform_keys(self.seed, arrived.ids)]
        )
        return _smallest(keys, self.capacity, self.seen + len(arrived))

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
