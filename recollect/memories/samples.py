"""What a memory holds, to train on: minibatches, or one example at a time."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset

from recollect.batch import Batch, Inputs, map_inputs


class Sample(NamedTuple):
    """Examples to train on: the loss is sum(weights * losses) / sum(weights)."""

    inputs: Inputs
    targets: Tensor
    weights: Tensor


class Source(Protocol):
    """What minibatches are drawn from: a memory."""

    _generator: torch.Generator

    @property
    def batch(self) -> Batch: ...

    def __len__(self) -> int: ...


class Loader:
    """An iterable of minibatches, which looks at its memory anew at each pass."""

    def __init__(self, memory: Source, batch_size: int, shuffle: bool) -> None:
        self._memory, self._batch_size, self._shuffle = memory, batch_size, shuffle

    def __len__(self) -> int:
        return -(-len(self._memory) // self._batch_size)

    def __iter__(self) -> Iterator[Sample]:
        source = self._memory._generator if self._shuffle else None
        return map(as_sample, self._memory.batch.minibatches(self._batch_size, source))


class WeightedDataset(Dataset[Sample]):
    """What a memory holds, one example at a time; a copy in another process keeps what was held when it was made."""

    def __init__(self, source: Source | Batch) -> None:
        self._source = source

    def _now(self) -> Batch:
        return self._source if isinstance(self._source, Batch) else self._source.batch

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Sample:
        batch = self._now()
        # Copies, which a transform may change: what is held stays as it came.
        inputs = map_inputs(lambda t: t[index].clone(), batch.inputs)
        return Sample(inputs, batch.targets[index].clone(), batch.weights[index].clone())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._now(),)


def as_sample(batch: Batch) -> Sample:
    return Sample(batch.inputs, batch.targets, batch.weights)
