"""The most recent examples."""

import torch
from torch import nn

from recollect.batch import Batch
from recollect.memories.choice import Choice
from recollect.memories.memory import Memory


class SlidingWindow(Memory):
    """Keeps the last examples of the stream.

    All have the same weight, or a weight in proportion to the one they came with.

    Args:
        capacity: how many examples are kept at most.
        seed: only for `sample` and `loader`; what is kept is not random.

    Example:
        >>> memory = SlidingWindow(3)
        >>> memory.update(torch.zeros(10, 2), torch.zeros(10))
        >>> memory.batch.ids
        tensor([7, 8, 9])
    """

    cuts_freely = True
    counts_weights = True

    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        total = len(held) + len(arrived)
        indices = torch.arange(max(0, total - self.capacity), total)
        return Choice(indices, self._in_proportion(held, arrived, indices))
