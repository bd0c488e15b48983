"""Gradient matching at the learner's current parameters (App. A.4)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from recollect.batch import Batch
from recollect.embedding import ProjectionName
from recollect.losses import LossFunction
from recollect.memories.choice import Choice
from recollect.memories.description import plain_options
from recollect.memories.local_embedding import embed_at, embedding_at
from recollect.memories.memory import Memory
from recollect.numerics import sum_rows
from recollect.pursuit import Center, Nonnegative, Rule, check_options, pursue


class LocalGradientMatching(Memory):
    """Keeps a few weighted examples whose gradients at the current model add up to those of everything seen.

    Gradients change with the model, so those of the kept examples are computed again at each update, and the gradient
    of everything seen is approximated by the kept examples, with their weights, and what arrived. A single set of
    parameters, that of the learner's model, replaces the random initialisations.

    Args:
        capacity: how many examples are kept at most.
        loss: "cross_entropy", "squared_error", "binary_cross_entropy", or a function of outputs and targets that
            returns one loss per example.
        dim: numbers that a gradient is projected to.
        layers: whose gradients are matched: "all", "last" (the last linear layer), names of modules, or "auto": the
            last one where targets are class numbers and the model ends in a linear layer, otherwise all.
        projection: "kronecker", "sparse" (the paper's), None, or "auto" (None for a last layer whose two factors are no
            longer than `dim`, otherwise "kronecker"); see `GradientEmbedding`.
        batch_size: examples per pass; bounds memory and changes nothing else.
        device: where to compute.
        rule: "least-squares" picks the row that improves the fit most, "inner-product" as in the paper.
        regularization: lambda, how strongly the weights are pulled towards `center`.
        relative: True makes lambda a multiple of the embeddings' mean squared norm; False is absolute, as in the paper.
        center: "uniform" pulls weights towards the best equal weight for all, "zero" towards zero.
        tolerance: stop as soon as the matching error is this small.
        nonnegative: True replaces rows with negative weights by others, "clip" sets the weights to zero, False leaves
            them.
        hold_count: let the weights add up to about the number of examples seen.
        exact: scan all candidates for each pick, instead of picking several per scan; slower.
        seed: the same seed gives the same memory.
    """

    needs_model = True
    counts_weights = True

    def __init__(
        self,
        capacity: int,
        *,
        loss: str | LossFunction = "cross_entropy",
        dim: int = 10_000,
        layers: str | Sequence[str] = "all",
        projection: ProjectionName | None = "kronecker",
        batch_size: int = 128,
        device: str | torch.device = "cpu",
        rule: Rule = "least-squares",
        regularization: float = 0.001,
        relative: bool = True,
        center: Center = "uniform",
        tolerance: float | None = None,
        nonnegative: Nonnegative = True,
        hold_count: bool = True,
        exact: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(capacity, seed=seed)
        self._gradients: dict[str, Any] = {
            "loss": loss,
            "dim": dim,
            "layers": layers,
            "projection": projection,
            "batch_size": batch_size,
            "device": device,
        }
        self._pursuit: dict[str, Any] = {
            "rule": rule,
            "regularization": regularization,
            "relative": relative,
            "center": center,
            "tolerance": tolerance,
            "nonnegative": nonnegative,
            "hold_count": hold_count,
            "exact": exact,
        }
        check_options(**self._pursuit)
        embedding_at(nn.Module, seed=self.seed, **self._gradients)  # refuses options that cannot be

    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        embeddings, plan = embed_at(model, held, arrived, self._state, seed=self.seed, **self._gradients)
        if self.seen + len(arrived) <= self.capacity:
            return Choice(torch.arange(len(embeddings)), self._own(held, arrived), plan)
        new = embeddings[len(held) :]
        target = sum_rows(new.double() * arrived.weights.to(new)[:, None] if arrived.weighted else new)
        target += held.weights.double().to(embeddings.device) @ embeddings[: len(held)].double()
        size = min(self.capacity, len(embeddings))
        coreset = pursue(embeddings, size, target=target, count=self._total(arrived), **self._pursuit)
        indices, order = coreset.indices.sort()
        return Choice(indices, coreset.weights[order], plan)

    def options(self) -> dict[str, Any]:
        return plain_options({**self._gradients, **self._pursuit})
