"""What all learners share."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TypedDict, Unpack

from torch import Tensor, nn

from recollect.batch import Batch, check_same_form
from recollect.checks import check_seed
from recollect.embedding import MakeModel, draw_model
from recollect.learners.training import Job, Training, predict
from recollect.losses import LossFunction
from recollect.memories import Memory
from recollect.randomness import derive_seed


class TrainingOptions(TypedDict, total=False):
    """How to train: passes, Adam's step size and weight decay, examples per step, and the loss."""

    epochs: int
    lr: float
    weight_decay: float
    batch_size: int
    loss: str | LossFunction


class Learner(ABC):
    """Sees a stream batch by batch and can be asked for predictions at any time.

    Args:
        make_model: returns a freshly initialised model at each call.
        memory: what is remembered; None for learners without one.
        seed: the same seed, stream and memory give the same model.
        **training: `epochs` (200), `lr` (3e-4), `weight_decay` (1e-4), `batch_size` (100), `loss` ("cross_entropy").
    """

    def __init__(
        self, make_model: MakeModel, memory: Memory | None = None, *, seed: int = 0, **training: Unpack[TrainingOptions]
    ) -> None:
        self._make_model = make_model
        self._memory = memory
        self.training = Training(**training)
        self.seed = check_seed(seed)

    def observe(self, inputs: Any, targets: Any) -> None:
        """Take in a batch of the stream. On any error the learner is as before."""
        for job in self.observing(inputs, targets):
            job.run()

    @abstractmethod
    def observing(self, inputs: Any, targets: Any) -> Iterator[Job]:
        """As `observe`, leaving training to the caller: each job must be done before the next is asked for.

        So the models of many learners can be trained together.
        """

    def preparing(self) -> Iterator[Job]:
        """What must be trained before `model` can be had; nothing for learners that train as they observe."""
        yield from ()

    @property
    @abstractmethod
    def model(self) -> nn.Module:
        """The model as it is now."""

    @property
    def memory(self) -> Memory | None:
        """What is remembered, if this learner remembers."""
        return self._memory

    def predict(self, inputs: Any) -> Tensor:
        """The model's outputs (logits) for these inputs."""
        return predict(self.model, inputs)

    def _fresh_model(self) -> nn.Module:
        return draw_model(self._make_model, derive_seed(self.seed, "initial model"))


class RehearsalLearner(Learner):
    """A learner that has a memory."""

    def __init__(
        self, make_model: MakeModel, memory: Memory, *, seed: int = 0, **training: Unpack[TrainingOptions]
    ) -> None:
        if not isinstance(memory, Memory):
            raise ValueError(f"memory must be a recollect memory, got {type(memory).__name__}")
        super().__init__(make_model, memory, seed=seed, **training)

    @property
    def memory(self) -> Memory:
        """What is remembered."""
        assert self._memory is not None
        return self._memory


def check_batch(inputs: Any, targets: Any, known: Batch | None) -> Batch:
    """A batch of the stream, complete, finite, and of the same form as what is known."""
    arrived = Batch.arriving(inputs, targets)
    if known is not None:
        check_same_form(known, arrived)
    return arrived
