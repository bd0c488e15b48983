"""The upper bound: keep everything and train on all of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from recollect.batch import Batch
from recollect.learners.learner import Learner, check_batch
from recollect.learners.training import Task
from recollect.randomness import generator


@dataclass(eq=False, repr=False, kw_only=True)
class Joint(Learner):
    """Trains a fresh model on everything seen, when a prediction is asked for; it keeps all examples: the upper bound.

    Args:
        make_model: returns a freshly initialised model at each call.
        epochs: passes over everything seen at each training.
        lr: Adam's learning rate.
        weight_decay: Adam's weight decay.
        batch_size: examples per step.
        loss: "cross_entropy", "squared_error", "binary_cross_entropy", or a function of outputs and targets that
            returns one loss per example.
        optimizer: a function of a list of parameters that returns a torch optimizer, to be used instead of Adam.
        scheduler: a function of the optimizer and the number of steps that returns a torch scheduler of learning rates.
            It is stepped after each step; each training makes a new one.
        progress: show a progress bar in a terminal while training.
        seed: the same seed and stream give the same model.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._everything: Batch | None = None
        self._trained = False

    def observe(self, inputs: Any, targets: Any, *, trained: nn.Module | None = None) -> None:
        arrived = check_batch(inputs, targets, self._everything)
        self._check(arrived)
        before = arrived.take(torch.arange(0)) if self._everything is None else self._everything
        self._everything = before.followed_by(arrived)  # a copy: who passed them may use their place again
        self._trained = False

    def pending(self, inputs: Any = None, targets: Any = None) -> Task | None:
        if inputs is not None or self._trained:
            return None
        if self._everything is None:
            raise ValueError("the learner must have seen data, got none so far: call observe first")
        return Task(self._fresh_model(), self._everything, generator(self.seed, "training"))

    def accept(self, trained: nn.Module) -> None:
        self._model, self._trained = trained, True

    def _learned(self) -> dict[str, Any]:
        seen = self._everything
        return {"seen": None if seen is None else {"inputs": seen.inputs, "targets": seen.targets}}

    def _as_learned(self, state: Mapping[str, Any]) -> dict[str, Any]:
        seen = state["seen"]
        everything = None if seen is None else Batch.arriving(seen["inputs"], seen["targets"])
        return {"_everything": everything, "_trained": False}
