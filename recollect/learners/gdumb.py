"""GDumb (Prabhu et al. 2020): train from scratch on the memory alone."""

from typing import Any

from torch import Tensor, nn

from recollect.batch import Batch
from recollect.embedding import MakeModel, draw_model
from recollect.learners.training import Training, predict, train
from recollect.losses import LossFunction
from recollect.memories import Memory
from recollect.randomness import check_seed, derive_seed, generator


class GDumb:
    """Whenever asked, a fresh model trained on what is in memory, and on nothing else.

    Training happens only when it is needed: `predict` and `model` retrain if the memory has changed since, however it
    was filled.

    Args:
        make_model: returns a freshly initialised model at each call.
        memory: any memory.
        epochs: passes over the memory.
        lr: Adam's step size.
        weight_decay: the pull of parameters towards zero.
        batch_size: examples per step.
        loss: a name or a function of outputs and targets that returns one loss per example.
        seed: the same seed and memory give the same model.
    """

    def __init__(
        self,
        make_model: MakeModel,
        memory: Memory,
        *,
        epochs: int = 200,
        lr: float = 3e-4,
        weight_decay: float = 1e-4,
        batch_size: int = 100,
        loss: str | LossFunction = "cross_entropy",
        seed: int = 0,
    ) -> None:
        self._make_model = make_model
        self.memory = memory
        self.training = Training(epochs, lr, weight_decay, batch_size, loss)
        self.seed = check_seed(seed)
        self._model: nn.Module | None = None
        self._trained_on: Batch | None = None

    def observe(self, inputs: Any, targets: Any) -> None:
        """Take in a batch of the stream."""
        self.memory.update(inputs, targets)

    @property
    def model(self) -> nn.Module:
        """The model trained on the memory as it is now."""
        batch = self.memory.batch
        if self._model is None or self._trained_on is not batch:
            model = draw_model(self._make_model, derive_seed(self.seed, "initial model"))
            train(model, batch, self.training, generator(self.seed, "training"))
            self._model, self._trained_on = model, batch
        return self._model

    def predict(self, inputs: Any) -> Tensor:
        """The model's outputs (logits) for these inputs."""
        return predict(self.model, inputs)
