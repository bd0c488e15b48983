"""What all learners share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from recollect.batch import Batch, check_same_form, forward
from recollect.checks import check_seed
from recollect.embedding import MakeModel, check_not_lazy, copied, draw_model
from recollect.learners.training import MakeOptimizer, MakeScheduler, Task, Training, predict, train
from recollect.losses import LossFunction, check_labels
from recollect.memories import Memory
from recollect.randomness import derive_seed


@dataclass(eq=False, repr=False, kw_only=True)
class Learner(ABC):
    """Trains on a stream batch by batch, and makes predictions at any time.

    To write one of your own, define `observe`, which takes in a batch, and `pending`, which says what would be trained.
    """

    make_model: MakeModel = field(kw_only=False)
    memory: Memory | None = field(init=False, default=None)
    epochs: int = 200
    lr: float = 3e-4
    weight_decay: float = 1e-4
    batch_size: int = 100
    loss: str | LossFunction = "cross_entropy"
    optimizer: MakeOptimizer | None = None
    scheduler: MakeScheduler | None = None
    progress: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        self._model: nn.Module
        self._untrained: nn.Module | None = None
        _ = self.training  # refuses options that cannot be
        self.seed = check_seed(self.seed)
        if isinstance(self.make_model, nn.Module) or not callable(self.make_model):
            got = type(self.make_model).__name__
            raise ValueError(f"make_model must be a function that returns a new model, got {got}")
        takes_memory = self.__dataclass_fields__["memory"].init
        if takes_memory and not isinstance(self.memory, Memory):
            raise ValueError(f"memory must be a recollect memory, got {type(self.memory).__name__}")

    @property
    def training(self) -> Training:
        """How it trains, by its options as they are now."""
        return Training(
            self.epochs,
            self.lr,
            self.weight_decay,
            self.batch_size,
            self.loss,
            self.optimizer,
            self.scheduler,
            self.progress,
        )

    @abstractmethod
    def observe(self, inputs: Any, targets: Any, *, trained: nn.Module | None = None) -> None:
        """Take in a batch of the stream. On any error the learner is as before.

        Args:
            inputs: a tensor, or a dict or tuple of tensors, one row per example.
            targets: one row per example.
            trained: the model of `pending(inputs, targets)`, if it has been trained already, as one of many.
        """

    @abstractmethod
    def pending(self, inputs: Any = None, targets: Any = None) -> Task | None:
        """What would be trained next: by `observe` of these examples or, without any, by `predict`.

        None if nothing is to be trained, or if it is more than one weighted batch. Asking changes nothing.
        """

    def accept(self, trained: nn.Module) -> None:
        """Take over the model of `pending()`, trained elsewhere."""
        self._model = trained

    @property
    def model(self) -> nn.Module:
        """The model as it is now; learners that train only when asked do so here, if anything has changed."""
        task = self.pending()
        if task is not None:
            self.accept(self._train(task))
        return self._model

    def predict(self, inputs: Any) -> Tensor:
        """The model's outputs (logits) for these inputs."""
        return predict(self.model, inputs)

    def state_dict(self) -> dict[str, Any]:
        """All that it has learned and remembers, as tensors and plain values, for a checkpoint."""
        memory = {} if self.memory is None else {"memory": self.memory.state_dict()}
        return {"learner": type(self).__name__, "seed": self.seed, **memory, **self._learned()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where a learner stopped that was made with the same arguments. On any error it is as before.

        Args:
            state: what `state_dict` returned.
        """
        mine = {"learner": type(self).__name__, "seed": self.seed}
        for name, wanted in mine.items():
            got = state.get(name) if isinstance(state, Mapping) else None
            if got != wanted:
                raise ValueError(
                    f"state must be of a learner that was made with the same arguments, {name} {wanted!r}, got {got!r}"
                )
        try:
            learned = self._as_learned(state)
        except (KeyError, TypeError, AttributeError, RuntimeError, IndexError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"a learner's state must fit its model, got {type(error).__name__} ({reason})") from None
        if self.memory is not None:
            self.memory.load_state_dict(state.get("memory", {}))
        self.__dict__.update(learned)  # from here on nothing can fail

    def _learned(self) -> dict[str, Any]:
        """What must be saved beside the memory: nothing where a model is made anew from what is remembered."""
        return {}

    def _as_learned(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes by what `_learned` returned; nothing is changed yet."""
        return {}

    def _with_parameters(self, parameters: Mapping[str, Any]) -> nn.Module:
        """A model like that of now, with other parameters."""
        model = copied(self._model)
        model.load_state_dict(dict(parameters))
        return model

    def __repr__(self) -> str:
        remembered = "" if self.memory is None else f"{self.memory!r}, "
        return f"{type(self).__name__}({remembered}epochs={self.epochs}, seed={self.seed})"

    def _fresh_model(self) -> nn.Module:
        model = draw_model(self.make_model, derive_seed(self.seed, "initial model"))
        check_not_lazy(model)
        return model

    def _check(self, arrived: Batch, model: nn.Module | None = None) -> None:
        """Refuse now what could not be trained on later, by what the model, or a fresh one, makes of one example."""
        if model is None:
            self._untrained = model = self._untrained or self._fresh_model()
        with torch.no_grad():
            one = arrived.take(torch.arange(1))
            outputs = forward(model, one.inputs)
            check_labels(outputs, arrived.targets, self.loss)
            self.training.losses(outputs, one.targets)

    def _train(self, task: Task) -> nn.Module:
        return train(task, self.training)


def check_batch(inputs: Any, targets: Any, known: Batch | None = None) -> Batch:
    """A batch of the stream, complete, finite, and of the same form as what is known."""
    arrived = Batch.arriving(inputs, targets)
    if known is not None:
        check_same_form(known, arrived)
    return arrived
