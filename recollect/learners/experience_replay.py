"""Experience replay: train on new and remembered examples together, without starting again."""

from collections.abc import Iterator
from typing import Literal, TypeAlias, Unpack, get_args

import torch
from torch import Tensor, nn

from recollect.batch import Batch, forward
from recollect.embedding import MakeModel
from recollect.learners.learner import TrainingOptions
from recollect.learners.replay import ReplayLearner, paired
from recollect.learners.training import Job, fit, weighted_mean
from recollect.memories import Memory

Mix: TypeAlias = Literal["weighted", "union", "halves", "counts"]


class ExperienceReplay(ReplayLearner):
    """Trains on each arriving batch together with the memory; the model is kept, the memory updated afterwards.

    The paper is silent on how new and remembered examples share a minibatch. Four readings, of which the first
    estimates the loss over everything seen:

    - "weighted": minibatches from the shuffled union; a new example weighs one, a remembered one its memory weight.
    - "union": the same, but all weigh one.
    - "halves": each step takes `batch_size` new and `batch_size` remembered examples; the mean of both means.
    - "counts": as "halves", with each mean weighted by how many examples it stands for.

    Args:
        make_model: returns a freshly initialised model at each call.
        memory: any memory.
        mix: how new and remembered examples are mixed.
        seed: the same seed, stream and memory give the same model.
        **training: `epochs` (200), `lr` (3e-4), `weight_decay` (1e-4), `batch_size` (100), `loss` ("cross_entropy").
    """

    def __init__(
        self,
        make_model: MakeModel,
        memory: Memory,
        *,
        mix: Mix = "weighted",
        seed: int = 0,
        **training: Unpack[TrainingOptions],
    ) -> None:
        if mix not in get_args(Mix):
            raise ValueError(f"mix must be one of {', '.join(map(repr, get_args(Mix)))}, got {mix!r}")
        super().__init__(make_model, memory, seed=seed, **training)
        self.mix = mix

    def rehearsing(
        self, model: nn.Module, arrived: Batch, held: Batch | None, source: torch.Generator
    ) -> Iterator[Job]:
        if held is None or self.mix in ("weighted", "union"):
            both = arrived if held is None else arrived.followed_by(held)
            if self.mix == "union":
                both = Batch(both.inputs, both.targets, torch.ones(len(both)), both.ids)
            yield Job(model, both, self.training, source)
            return
        size = self.training.batch_size
        share = len(arrived) / (len(arrived) + self.memory.seen) if self.mix == "counts" else 0.5

        def mean_loss(part: Batch) -> Tensor:
            return weighted_mean(self.training.losses(forward(model, part.inputs), part.targets), part.weights)

        def loss(parts: tuple[Batch, Batch]) -> Tensor:
            return share * mean_loss(parts[0]) + (1 - share) * mean_loss(parts[1])

        fit(model, self.training, lambda: paired(arrived, held, size, source), loss)
