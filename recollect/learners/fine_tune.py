"""The lower bound: train on what arrives and remember nothing."""

import copy
from collections.abc import Iterator
from typing import Any, Unpack

from torch import nn

from recollect.embedding import MakeModel
from recollect.learners.learner import Learner, TrainingOptions, check_batch
from recollect.learners.training import Job
from recollect.randomness import generator


class FineTune(Learner):
    """Goes on training the same model on each batch alone, and forgets.

    Args:
        make_model: returns a freshly initialised model at each call.
        seed: the same seed and stream give the same model.
        **training: `epochs` (200), `lr` (3e-4), `weight_decay` (1e-4), `batch_size` (100), `loss` ("cross_entropy").
    """

    def __init__(self, make_model: MakeModel, *, seed: int = 0, **training: Unpack[TrainingOptions]) -> None:
        super().__init__(make_model, seed=seed, **training)
        self._model = self._fresh_model()
        self._observed = 0

    @property
    def model(self) -> nn.Module:
        return self._model

    def observing(self, inputs: Any, targets: Any) -> Iterator[Job]:
        arrived = check_batch(inputs, targets, None)
        model = copy.deepcopy(self._model)
        yield Job(model, arrived, self.training, generator(self.seed, "training", self._observed))
        self._model, self._observed = model, self._observed + len(arrived)
