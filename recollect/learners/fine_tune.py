"""The lower bound: train on what arrives and remember nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from recollect.embedding import copied
from recollect.learners.learner import Learner, check_batch
from recollect.learners.training import Task
from recollect.randomness import generator


@dataclass(eq=False, repr=False, kw_only=True)
class FineTune(Learner):
    """Trains one model on each batch alone, without a memory, and forgets: the lower bound.

    Args:
        make_model: returns a freshly initialised model at each call.
        epochs: passes over each batch of the stream.
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
        self._model = self._fresh_model()
        self._observed = 0

    def observe(self, inputs: Any, targets: Any, *, trained: nn.Module | None = None) -> None:
        task = self._task(inputs, targets)
        self._model = self._train(task) if trained is None else trained
        self._observed += len(task.batch)

    def pending(self, inputs: Any = None, targets: Any = None) -> Task | None:
        return None if inputs is None else self._task(inputs, targets)

    def _task(self, inputs: Any, targets: Any) -> Task:
        source = generator(self.seed, "training", self._observed)
        return Task(copied(self._model), check_batch(inputs, targets), source)

    def _learned(self) -> dict[str, Any]:
        return {"model": self._model.state_dict(), "observed": self._observed}

    def _as_learned(self, state: Mapping[str, Any]) -> dict[str, Any]:
        return {"_model": self._with_parameters(state["model"]), "_observed": int(state["observed"])}
