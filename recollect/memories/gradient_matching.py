"""Continual gradient matching (Alg. 2)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recollect.batch import Batch
from recollect.classes import (
    COUNTED,
    ClassWeight,
    Tally,
    check_classes,
    class_labels,
    pursue_classes,
    sums_by_class,
    warn_of_lost_classes,
)
from recollect.dictionary import Dictionary, InMemory, Joined, taken
from recollect.embedding import GradientEmbedding, Init, MakeModel, Prepared, ProjectionName, ScaleOutputs
from recollect.losses import LossFunction, cross_entropy, get_loss
from recollect.memories.memory import Choice, Memory, plain_options
from recollect.onepass import Arrivals, one_pass
from recollect.pursuit import Center, Coreset, Nonnegative, Rule, pursue
from recollect.selection import SHORTLIST, gather, shortlist_length, shortlisted
from recollect.sources import Stream, examples_of

ROOM = 3
"""One of so many places is left free for what comes next, where examples come a few at a time."""


class GradientMatching(Memory):
    """Keeps the weighted examples whose loss gradients add up to those of everything seen.

    The target, the sum of all embeddings, is tracked exactly, because embeddings depend on the
    initialisation distribution and not on training. The dictionary at each step is what was kept and what arrived,
    so old examples can be dropped or reweighted. Until the capacity is reached, everything is kept with weight one.

    Examples that come a few at a time, at most a third of the capacity, do not cost a choice each. They take free
    places, with weight one, and when there are none left, a choice leaves a third of them free again. So after small
    updates between two thirds and all of the capacity is held. `rule="inner-product"`, `exact=True` and options of
    classes choose at every update.

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
        scale_outputs: let the draws' outputs vary as the targets of the first examples do; "auto" for squared error.
        batch_size: examples per pass; bounds memory and changes nothing else.
        device: where to compute.
        shortlist: how many arriving examples per kept one are candidates, drawn at random; all of them count in what is
            to be matched. None considers all, as in the paper.
        class_weight: how much each class counts, as in scikit-learn: None as often as it comes, "balanced" all the
            same, or a dict of factors by class. Weights then approximate the sum of all losses times these factors,
            which under "balanced" follow the frequencies of everything seen.
        min_per_class: so many examples of each class seen stay, whatever matching says; fewer if there is no room.
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
        scale_outputs: ScaleOutputs = "auto",
        batch_size: int = 128,
        device: str | torch.device = "cpu",
        shortlist: float | None = SHORTLIST,
        class_weight: ClassWeight | None = None,
        min_per_class: int = 0,
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
            "scale_outputs": scale_outputs,
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
        self._classes = check_classes(class_weight, min_per_class)
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
        if self._classes[1] > self.capacity:
            raise ValueError(f"min_per_class must be at most the capacity, {capacity}, got {min_per_class}")
        self.progress = progress
        self._prepared: Prepared | None = None  # what the state says of it, at hand

    @property
    def target(self) -> Tensor:
        """The sum of the embeddings of everything seen, each times the factor of its class, in float64."""
        _, waiting = self._divided(self.batch)
        if len(waiting):
            embedding, prepared = self._ready(waiting)
            total = embedding.total(waiting.inputs, waiting.targets, prepared=prepared)
            return total.to(self.device) + self._state.get("target", 0)
        seen, target = self._seen_classes(), self._state["target"]
        return target if seen is None else seen.factors(self._classes[0]).to(target.device) @ target

    @property
    def error(self) -> float:
        """How far the kept are from the target, relative to it, at the initialisations they were chosen for.

        As of the last choice: examples that wait for the next one are matched by themselves.
        """
        self.batch  # noqa: B018
        return float(self._state["error"])

    def update(
        self,
        inputs: Any,
        targets: Any = None,
        *,
        target: str | None = None,
        model: nn.Module | None = None,
        candidates: Dictionary | None = None,
    ) -> None:
        """Take in examples and decide anew what stays. On any error the memory is as before.

        A dataset, a loader or an iterable of batches is one update, as if all of it arrived at once; with a shortlist,
        it is looked at once and never held whole.

        Args:
            inputs: a tensor, an array or a table, or a dict or tuple of them, one row per example; or, without
                `targets`, a torch dataset, a loader, or an iterable of batches (inputs, targets).
            targets: one row per example, unless the inputs have them.
            target: the name of the targets, where they are an entry of each dict or a column of the table.
            model: not looked at.
            candidates: the embeddings of these examples, as the memory's `embedding.dictionary` gave them.
        """
        source = examples_of(inputs, targets, target)
        in_passing = candidates is None and self._shortlist is not None and self._classes == (None, 0)
        if isinstance(source, Stream) and in_passing:
            arrivals = self._pass_over(source)
            held, arrived = self._beside_held(arrivals.candidates)
            self._commit(held, arrived, self.revise(held, arrived, arrivals=arrivals), arrivals.count)
        else:
            held, arrived = self._beside_held(self._arriving(source))
            self._commit(held, arrived, self.revise(held, arrived, candidates))

    def _pass_over(self, stream: Stream) -> Arrivals:
        """Look at each example once, on the way in."""
        embedding, prepared = self._known()
        return one_pass(
            embedding,
            stream.batches(self.seen, like=self._batch),
            shortlist_length(self.capacity, self._shortlist),
            seed=self.seed,
            length=stream.length,
            prepared=prepared,
            progress=self.progress,
        )

    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        return self.revise(held, arrived)

    def revise(
        self, held: Batch, arrived: Batch, candidates: Dictionary | None = None, *, arrivals: Arrivals | None = None
    ) -> Choice:
        """Decide what stays of what is held and what arrived.

        What arrived is embedded unless candidates are given; it may be some of those that passed, the `arrivals`.
        """
        embedding, prepared = self._ready(arrived, candidates is not None, arrivals)
        if candidates is not None and len(candidates) != len(arrived):
            raise ValueError(f"candidates must be those of the {len(arrived)} examples, got {len(candidates)}")
        count = arrivals.count if arrivals else len(arrived)
        room = self._room(count)
        if room and candidates is None and len(held) + count <= self.capacity:
            return self._let_wait(held, arrived, embedding, prepared)
        held, waiting = self._divided(held)
        if len(waiting) and candidates is None and arrivals is None:  # as if they came now
            waiting, arrived = waiting.take(torch.arange(0)), waiting.followed_by(arrived)
            if not len(held) and embedding.prepared is None:  # no gradient has been looked at: all of them decide
                prepared = embedding.prepare(arrived.inputs, arrived.targets)
        labels, seen = self._count(arrived)
        by_class: dict[str, Any] = {"labels": labels, "seen": seen, "classes": self._classes}
        rows = None
        if arrivals is None:
            rows = shortlisted(arrived.ids.cpu(), self.capacity, self._shortlist, self.seed, **by_class)
        if arrivals is not None:
            target, candidates = arrivals.gathered(embedding, progress=self.progress)
        elif candidates is None:
            options: dict[str, Any] = {"labels": labels, "prepared": prepared, "progress": self.progress}
            target, candidates = gather(embedding, arrived.inputs, arrived.targets, rows, **options)
        else:
            target = candidates.sum() if labels is None else sums_by_class(candidates, labels)
            candidates = candidates if rows is None else taken(candidates, rows)
        places = torch.arange(len(arrived)) if rows is None else rows
        if len(waiting):
            others = embedding.dictionary(waiting.inputs, waiting.targets, prepared=prepared)
            target, candidates = target + others.sum(), Joined(others, candidates)
            places = torch.cat([torch.arange(len(waiting)), len(waiting) + places])
            arrived = waiting.followed_by(arrived)
        if seen is not None and labels is not None:
            target = seen.spread(target, Tally.of(labels))
        if len(held):
            kept = {name: self._state[name].to(target.device) for name in ("target", "embeddings")}
            before = self._seen_classes()
            # Alg. 2: g <- g + sum_i g_i
            target += kept["target"] if seen is None or before is None else seen.spread(kept["target"], before)
            candidates = Joined(InMemory(kept["embeddings"]), candidates)  # Alg. 2: G <- [C, G]
            places = torch.cat([torch.arange(len(held)), len(held) + places])
        targets = torch.cat([held.targets, arrived.targets]).cpu()
        coreset = self._pursue(candidates, targets[places], target, self.seen + count, seen, self.capacity - room)
        chosen, order = coreset.indices.cpu().sort()
        if seen is not None or get_loss(embedding.loss) is cross_entropy:
            everybody = torch.cat([targets, arrivals.classes.cpu()]) if arrivals else targets
            warn_of_lost_classes(everybody, targets[places[chosen]])
        self._prepared = prepared
        state = {"target": target, "embeddings": candidates.rows(chosen)}
        state["error"] = torch.tensor(coreset.error, dtype=torch.float64)
        if seen is not None:
            state |= {"classes": seen.classes, "counts": seen.counts}
        return Choice(places[chosen], coreset.weights.cpu()[order], {**state, **prepared.tensors})

    def _room(self, n: int) -> int:
        """How many places are left free after a choice for which n examples came: some, if they come a few at a time.

        So that not each of many small updates must choose anew. None are where picks are to be the paper's, or classes
        have weights and places of their own.
        """
        patient = self._pursuit["rule"] == "least-squares" and not self._pursuit["exact"] and self._classes == (None, 0)
        room = self.capacity // ROOM
        return room if patient and n <= room else 0

    def _divided(self, held: Batch) -> tuple[Batch, Batch]:
        """What has been chosen, and what came since and waits for the next choice."""
        waiting = int(self._state.get("waiting", 0))
        places = torch.arange(len(held))
        return held.take(places[: len(held) - waiting]), held.take(places[len(held) - waiting :])

    def _let_wait(self, held: Batch, arrived: Batch, embedding: GradientEmbedding, prepared: Prepared) -> Choice:
        """Keep all that arrived with weight one, without a look at its gradients until the next choice."""
        embedding.check(arrived.inputs, arrived.targets, prepared)
        self._prepared = prepared
        state = {"error": torch.zeros((), dtype=torch.float64), **prepared.tensors, **self._state}
        state["waiting"] = self._state.get("waiting", torch.tensor(0)) + len(arrived)
        return Choice(torch.arange(len(held) + len(arrived)), torch.cat([held.weights, arrived.weights]), state)

    def _pursue(
        self, candidates: Dictionary, targets: Tensor, target: Tensor, count: int, seen: Tally | None, places: int
    ) -> Coreset:
        """Choose out of candidates with these targets, after so many examples; all of them while there is room."""
        if count <= self.capacity:
            indices = torch.arange(len(candidates))
            weights = torch.ones(len(candidates))
            if seen is not None:
                weights = seen.factors(self._classes[0])[seen.places(targets.long())]
            return Coreset(indices, weights, 0.0)
        size, options = min(places, len(candidates)), {**self._pursuit, "progress": self.progress}
        if seen is None:
            return pursue(candidates, size, target=target, count=count, **options)
        return pursue_classes(candidates, targets.long(), size, seen, target, self._classes, **options)

    def _count(self, arrived: Batch) -> tuple[Tensor | None, Tally | None]:
        """The classes of what arrived, and how many of each were seen with it; None if classes do not matter."""
        if self._classes == (None, 0):
            return None, None
        labels = class_labels(arrived.targets, COUNTED).cpu()
        before, now = self._seen_classes(), Tally.of(labels)
        return labels, now if before is None else before.plus(now)

    def _seen_classes(self) -> Tally | None:
        if "classes" not in self._state:
            return None
        return Tally(self._state["classes"].cpu(), self._state["counts"].cpu())

    def _ready(
        self, arrived: Batch, embedded: bool = False, arrivals: Arrivals | None = None
    ) -> tuple[GradientEmbedding, Prepared]:
        """The embedding and what was decided on the first examples of the stream, which may be these."""
        embedding, prepared = self._known()
        if prepared is None and embedded:
            raise ValueError("candidates must be made by the memory's own embedding, which has made none so far")
        if arrivals is not None:
            return embedding, arrivals.prepared
        return embedding, prepared or embedding.prepare(arrived.inputs, arrived.targets)

    def _known(self) -> tuple[GradientEmbedding, Prepared | None]:
        """The embedding, and what has been decided so far."""
        if self.embedding is None:
            raise ValueError("updating needs make_model, got None: pass it to load_memory")
        if self.seen:
            return self.embedding, self._prepared or self.embedding.restore(self._state)
        return self.embedding, self.embedding.prepared

    def options(self) -> dict[str, Any]:
        weight, least = self._classes
        plain = {str(label): factor for label, factor in weight.items()} if isinstance(weight, Mapping) else weight
        classes = {"class_weight": plain, "min_per_class": least}
        return plain_options({**self._gradients, "shortlist": self._shortlist, **classes, **self._pursuit})


_DEFAULTS: dict[str, Any] = GradientMatching.__init__.__kwdefaults__ or {}
