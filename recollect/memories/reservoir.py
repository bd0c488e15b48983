"""Reservoir sampling (Vitter 1985) by random keys."""

from typing import Self

import torch
from torch import Tensor, nn

from recollect.batch import Batch, check_same_form
from recollect.memories.memory import Choice, Memory
from recollect.randomness import derive_seed, uniform_keys


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

    cuts_freely = True

    per_example = ("keys",)

    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        keys = uniform_keys(self.seed, arrived.ids)
        if "keys" in self._state:
            keys = torch.cat([self._state["keys"], keys])
        return _smallest(keys, self.capacity, self.seen + len(arrived), self._state)

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
        later = other.batch.to(self.device)
        check_same_form(self.batch, later)
        capacity = min(self.capacity, other.capacity) if other.seen > len(other) else self.capacity
        merged = type(self)(capacity, seed=self.seed).to(self.device)
        both = self.batch.followed_by(Batch(later.inputs, later.targets, later.weights, later.ids + self.seen))
        keys = torch.cat([self._state["keys"], other._state["keys"].to(self.device)])
        merged._commit(
            both.take(torch.arange(0)), both, _smallest(keys, capacity, self.seen + other.seen, {"sources": sources})
        )
        merged.seen = self.seen + other.seen
        return merged

    def _sources(self) -> Tensor:
        """Which streams of keys have been drawn from: one for each memory that was merged into this one."""
        if "sources" in self._state:
            return self._state["sources"]
        return torch.tensor([derive_seed(self.seed, "keys")]).to(self.device)


def _smallest(keys: Tensor, capacity: int, seen: int, state: dict[str, Tensor]) -> Choice:
    count = min(capacity, len(keys))
    indices = keys.topk(count, largest=False).indices.sort().values
    return Choice(indices, torch.full((count,), seen / count), {**state, "keys": keys[indices]})
