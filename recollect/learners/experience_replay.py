"""Experience replay: train on new and remembered examples together, without starting again."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from recollect.batch import Batch, forward
from recollect.embedding import copied
from recollect.learners.learner import Learner, check_batch
from recollect.learners.training import Task, check_weights, fit, paired, steps_of, weighted_mean
from recollect.memories import Memory
from recollect.randomness import generator

Mix: TypeAlias = Literal["drawn", "weighted", "union", "halves", "counts"]


@dataclass(eq=False, repr=False, kw_only=True)
class ExperienceReplay(Learner):
    """Trains one model on each new batch together with the memory, and updates the memory afterwards.

    Adam starts anew with each batch. `mix` says how new and remembered examples share a minibatch. A new example has
    weight one, a remembered one its memory weight. "drawn", "weighted" and "counts" estimate the loss over everything
    seen.

    - "drawn": minibatches drawn at random from both, in proportion to the weights; in the loss all count the same.
    - "weighted": both, shuffled; each example comes once per epoch and has its weight in the loss. Steps are uneven if
      few examples represent many.
    - "union": the same, with all weights one.
    - "halves": each step has `batch_size` new and `batch_size` remembered examples; the loss is the mean of both means.
    - "counts": as "halves", with each mean weighted by how many examples it represents.

    Args:
        make_model: returns a freshly initialised model at each call.
        memory: any memory.
        epochs: passes over each batch of the stream, together with the memory.
        lr: Adam's learning rate.
        weight_decay: Adam's weight decay.
        batch_size: examples per step.
        loss: "cross_entropy", "squared_error", "binary_cross_entropy", or a function of outputs and targets that
            returns one loss per example.
        optimizer: a function of a list of parameters that returns a torch optimizer, to be used instead of Adam.
        scheduler: a function of the optimizer and the number of steps that returns a torch scheduler of learning rates.
            It is stepped after each step; each training makes a new one.
        progress: show a progress bar in a terminal while training.
        seed: the same seed, stream and memory give the same model.
        mix: how new and remembered examples are mixed.
    """

    memory: Memory = field(kw_only=False)
    mix: Mix = "drawn"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mix not in get_args(Mix):
            raise ValueError(f"mix must be one of {', '.join(map(repr, get_args(Mix)))}, got {self.mix!r}")
        self._model = self._fresh_model()

    def observe(self, inputs: Any, targets: Any, *, trained: nn.Module | None = None) -> None:
        model = trained
        if model is None:
            task = self.pending(inputs, targets)
            model = self._train_in_pairs(inputs, targets) if task is None else self._train(task)
        self.memory.update(inputs, targets, model=model)
        self._model = model

    def pending(self, inputs: Any = None, targets: Any = None) -> Task | None:
        if inputs is None or (len(self.memory) and self.mix in ("halves", "counts")):
            return None
        held = self.memory.batch if len(self.memory) else None
        arrived = check_batch(inputs, targets, held)
        self._check(arrived, self._model)  # not all of them may be drawn
        both = arrived if held is None else arrived.to(self.memory.device).followed_by(held)
        if self.mix == "union":
            both = replace(both, weights=torch.ones_like(both.weights))
        source = generator(self.seed, "training", self.memory.seen)
        return Task(copied(self._model), both, source, drawn=self.mix == "drawn" and held is not None)

    def _learned(self) -> dict[str, Any]:
        return {"model": self._model.state_dict()}

    def _as_learned(self, state: Mapping[str, Any]) -> dict[str, Any]:
        return {"_model": self._with_parameters(state["model"])}

    def _train_in_pairs(self, inputs: Any, targets: Any) -> nn.Module:
        held = self.memory.batch
        check_weights(held)
        arrived = check_batch(inputs, targets, held)
        model, source = copied(self._model), generator(self.seed, "training", self.memory.seen)
        training = self.training
        share = len(arrived) / (len(arrived) + self.memory.total_weight) if self.mix == "counts" else 0.5

        def mean_loss(part: Batch) -> Tensor:
            return weighted_mean(training.losses(forward(model, part.inputs), part.targets), part.weights)

        def loss(parts: tuple[Batch, Batch]) -> Tensor:
            return share * mean_loss(parts[0]) + (1 - share) * mean_loss(parts[1])

        steps = steps_of(model, len(arrived), training)
        pairs = partial(paired, model, arrived, held, training, source)
        return fit(model, training, pairs, loss, source, steps=steps)
