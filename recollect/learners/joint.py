"""The upper bound: keep everything and train on all of it."""

from collections.abc import Iterator
from typing import Any, Unpack

from torch import nn

from recollect.batch import Batch
from recollect.embedding import MakeModel
from recollect.learners.learner import Learner, TrainingOptions, check_batch
from recollect.learners.training import Job
from recollect.randomness import generator


class Joint(Learner):
    """Whenever asked, a fresh model trained on everything seen, all of which is kept.

    Args:
        make_model: returns a freshly initialised model at each call.
        seed: the same seed and stream give the same model.
        **training: `epochs` (200), `lr` (3e-4), `weight_decay` (1e-4), `batch_size` (100), `loss` ("cross_entropy").
    """

    def __init__(self, make_model: MakeModel, *, seed: int = 0, **training: Unpack[TrainingOptions]) -> None:
        super().__init__(make_model, seed=seed, **training)
        self._everything: Batch | None = None
        self._model: nn.Module | None = None

    def observing(self, inputs: Any, targets: Any) -> Iterator[Job]:
        yield from ()  # trains when asked
        arrived = check_batch(inputs, targets, self._everything)
        self._everything = arrived if self._everything is None else self._everything.followed_by(arrived)
        self._model = None

    @property
    def model(self) -> nn.Module:
        """The model trained on everything seen."""
        for job in self.preparing():
            job.run()
        assert self._model is not None
        return self._model

    def preparing(self) -> Iterator[Job]:
        if self._everything is None:
            raise ValueError("the learner must have seen data, got none so far: call observe first")
        if self._model is None:
            model = self._fresh_model()
            yield Job(model, self._everything, self.training, generator(self.seed, "training"))
            self._model = model
