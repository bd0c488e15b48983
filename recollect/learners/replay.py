"""What learners that go on training one model share."""

import copy
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Unpack

import torch
from torch import nn

from recollect.batch import Batch
from recollect.embedding import MakeModel
from recollect.learners.learner import RehearsalLearner, TrainingOptions, check_batch
from recollect.learners.training import Job
from recollect.memories import Memory
from recollect.randomness import generator


class ReplayLearner(RehearsalLearner):
    """Trains one model on each batch together with the memory, and updates the memory afterwards.

    Adam starts anew with each batch of the stream.
    """

    def __init__(
        self, make_model: MakeModel, memory: Memory, *, seed: int = 0, **training: Unpack[TrainingOptions]
    ) -> None:
        super().__init__(make_model, memory, seed=seed, **training)
        self._model = self._fresh_model()

    @property
    def model(self) -> nn.Module:
        return self._model

    def observing(self, inputs: Any, targets: Any) -> Iterator[Job]:
        held = self.memory.batch if len(self.memory) else None
        arrived = check_batch(inputs, targets, held)
        model = copy.deepcopy(self._model)  # so that an error half-way leaves the learner as it was
        yield from self.rehearsing(model, arrived, held, generator(self.seed, "training", self.memory.seen))
        self.memory.update(inputs, targets, model=model)
        self._model = model

    @abstractmethod
    def rehearsing(
        self, model: nn.Module, arrived: Batch, held: Batch | None, source: torch.Generator
    ) -> Iterator[Job]:
        """Train the model in place on what arrived and what is held, if anything is; may leave it to a job."""


def paired(arrived: Batch, held: Batch, size: int, source: torch.Generator) -> Iterator[tuple[Batch, Batch]]:
    """Minibatches of what arrived, each with as many remembered examples drawn at random."""
    for part in arrived.minibatches(size, source):
        rows = torch.randperm(len(held), generator=source)[: len(part)]
        yield part, held.take(rows)
