"""GDumb (Prabhu et al. 2020): train from scratch on the memory alone."""

from collections.abc import Iterator
from typing import Any, Unpack

from torch import nn

from recollect.batch import Batch
from recollect.embedding import MakeModel
from recollect.learners.learner import RehearsalLearner, TrainingOptions
from recollect.learners.training import Job
from recollect.memories import Memory
from recollect.randomness import generator


class GDumb(RehearsalLearner):
    """Whenever asked, a fresh model trained on what is in memory, and on nothing else.

    Training happens only when it is needed: `predict` and `model` retrain if the memory has changed since, however it
    was filled. A memory that looks at the learner's model is shown the one trained on what it held before.

    Args:
        make_model: returns a freshly initialised model at each call.
        memory: any memory.
        seed: the same seed and memory give the same model.
        **training: `epochs` (200), `lr` (3e-4), `weight_decay` (1e-4), `batch_size` (100), `loss` ("cross_entropy").

    Example:
        >>> from recollect import Reservoir, datasets, models
        >>> digits = datasets.load("digits")
        >>> learner = GDumb(lambda: models.mlp(64, 10), Reservoir(50), epochs=2)
        >>> learner.observe(*digits.train)
        >>> learner.predict(digits.test.inputs).shape
        torch.Size([360, 10])
    """

    def __init__(
        self, make_model: MakeModel, memory: Memory, *, seed: int = 0, **training: Unpack[TrainingOptions]
    ) -> None:
        super().__init__(make_model, memory, seed=seed, **training)
        self._model: nn.Module | None = None
        self._trained_on: Batch | None = None

    def observing(self, inputs: Any, targets: Any) -> Iterator[Job]:
        model = None
        if self.memory.needs_model and len(self.memory):
            yield from self.preparing()
            model = self._model
        elif self.memory.needs_model:
            model = self._fresh_model()
        self.memory.update(inputs, targets, model=model)

    def preparing(self) -> Iterator[Job]:
        batch = self.memory.batch
        if self._model is None or self._trained_on is not batch:
            model = self._fresh_model()
            yield Job(model, batch, self.training, generator(self.seed, "training"))
            self._model, self._trained_on = model, batch

    @property
    def model(self) -> nn.Module:
        """The model trained on the memory as it is now."""
        for job in self.preparing():
            job.run()
        assert self._model is not None
        return self._model
