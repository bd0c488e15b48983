"""GDumb (Prabhu et al. 2020): train from scratch on the memory alone.

The paper does not say which model its local variant looks at under GDumb. With the untrained one the accuracies are the
paper's (LDPA, 200 and 1000 kept: 48.0 and 55.9, paper 48.1 and 56.0), with one trained on what is held they are not
(42.3 and 54.7): what a model was trained on has small gradients, and is crowded out by the newest batch.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from recollect.batch import Batch
from recollect.learners.learner import Learner, check_batch
from recollect.learners.training import Task
from recollect.memories import Memory
from recollect.randomness import generator


@dataclass(eq=False, repr=False, kw_only=True)
class GDumb(Learner):
    """Trains a fresh model on the memory alone, when a prediction is asked for.

    Training happens only when it is needed: `predict` and `model` train again if the memory has changed since, however
    it was filled. A memory that looks at the learner's model is given the untrained one that training would start from.

    Args:
        make_model: returns a freshly initialised model at each call.
        memory: any memory.
        epochs: passes over the memory at each training.
        lr: Adam's learning rate.
        weight_decay: Adam's weight decay.
        batch_size: examples per step.
        loss: "cross_entropy", "squared_error", "binary_cross_entropy", or a function of outputs and targets that
            returns one loss per example.
        optimizer: a function of a list of parameters that returns a torch optimizer, to be used instead of Adam.
        scheduler: a function of the optimizer and the number of steps that returns a torch scheduler of learning rates.
            It is stepped after each step; each training makes a new one.
        progress: show a progress bar in a terminal while training.
        seed: the same seed and memory give the same model.

    Example:
        >>> from recollect import Reservoir, datasets, models
        >>> digits = datasets.load("digits")
        >>> learner = GDumb(lambda: models.mlp(64, 10), Reservoir(50), epochs=2)
        >>> learner.observe(*digits.train)
        >>> learner.predict(digits.test.inputs).shape
        torch.Size([360, 10])
    """

    memory: Memory = field(kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._trained_on: Batch | None = None

    def observe(self, inputs: Any, targets: Any, *, trained: nn.Module | None = None) -> None:
        self._check(check_batch(inputs, targets))
        self.memory.update(inputs, targets, model=self._fresh_model() if self.memory.needs_model else None)

    def pending(self, inputs: Any = None, targets: Any = None) -> Task | None:
        if inputs is not None:
            return None  # nothing is trained before it is asked for
        batch = self.memory.batch
        if not len(batch):
            raise ValueError("the memory must hold examples to be trained on, got none: all were forgotten")
        return None if batch is self._trained_on else Task(self._fresh_model(), batch, generator(self.seed, "training"))

    def accept(self, trained: nn.Module) -> None:
        self._model, self._trained_on = trained, self.memory.batch
