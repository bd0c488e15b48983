"""The memory of gradient matching: its options, where examples may come from, merging and forgetting."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import reduce
from typing import Any, Self

import torch
from torch import Tensor, nn

from recollect.arrays import as_tensor
from recollect.batch import Batch, check_same_form
from recollect.candidates import SHORTLIST, shortlist_length
from recollect.classes import ClassWeight, check_classes
from recollect.cluster import Load, Piece, connected, in_memory, is_ray_dataset, of_dataset
from recollect.dictionary import Dictionary, remembered, taken, weighted_sum
from recollect.embedding import GradientEmbedding, Init, MakeModel, ProjectionName, ScaleOutputs
from recollect.losses import LossFunction
from recollect.memories.description import plain_options
from recollect.memories.gradient_matching.algorithm import Matching
from recollect.memories.gradient_matching.record import FORGOTTEN, Record, tally_of
from recollect.memories.memory import OWN, TOTAL, Memory
from recollect.numerics import full_precision
from recollect.pursuit import Center, Nonnegative, Rule, check_options
from recollect.sources import Incoming


class GradientMatching(Matching):
    """Keeps a few weighted examples whose loss gradients add up to those of everything seen.

    The target, the sum of all embeddings, is kept exactly, because embeddings depend on random initialisations and not
    on training. Each update chooses among what was kept and what arrived, so old examples can be dropped or reweighted.
    Until the capacity is reached, everything is kept with weight one, or with the weight that it came with.

    A small update, of at most a quarter of the capacity, does not choose at once. Its examples first take free places
    with weight one. When no place is free, a random sample of them stays and represents the rest. When these have taken
    all places, a choice frees a quarter of them again. So after small updates, between three quarters and all of the
    capacity is in use. `rule="inner-product"`, `exact=True`, `class_weight` and `min_per_class` choose at every update.

    `PAPER` holds the paper's settings as keyword arguments.

    Several memories of one stream, of other sizes or settings of the pursuit, may share what takes most of the time:

        embedding = rc.GradientEmbedding(make_model, layers="auto", projection="auto")
        memories = [rc.GradientMatching(embedding, size) for size in (200, 1000)]
        for inputs, targets in stream.batches:
            candidates = embedding.dictionary(inputs, targets)
            for memory in memories:
                memory.update(inputs, targets, candidates=candidates)

    Args:
        make_model: returns a freshly initialised model at each call; or a `GradientEmbedding`, which then decides all
            options of gradients; or None, to read a saved memory.
        capacity: how many examples are kept at most.
        loss: "cross_entropy", "squared_error", "binary_cross_entropy", or a function of outputs and targets that
            returns one loss per example.
        inits: S, the number of initialisations at which gradients are matched.
        dim: d, how many numbers a gradient is reduced to at each initialisation.
        layers: whose gradients are matched: "last" (the last linear layer), "all", names of modules, or "auto": the
            last one where targets are class numbers and the model ends in a linear layer, otherwise all.
        projection: "auto" (None for a last layer whose two factors are no longer than `dim`, otherwise "kronecker"),
            "kronecker", "sparse" (the paper's) or None; see `GradientEmbedding`.
        init: "default", "kaiming_uniform", "kaiming_normal", or a function that redraws a model's parameters.
        init_scale: multiplies the initial parameters.
        calibrate: give fresh BatchNorm layers the statistics of the stream's first examples.
        scale_outputs: scale the outputs of fresh models to the spread of the first targets; "auto" does so for squared
            error.
        batch_size: examples per pass; bounds memory, and changes the result by rounding at most.
        device: where to compute.
        shortlist: how many candidates there are for each place, drawn at random. All examples count in what is
            matched. Later batches get candidates in proportion to their share of everything seen, but at least two for
            each place and a thousand in all. None makes all examples candidates, as in the paper.
        class_weight: how much each class counts, as in scikit-learn: None for as often as it comes, "balanced" for all
            classes the same, or a dict of factors by class. Weights then approximate the sum of all losses times these
            factors, which under "balanced" follow the frequencies of everything seen.
        min_per_class: keep at least this many examples of each class seen; fewer if there is no room.
        rule: "least-squares" picks the row that improves the fit most, "inner-product" as in the paper.
        regularization: lambda, how strongly the weights are pulled towards `center`.
        relative: True makes lambda a multiple of the embeddings' mean squared norm; False is absolute, as in the paper.
        center: "uniform" pulls weights towards the best equal weight for all, "zero" towards zero.
        tolerance: stop as soon as the matching error is this small.
        nonnegative: True replaces rows with negative weights by others, "clip" sets the weights to zero, False leaves
            them.
        hold_count: pull the weights towards adding up to the number of examples seen, or to what they stand for.
            Learners that mix them with new examples of weight one need that. It costs some matching error, and is
            approximate: the weights of a handful of examples, which match little, add up to less.
        exact: scan all candidates for each pick, instead of picking several per scan; slower.
        seed: the same seed gives the same memory; that of the embedding, if one is given.
        progress: show progress bars in a terminal.
        cluster: use a Ray cluster for updates of more examples than a shortlist, and for Ray Datasets: "auto" is the
            cluster that this machine belongs to, or a new local one; otherwise pass its address. What is kept is the
            same. It is not saved with the memory: set `memory.cluster` on one that was loaded.

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
        layers: str | Sequence[str] = "auto",
        projection: ProjectionName | None = "auto",
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
        cluster: str | None = None,
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
        pursuit = {
            "rule": rule,
            "regularization": regularization,
            "relative": relative,
            "center": center,
            "tolerance": tolerance,
            "nonnegative": nonnegative,
            "hold_count": hold_count,
            "exact": exact,
        }
        check_options(**pursuit)
        classes = check_classes(class_weight, min_per_class)
        if shortlist is not None:
            shortlist_length(1, shortlist)  # says so if that cannot be
        self._gradients: dict[str, Any] = given
        if isinstance(make_model, GradientEmbedding):
            embedding: GradientEmbedding | None = make_model
            self._gradients = {name: getattr(make_model, name) for name in given}
            changed = [name for name, value in given.items() if value != _DEFAULTS[name]]
            if changed:
                raise ValueError(f"{changed[0]} must be set where the embedding is made, got it here as well")
            if seed not in (_DEFAULTS["seed"], make_model.seed):
                raise ValueError(f"seed must be set where the embedding is made, {make_model.seed}, got {seed!r} here")
            seed = make_model.seed
        else:
            embedding = None if make_model is None else GradientEmbedding(make_model, seed=seed, **given)  # type: ignore[arg-type]
        super().__init__(
            embedding, capacity, shortlist=shortlist, classes=classes, pursuit=pursuit, seed=seed, progress=progress
        )
        if classes[1] > self.capacity:
            raise ValueError(f"min_per_class must be at most the capacity, {capacity}, got {min_per_class}")
        self.cluster = cluster

    @property
    def cluster(self) -> str | None:
        """The Ray cluster that looks at new examples, "auto" or its address; may be set at any time."""
        return self._cluster

    @cluster.setter
    def cluster(self, cluster: str | None) -> None:
        if cluster is not None and not self._choosing.all_alike:
            raise ValueError(
                "a cluster chooses from all classes alike, got class_weight or min_per_class: leave out cluster"
            )
        if cluster is not None and self._shortlist is None:
            raise ValueError("a cluster chooses from a shortlist, got shortlist=None: leave out cluster")
        self._cluster = cluster

    @property
    def target(self) -> Tensor:
        """The sum of the embeddings of everything seen, each times its weight and its class's factor, in float64."""
        _, waiting = self._divided(self.batch)
        if len(waiting):
            embedding, prepared = self._ready(waiting)
            weights = waiting.weights if waiting.weighted else None
            total = embedding.total(waiting.inputs, waiting.targets, weights=weights, prepared=prepared)
            return total.to(self.device) + self._state.get("target", 0)
        seen, target = tally_of(self._state), self._state["target"]
        return target if seen is None else seen.factors(self._classes[0]).to(target.device) @ target

    def __repr__(self) -> str:
        return super().__repr__() if not self.seen else f"{super().__repr__()[:-1]}, error {self.error:.3g})"

    @property
    def error(self) -> float:
        """How far the kept are from the target, relative to it, at the initialisations they were chosen for.

        It is that of the gradients as they are matched, projected where they are projected;
        `matching_error` measures without projection, at other initialisations. Examples that came since the last choice
        and hold free places with weight one are matched by themselves.
        """
        chosen, _ = self._divided(self.batch)
        if "error" in self._state:
            return float(self._state["error"])
        target, rows = self._state["target"], remembered(self._state, self.device)
        found = weighted_sum(rows, torch.arange(len(chosen)), chosen.weights.double())
        return float((found - target).norm() / target.norm())

    @full_precision()
    def update(
        self,
        inputs: Any,
        targets: Any = None,
        *,
        target: str | None = None,
        model: nn.Module | None = None,
        weights: Any = None,
        candidates: Dictionary | None = None,
    ) -> None:
        """Take in examples, and choose again what to keep. On any error the memory is as before.

        A dataset, a loader or an iterable of batches is one update, as if all of it arrived at once; with a shortlist,
        it is looked at once and never held whole.

        Args:
            inputs: a tensor, an array or a table, or a dict or tuple of them, one row per example; or, without
                `targets`, a torch dataset, a loader, or an iterable of batches (inputs, targets); or, where there is a
                cluster, a Ray Dataset.
            targets: one per example, such as class numbers; left out if the inputs have them.
            target: the name of the targets, if they are an entry of each dict or a column of the table.
            model: not used.
            weights: how many examples each one represents, such as the weights of another memory's `batch`; one by
                default. An example of weight zero counts as seen and is never kept.
            candidates: the embeddings of these examples, as the memory's `embedding.dictionary` gave them.
        """
        if is_ray_dataset(inputs):
            if weights is not None:
                raise ValueError("weights must come with examples that are there whole, got a Ray Dataset")
            self._update_elsewhere(lambda: of_dataset(inputs, target))
            return
        source = self._source(inputs, targets, target, weights, model)
        elsewhere = self.cluster is not None and candidates is None and weights is None
        if elsewhere and isinstance(source, tuple) and len(source[1]) > self._limit(len(source[1])):
            _, arrived = self._beside_held(Batch.arriving(*source))  # they are more than the candidates among them
            self._update_elsewhere(lambda: in_memory(arrived))
            return
        in_passing = candidates is None and self._shortlist is not None and self._choosing.all_alike
        if isinstance(source, Incoming) and in_passing:
            self._take_stream(source)
            return
        arriving = self._arriving(source, weights)
        if candidates is not None:
            if not hasattr(candidates, "products"):
                got = type(candidates).__name__
                raise ValueError(f"candidates must be what the memory's embedding.dictionary returned, got {got}")
            if len(candidates) != len(arriving):
                raise ValueError(f"candidates must be those of the {len(arriving)} examples, got {len(candidates)}")
            if not bool(arriving.weights.all()):
                candidates = taken(candidates, arriving.weights.nonzero()[:, 0].cpu())
        held, arrived = self._beside_held(arriving if weights is None else arriving.counted())
        self._take_in(held, arrived, len(arriving), candidates)

    def _update_elsewhere(self, cut: Callable[[], tuple[list[Piece], Load]]) -> None:
        if self.cluster is None:
            raise ValueError("a Ray Dataset needs the cluster that it is on, got none: pass cluster='auto'")
        with connected(self.cluster) as processors:
            self.take_pieces(*cut(), processors)

    @full_precision()
    def merge(self, other: Memory) -> Self:
        """A memory of what both have seen, of this one's capacity: data that was not kept is not needed.

        The target is the sum of both, the candidates are what both hold. The other stream's ids follow this one's, so
        `id - self.seen` is its own. Both must have the same draws: the same options of gradients, seed and `make_model`
        (and, where BatchNorm layers or outputs are scaled by the first examples, the same prepared embedding).
        """
        if not isinstance(other, GradientMatching):
            raise ValueError(f"gradient matching can be merged with gradient matching, got {type(other).__name__}")
        if not other.seen:
            return copy(self)
        parts = [memory._record(self.device) for memory in (self, other) if memory.seen]
        if not self._matches_like(other) or not parts[0].drawn_like(parts[-1]):
            raise ValueError(
                "memories to be merged must have the same draws and classes, got others: give both the same make_model "
                "and options, and one prepared embedding where it depends on the first examples"
            )
        later = parts.pop()
        parts.append(replace(later, held=replace(later.held, ids=later.held.ids + self.seen)))
        both = reduce(Record.plus, parts)
        pool = both.pool()
        if self.seen + other.seen <= self.capacity:
            coreset = self._choosing.everything(pool, both.own, both.seen)
        else:
            total = self.total_weight + other.total_weight
            coreset = self._choosing.fitted(pool, total, both.seen, self.capacity)
        none = torch.empty(0, dtype=torch.long)
        gone = [m._state.get(FORGOTTEN, none).to(self.device) for m in (self, other)]
        known = {**both.draws, FORGOTTEN: torch.cat([gone[0], gone[1] + self.seen])}
        merged, choice = copy(self), pool.choice(coreset, both.seen, known)
        arrived = replace(both.held, weights=both.own)  # all of them, as if they came now
        merged._commit(arrived.take(torch.arange(0)), arrived, choice, other.seen, other.total_weight)
        return merged

    def _matches_like(self, other: "GradientMatching") -> bool:
        """Whether embeddings of both may be added up."""
        options = [
            plain_options({k: v for k, v in m._gradients.items() if k not in ("batch_size", "device")})
            for m in (self, other)
        ]
        return (self.seed, self._classes, options[0]) == (other.seed, other._classes, options[1])

    @full_precision()
    def forget(self, ids: Any, inputs: Any = None, targets: Any = None, *, weights: Any = None) -> Tensor:
        """Remove examples that must be deleted, and take their gradients, as they came, out of the target.

        The weights of those that stay are fitted anew. Of an example that is no longer held nothing is known but its
        part of the target: to take that out too, pass the examples themselves. What was taken out once is not taken out
        again. Returns the ids that were not held, and not forgotten before. On any error the memory is as before.

        Args:
            ids: places in the stream, as in `batch.ids`.
            inputs: the examples with these ids, in their order, if some are not held.
            targets: one row per example.
            weights: with which these examples came, if not with one.
        """
        wanted = self._check_ids(ids)
        before = self._state.get(FORGOTTEN, wanted[:0])
        missing = wanted[~torch.isin(wanted, torch.cat([self.batch.ids, before]))]
        settled, gone = self._settled(), wanted[torch.isin(wanted, self.batch.ids)]
        others: tuple[Batch, Dictionary] | None = None
        if inputs is not None and len(missing):
            given = Batch.arriving(inputs, targets, weights=weights).to(self.device)
            order = self._check_given(ids, given)
            other = given.take(torch.isin(order, missing).nonzero()[:, 0])
            embedding, prepared = self._ready(other)
            others = other, embedding.dictionary(other.inputs, other.targets, prepared=prepared)
            gone = wanted[torch.isin(wanted, before, invert=True)]
        left, lost = settled._record(self.device).without(wanted, others)
        pool, total = left.pool(), max(float(self._total_without(lost)), float(left.own.sum()))
        if self.seen > self.capacity:
            coreset = self._choosing.fitted(pool, total, left.seen, len(left.held))
        else:
            coreset = self._choosing.everything(pool, left.own, left.seen)
        choice = pool.choice(coreset, left.seen, settled._state)
        kept = replace(left.held.take(choice.indices), weights=choice.weights.to(self.device, torch.float32))
        state = {**choice.state, TOTAL: torch.tensor(total, dtype=torch.float64).to(self.device)}
        state[FORGOTTEN] = torch.cat([before, gone]).sort().values
        if OWN in state:
            state[OWN] = left.own[choice.indices.to(self.device)]
        self._batch, self._state = kept, state
        return missing

    def _check_given(self, ids: Any, given: Batch) -> Tensor:
        check_same_form(self.batch, given)
        order = as_tensor(ids, "ids").long().to(self.device)
        if len(order) != len(given):
            raise ValueError(f"inputs must be those of the {len(order)} ids, got {len(given)}")
        if len(order.unique()) < len(order):
            raise ValueError("ids must differ where their examples are passed, got some twice: pass each once")
        return order

    def options(self) -> dict[str, Any]:
        weight, least = self._classes
        plain = {str(label): factor for label, factor in weight.items()} if isinstance(weight, Mapping) else weight
        classes = {"class_weight": plain, "min_per_class": least}
        return plain_options({**self._gradients, "shortlist": self._shortlist, **classes, **self._pursuit})


_DEFAULTS: dict[str, Any] = GradientMatching.__init__.__kwdefaults__ or {}
