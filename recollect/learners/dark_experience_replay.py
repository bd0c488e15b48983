"""Dark experience replay, DER++ (Buzzega et al. 2020): replay what the model used to say, too."""

from collections.abc import Iterator
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from recollect.batch import Batch, forward
from recollect.embedding import MakeModel
from recollect.learners.learner import TrainingOptions
from recollect.learners.replay import ReplayLearner, paired
from recollect.learners.training import Job, fit, predict, weighted_mean
from recollect.memories import Memory


class DarkExperienceReplay(ReplayLearner):
    """Trains on new examples while remembered ones keep their labels and their former outputs.

    Each step takes `batch_size` new examples and twice as many remembered ones:

        loss = mean new loss + alpha * mean squared distance to former outputs + beta * mean loss on labels,

    both means over remembered examples with their memory weights. An example's outputs are noted when it enters the
    memory, at the end of training on its batch. They belong to the learner, by id, so any memory will do.

    Args:
        make_model: returns a freshly initialised model at each call.
        memory: any memory.
        alpha: how much former outputs count; zero is experience replay.
        beta: how much remembered labels count; zero is plain DER.
        seed: the same seed, stream and memory give the same model.
        **training: `epochs` (200), `lr` (3e-4), `weight_decay` (1e-4), `batch_size` (100), `loss` ("cross_entropy").
    """

    def __init__(
        self,
        make_model: MakeModel,
        memory: Memory,
        *,
        alpha: float = 0.5,
        beta: float = 0.5,
        seed: int = 0,
        **training: Unpack[TrainingOptions],
    ) -> None:
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be a number of at least 0, got {value!r}")
        super().__init__(make_model, memory, seed=seed, **training)
        self.alpha, self.beta = alpha, beta
        self._outputs: dict[int, Tensor] = {}

    def observing(self, inputs: Any, targets: Any) -> Iterator[Job]:
        yield from super().observing(inputs, targets)
        self._note_outputs()

    def rehearsing(
        self, model: nn.Module, arrived: Batch, held: Batch | None, source: torch.Generator
    ) -> Iterator[Job]:
        if held is None:
            yield Job(model, arrived, self.training, source)
        else:
            self._train(model, arrived, held, source)

    def _train(self, model: nn.Module, arrived: Batch, held: Batch, source: torch.Generator) -> None:
        self._note_outputs()  # of examples that came into the memory by another way
        former = torch.stack([self._outputs[i] for i in held.ids.tolist()])
        # The former outputs travel with the examples in the place of their ids.
        dark = Batch(held.inputs, held.targets, held.weights, torch.arange(len(held)))
        size = self.training.batch_size

        def loss(parts: tuple[Batch, Batch]) -> Tensor:
            new, old = parts
            again = dark.take(torch.randperm(len(dark), generator=source)[: len(new)])
            total = self.training.losses(forward(model, new.inputs), new.targets).mean()
            outputs = forward(model, old.inputs)
            distances = (outputs - former[old.ids].to(outputs)).flatten(1).square().mean(1)
            total = total + self.alpha * weighted_mean(distances, old.weights)
            losses = self.training.losses(forward(model, again.inputs), again.targets)
            return total + self.beta * weighted_mean(losses, again.weights)

        fit(model, self.training, lambda: paired(arrived, dark, size, source), loss)

    def _note_outputs(self) -> None:
        """Outputs of examples that are new in memory; those of dropped ones are forgotten."""
        batch = self.memory.batch
        ids = batch.ids.tolist()
        fresh = [row for row, i in enumerate(ids) if i not in self._outputs]
        if fresh:
            outputs = predict(self._model, batch.take(torch.tensor(fresh)).inputs).cpu()
            self._outputs |= {ids[row]: output for row, output in zip(fresh, outputs, strict=True)}
        self._outputs = {i: self._outputs[i] for i in ids}
