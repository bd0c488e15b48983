"""Continual gradient matching (Alg. 2)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recollect.batch import Batch
from recollect.dictionary import Dictionary, InMemory, Joined, taken
from recollect.embedding import GradientEmbedding, Init, MakeModel, Prepared, ProjectionName
from recollect.losses import LossFunction
from recollect.memories.memory import Choice, Memory, plain_options
from recollect.pursuit import Center, Nonnegative, Rule, pursue
from recollect.selection import SHORTLIST, gather, shortlisted


class GradientMatching(Memory):
    """Keeps the weighted examples whose loss gradients add up to those of everything seen.

    The target, the sum of all embeddings, is tracked exactly, because embeddings depend on the
    initialisation distribution and not on training. The dictionary at each step is what was kept and what arrived,
    so old examples can be dropped or reweighted. Until the capacity is reached, everything is kept with weight one.
    `PAPER` holds the paper's settings as keyword arguments.

    Several memories of one stream, of other sizes or settings of the pursuit, may share what takes most of the time:

        embedding = rc.GradientEmbedding(make_model)
        memories = [rc.GradientMatching(embedding, size) for size in (200, 1000)]
        for inputs, targets in stream.batches:
            candidates = embedding.dictionary(inputs, targets)
            for memory in memories:
                memory.update(inputs, targets, candidates=candidates)

    Args:
        make_model: returns a freshly initialised model at each call; or an embedding, which then has all that is said
            about gradients here; or None, to read a loaded memory.
        capacity: how many examples are kept at most.
        loss: a name or a function of outputs and targets that returns one loss per example.
        inits: S, the number of initialisations at which gradients are matched.
        dim: d, numbers per initialisation that a gradient is projected to.
        layers: which parameters' gradients: "all", "last" (the last linear layer), or names of modules.
        projection: "kronecker", "sparse" (the paper's) or None; see `GradientEmbedding`.
        init: "default", "kaiming_uniform", "kaiming_normal", or a function that redraws a model's parameters.
        init_scale: multiplies what was drawn.
        calibrate: give fresh BatchNorm layers the statistics of the stream's first examples.
        batch_size: examples per pass; bounds memory and changes nothing else.
        device: where to compute.
        shortlist: how many arriving examples per kept one are candidates, drawn at random; all of them count in what is
            to be matched. None considers all, as in the paper.
        rule: "least-squares" picks the row that lowers the objective most, "inner-product" as in the paper.
        regularization: lambda, the pull of the weights towards the centre.
        relative: lambda is a multiple of the embeddings' mean squared norm; otherwise absolute, as in the paper.
        center: "uniform" pulls towards the best equal weight for all, "zero" towards zero.
        tolerance: stop as soon as the relative residual is this small.
        nonnegative: True replaces rows with negative weights, "clip" sets those to zero, False leaves them.
        hold_count: let the weights add up to about the number of examples seen, as learners need that mix them with new
            examples of weight one; it costs some matching error, which others can save.
        exact: one pick per scan of all candidates instead of several.
        seed: the same seed gives the same memory; that of the embedding, if one is given.
        progress: show progress bars in a terminal.

    Example:
        >>> from recollect import models
        >>> memory = GradientMatching(lambda: models.mlp(2, 2), capacity=5)
        >>> for _ in range(3):
        ...     memory.update(torch.randn(20, 2), torch.arange(20) % 2)
        >>> memory.seen, len(memory)
        (60, 5)
    """

    def __init__(
        self,
        make_model: MakeModel | GradientEmbedding | None,
        capacity: int,
        *,
        loss: str | LossFunction = "cross_entropy",
        inits: int = 10,
        dim: int = 1000,
        layers: str | Sequence[str] = "all",
        projection: ProjectionName | None = "kronecker",
        init: Init = "default",
        init_scale: float = 1.0,
        calibrate: bool = True,
        batch_size: int = 128,
        device: str | torch.device = "cpu",
        shortlist: float | None = SHORTLIST,
        rule: Rule = "least-squares",
        regularization: float = 0.001,
        relative: bool = True,
        center: Center = "uniform",
        tolerance: float | None = None,
        nonnegative: Nonnegative = True,
        hold_count: bool = True,
        exact: bool = False,
        seed: int = 0,
        progress: bool = False,
    ) -> None:
        given = {
            "loss": loss,
            "inits": inits,
            "dim": dim,
            "layers": layers,
            "projection": projection,
            "init": init,
            "init_scale": init_scale,
            "calibrate": calibrate,
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
        self._gradients, self._shortlist = given, shortlist
        shortlisted(torch.arange(0), 1, shortlist, seed)  # says so if that cannot be
        if isinstance(make_model, GradientEmbedding):
            self.embedding: GradientEmbedding | None = make_model
            self._gradients = {name: getattr(make_model, name) for name in given}
            changed = [name for name, value in given.items() if value != _DEFAULTS[name]]
            if changed:
                raise ValueError(f"{changed[0]} must be set where the embedding is made, got it here as well")
            seed = make_model.seed
        else:
            self.embedding = None if make_model is None else GradientEmbedding(make_model, seed=seed, **given)  # type: ignore[arg-type]
        super().__init__(capacity, seed=seed)
        self.progress = progress
        self._prepared: Prepared | None = None  # what the state says of it, at hand

    @property
    def target(self) -> Tensor:
        """The sum of the embeddings of everything seen, in float64."""
        self.batch  # noqa: B018  # says so if there is nothing yet
        return self._state["target"]

    @property
    def error(self) -> float:
        """How far the kept are from the target, relative to it, at the initialisations they were chosen for."""
        self.batch  # noqa: B018
        return float(self._state["error"])

    def update(
        self, inputs: Any, targets: Any, *, model: nn.Module | None = None, candidates: Dictionary | None = None
    ) -> None:
        """Take in examples and decide anew what stays. On any error the memory is as before.

        Args:
            inputs: a tensor, or a dict or tuple of tensors, one row per example.
            targets: one row per example.
            model: not looked at.
            candidates: the embeddings of these examples, as the memory's `embedding.dictionary` gave them.
        """
        held, arrived = self._arriving(inputs, targets)
        self._commit(held, arrived, self.revise(held, arrived, candidates))

    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        return self.revise(held, arrived)

    def revise(self, held: Batch, arrived: Batch, candidates: Dictionary | None = None) -> Choice:
        """Decide what stays of what is held and what arrived; the latter is embedded unless candidates are given."""
        embedding, prepared = self._ready(arrived, candidates is not None)
        rows = shortlisted(arrived.ids.cpu(), self.capacity, self._shortlist, self.seed)
        if candidates is None:
            target, candidates = gather(
                embedding, arrived.inputs, arrived.targets, rows, prepared=prepared, progress=self.progress
            )
        elif len(candidates) != len(arrived):
            raise ValueError(f"candidates must be those of the {len(arrived)} examples, got {len(candidates)}")
        else:
            target, candidates = candidates.sum(), candidates if rows is None else taken(candidates, rows)
        places = torch.arange(len(arrived)) if rows is None else rows
        if len(held):
            kept = {name: self._state[name].to(target.device) for name in ("target", "embeddings")}
            target += kept["target"]  # Alg. 2: g <- g + sum_i g_i
            candidates = Joined(InMemory(kept["embeddings"]), candidates)  # Alg. 2: G <- [C, G]
            places = torch.cat([torch.arange(len(held)), len(held) + places])
        seen = self.seen + len(arrived)
        if seen <= self.capacity:
            chosen, weights, error = torch.arange(len(candidates)), torch.ones(len(candidates)), 0.0
        else:
            size = min(self.capacity, len(candidates))
            coreset = pursue(candidates, size, target=target, count=seen, progress=self.progress, **self._pursuit)
            chosen, order = coreset.indices.cpu().sort()
            weights, error = coreset.weights.cpu()[order], coreset.error
        self._prepared = prepared
        state = {"target": target, "embeddings": candidates.rows(chosen)}
        state["error"] = torch.tensor(error, dtype=torch.float64)
        return Choice(places[chosen], weights, {**state, **prepared.tensors})

    def _ready(self, arrived: Batch, embedded: bool) -> tuple[GradientEmbedding, Prepared]:
        """The embedding and what was decided on the first examples of the stream, which may be these."""
        if self.embedding is None:
            raise ValueError("updating needs make_model, got None: pass it to load_memory")
        if self.seen:
            return self.embedding, self._prepared or self.embedding.restore(self._state)
        if embedded and self.embedding.prepared is None:
            raise ValueError("candidates must be made by the memory's own embedding, which has made none so far")
        prepared = self.embedding.prepared or self.embedding.prepare(arrived.inputs, arrived.targets)
        return self.embedding, prepared

    def options(self) -> dict[str, Any]:
        return plain_options({**self._gradients, "shortlist": self._shortlist, **self._pursuit})


_DEFAULTS: dict[str, Any] = GradientMatching.__init__.__kwdefaults__ or {}
