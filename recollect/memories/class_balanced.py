"""GDumb's greedy sampler (Prabhu et al. 2020): the same number of examples of every class.

Differs from the paper: an example is also admitted while there is room, so that capacity is never left unused.
"""

import heapq

import torch
from torch import nn

from recollect.batch import Batch
from recollect.classes import class_labels
from recollect.memories.choice import Choice
from recollect.memories.memory import Memory
from recollect.randomness import uniform_keys


class ClassBalanced(Memory):
    """Keeps a balanced memory: admits while a class is under its share, evicts from the largest class.

    This is the greedy sampler of GDumb (Prabhu et al. 2020). The share of a class is the capacity divided by the number
    of classes seen. Once a class has its share, its later examples are not kept: if a class changes with time, the
    memory has its first examples. All kept examples have the same weight, or a weight in proportion to the one they
    came with.

    Args:
        capacity: how many examples are kept at most.
        seed: decides whom to evict.

    Example:
        >>> memory = ClassBalanced(4)
        >>> memory.update(torch.zeros(10, 2), torch.zeros(10, dtype=torch.long))
        >>> memory.update(torch.zeros(10, 2), torch.ones(10, dtype=torch.long))
        >>> memory.batch.targets
        tensor([0, 0, 1, 1])
    """

    counts_weights = True
    cuts_freely = True

    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        labels = class_labels(torch.cat([held.targets, arrived.targets])).tolist()
        seen_classes = self._state["classes"].tolist() if len(held) else []
        members: dict[int, list[int]] = {label: [] for label in seen_classes}
        for position in range(len(held)):
            members[labels[position]].append(position)
        # The largest class first, ties broken by its number; sizes that have changed since are passed over.
        by_size = [(-len(group), label) for label, group in members.items()]
        heapq.heapify(by_size)
        count = len(held)
        keys = uniform_keys(self.seed, arrived.ids).tolist()
        for i, key in enumerate(keys):
            position = len(held) + i
            label = labels[position]
            group = members.setdefault(label, [])
            if count < self.capacity:
                count += 1
            elif len(group) < self.capacity / len(members):
                while -by_size[0][0] != len(members[by_size[0][1]]):
                    heapq.heappop(by_size)
                largest = by_size[0][1]
                members[largest].pop(int(key * len(members[largest])))
                heapq.heappush(by_size, (-len(members[largest]), largest))
            else:
                continue
            group.append(position)
            heapq.heappush(by_size, (-len(group), label))
        indices = torch.tensor(sorted(p for group in members.values() for p in group))
        return Choice(indices, self._in_proportion(held, arrived, indices), {"classes": torch.tensor(sorted(members))})
