"""Dark experience replay, DER++ (Buzzega et al. 2020): replay what the model used to say, too."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from recollect.batch import Batch, forward
from recollect.checks import check_number
from recollect.embedding import copied
from recollect.learners.learner import Learner, check_batch
from recollect.learners.training import Task, check_weights, fit, paired, predict, steps_of, weighted_mean
from recollect.memories import Memory
from recollect.randomness import generator


@dataclass(eq=False, repr=False, kw_only=True)
class DarkExperienceReplay(Learner):
    """Trains one model on new examples, while remembered ones keep their labels and their former outputs (DER++).

    Each step takes `batch_size` new examples and twice as many remembered ones:

        loss = mean new loss
             + alpha * mean squared distance to former outputs
             + beta * mean loss on labels,

    the last two means over remembered examples with their memory weights. The outputs of an example are stored when it
    enters the memory, at the end of training on its batch. The learner stores them, so any memory will do.

    Args:
        make_model: returns a freshly initialised model at each call.
        memory: any memory.
        epochs: passes over each batch of the stream.
        lr: Adam's learning rate.
        weight_decay: Adam's weight decay.
        batch_size: new examples per step.
        loss: "cross_entropy", "squared_error", "binary_cross_entropy", or a function of outputs and targets that
            returns one loss per example.
        optimizer: a function of a list of parameters that returns a torch optimizer, to be used instead of Adam.
        scheduler: a function of the optimizer and the number of steps that returns a torch scheduler of learning rates.
            It is stepped after each step; each training makes a new one.
        progress: show a progress bar in a terminal while training.
        seed: the same seed, stream and memory give the same model.
        alpha: how much former outputs count; zero is experience replay.
        beta: how much remembered labels count; zero is plain DER.
    """

    memory: Memory = field(kw_only=False)
    alpha: float = 0.5
    beta: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.alpha, self.beta = check_number("alpha", self.alpha), check_number("beta", self.beta)
        self._model = self._fresh_model()
        self._outputs: dict[int, Tensor] = {}

    def observe(self, inputs: Any, targets: Any, *, trained: nn.Module | None = None) -> None:
        held = self.memory.batch if len(self.memory) else None
        arrived, former = check_batch(inputs, targets, held), self._former(held)
        if trained is not None:
            model = trained
        else:
            model = self._train(self._task(arrived)) if held is None else self._train_with(former, arrived, held)
        first = self.memory.seen
        outputs = predict(model, arrived.inputs).cpu()
        self.memory.update(inputs, targets, model=model)
        # From here on nothing can fail.
        ids = self.memory.batch.ids.tolist()
        self._outputs = {i: outputs[i - first].clone() if i >= first else former[i] for i in ids}
        self._model = model

    def pending(self, inputs: Any = None, targets: Any = None) -> Task | None:
        return None if inputs is None or len(self.memory) else self._task(check_batch(inputs, targets))

    def _task(self, arrived: Batch) -> Task:
        return Task(copied(self._model), arrived, generator(self.seed, "training", self.memory.seen))

    def _former(self, held: Batch | None) -> dict[int, Tensor]:
        """What the model used to say of those held; what it says now of those that came in by another way."""
        if held is None:
            return {}
        ids = held.ids.tolist()
        strangers = [row for row, i in enumerate(ids) if i not in self._outputs]
        former = self._outputs
        if strangers:
            outputs = predict(self._model, held.take(torch.tensor(strangers)).inputs).cpu()
            former = former | {ids[row]: output for row, output in zip(strangers, outputs, strict=True)}
        return former

    def _learned(self) -> dict[str, Any]:
        ids, outputs = torch.tensor(list(self._outputs), dtype=torch.long), list(self._outputs.values())
        return {
            "model": self._model.state_dict(),
            "ids": ids,
            "outputs": torch.stack(outputs) if outputs else torch.empty(0),
        }

    def _as_learned(self, state: Mapping[str, Any]) -> dict[str, Any]:
        outputs = dict(zip(state["ids"].tolist(), state["outputs"].clone(), strict=True))
        return {"_model": self._with_parameters(state["model"]), "_outputs": outputs}

    def _train_with(self, outputs_by_id: dict[int, Tensor], arrived: Batch, held: Batch) -> nn.Module:
        check_weights(held)
        task = self._task(arrived)
        model, source = task.model, task.generator
        training, device = self.training, held.ids.device
        former = torch.stack([outputs_by_id[i] for i in held.ids.tolist()]).to(device)
        # The former outputs travel with the examples in the place of their ids.
        dark = replace(held, ids=torch.arange(len(held), device=device))

        def loss(parts: tuple[Batch, Batch]) -> Tensor:
            new, old = parts
            again = dark.take(torch.randperm(len(dark), generator=source)[: len(new)])
            total = training.losses(forward(model, new.inputs), new.targets).mean()
            outputs = forward(model, old.inputs)
            apart = outputs - former[old.ids].to(outputs)
            distances = apart.square().reshape(len(apart), -1).mean(1)
            total = total + self.alpha * weighted_mean(distances, old.weights)
            losses = training.losses(forward(model, again.inputs), again.targets)
            return total + self.beta * weighted_mean(losses, again.weights)

        steps = steps_of(model, len(arrived), training)
        pairs = partial(paired, model, arrived, dark, training, source)
        return fit(model, training, pairs, loss, source, steps=steps)
