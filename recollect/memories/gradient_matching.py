"""Continual gradient matching (Alg. 2)."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, Self

import torch
from torch import Tensor, nn

from recollect.batch import Batch, check_same_form
from recollect.classes import (
    COUNTED,
    ClassWeight,
    Tally,
    check_classes,
    class_labels,
    pursue_classes,
    warn_of_lost_classes,
)
from recollect.cluster import (
    Load,
    Piece,
    as_it_is,
    connected,
    fetched,
    in_memory,
    is_ray_dataset,
    look_over,
    of_dataset,
)
from recollect.dictionary import (
    Dictionary,
    joined,
    losses_of,
    remembered,
    remembering_more,
    taken,
    to_remember,
    weighted_sum,
)
from recollect.embedding import GradientEmbedding, Init, MakeModel, Prepared, ProjectionName, ScaleOutputs
from recollect.losses import LossFunction, cross_entropy, get_loss
from recollect.memories.memory import OWN, TOTAL, Choice, Memory, plain_options
from recollect.numerics import full_precision
from recollect.onepass import Arrivals, one_pass
from recollect.pursuit import Center, Coreset, Nonnegative, Rule, pursue
from recollect.randomness import uniform_keys
from recollect.selection import SHORTLIST, gather, shortlist_length, shortlisted, total_of
from recollect.sources import Stream
from recollect.standouts import with_standouts

LEAST = 2.0
"""Candidates for each place among those that arrive, however few they are beside what has been seen."""

FEWEST = 1000
"""Candidates at least among those that arrive, as far as the shortlist goes: so few cost next to nothing, and a small
memory of classes that come one after the other needs them."""

ROOM = 4
"""One of so many places is left free for what comes next, where examples come a few at a time."""

DRAWN = 4.0
"""How many candidates there are for each place, over all that have come, where they come a few at a time."""


class GradientMatching(Memory):
    """Keeps the weighted examples whose loss gradients add up to those of everything seen.

    The target, the sum of all embeddings, is tracked exactly, because embeddings depend on the
    initialisation distribution and not on training. The dictionary at each step is what was kept and what arrived,
    so old examples can be dropped or reweighted. Until the capacity is reached, everything is kept with weight one, or
    with the weight that it came with: such an example counts so often in the target, and is so much likelier to be a
    candidate.

    Examples that come a few at a time, at most a quarter of the capacity, do not cost a choice each. They take free
    places, with weight one. When there are none left, all of them count in the target, and those that are candidates by
    a shortlist of the whole stream stay, to stand for the others; when these have taken the free places, a choice
    leaves a quarter of all places free again. So after small updates between three quarters and all of it is held.
    `rule="inner-product"`, `exact=True` and options of classes choose at every update.

    `PAPER` holds the paper's settings as keyword arguments.

    Several memories of one stream, of other sizes or settings of the pursuit, may share what takes most of the time:

        embedding = rc.GradientEmbedding(make_model, layers="auto", projection="auto")
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
        layers: which parameters' gradients: "last" (the last linear layer), "all", names of modules, or "auto": the
            last one where targets are class numbers and the model ends in a linear layer, otherwise all.
        projection: "auto" (None for a last layer whose two factors are no longer than `dim`, otherwise "kronecker"),
            "kronecker", "sparse" (the paper's) or None; see `GradientEmbedding`.
        init: "default", "kaiming_uniform", "kaiming_normal", or a function that redraws a model's parameters.
        init_scale: multiplies what was drawn.
        calibrate: give fresh BatchNorm layers the statistics of the stream's first examples.
        scale_outputs: let the draws' outputs vary as the targets of the first examples do; "auto" for squared error.
        batch_size: examples per pass; bounds memory and changes nothing else, but for rounding.
        device: where to compute.
        shortlist: how many candidates are drawn at random for each place; all examples count in what is to be matched.
            Of those that arrive later so many are drawn as they are a part of everything seen, but two for each place
            and a thousand at least. None considers all, as in the paper.
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
        hold_count: let the weights add up to about the number of examples seen, or to what they stand for, as learners
            need that mix them with new examples of weight one; it costs some matching error, which others can save.
            It is a pull and not a promise: a handful of examples, which match little, add up to less.
        exact: one pick per scan of all candidates instead of several.
        seed: the same seed gives the same memory; that of the embedding, if one is given.
        progress: show progress bars in a terminal.
        cluster: let the workers of a Ray cluster look at examples that are more than a shortlist, or a Ray Dataset:
            "auto" for the cluster that this machine belongs to, or one of its own, otherwise an address. What is kept
            is the same. It is not saved with the memory: set `memory.cluster` on one that was loaded.

    Example:
        >>> from recollect import models
        >>> memory = GradientMatching(lambda: models.mlp(2, 2), capacity=5)
        >>> for _ in range(3):
        ...     memory.update(torch.randn(20, 2), torch.arange(20) % 2)
        >>> memory.seen, len(memory)
        (60, 5)
    """

    counts_weights = True

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
        self.progress, self.cluster = progress, cluster
        if cluster is not None and (shortlist is None or self._classes != (None, 0)):
            got = "no shortlist" if shortlist is None else "class_weight or min_per_class"
            raise ValueError(f"a cluster chooses from a shortlist of all classes alike, got {got}: leave out cluster")
        self._prepared: Prepared | None = None  # what the state says of it, at hand

    @property
    def target(self) -> Tensor:
        """The sum of the embeddings of everything seen, each times its weight and its class's factor, in float64."""
        _, waiting = self._divided(self.batch)
        if len(waiting):
            embedding, prepared = self._ready(waiting)
            weights = waiting.weights if waiting.weighted else None
            total = embedding.total(waiting.inputs, waiting.targets, weights=weights, prepared=prepared)
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
        """Take in examples and decide anew what stays. On any error the memory is as before.

        A dataset, a loader or an iterable of batches is one update, as if all of it arrived at once; with a shortlist,
        it is looked at once and never held whole.

        Args:
            inputs: a tensor, an array or a table, or a dict or tuple of them, one row per example; or, without
                `targets`, a torch dataset, a loader, or an iterable of batches (inputs, targets); or, where there is a
                cluster, a Ray Dataset.
            targets: one row per example, unless the inputs have them.
            target: the name of the targets, where they are an entry of each dict or a column of the table.
            model: not looked at.
            weights: how many each example stands for, where they already stand for several, as the `batch` of another
                memory; one each by default. Those that stand for none are seen, and not kept.
            candidates: the embeddings of these examples, as the memory's `embedding.dictionary` gave them.
        """
        if is_ray_dataset(inputs):
            if weights is not None:
                raise ValueError("weights must come with examples that are there whole, got a Ray Dataset")
            self._update_elsewhere(lambda: of_dataset(inputs, target))
            return
        source = self._source(inputs, targets, target, weights)
        elsewhere = self.cluster is not None and candidates is None and weights is None
        if elsewhere and isinstance(source, tuple) and self._are_many(source[1]):
            _, arrived = self._beside_held(Batch.arriving(*source))
            self._update_elsewhere(lambda: in_memory(arrived))
            return
        in_passing = candidates is None and self._shortlist is not None and self._classes == (None, 0)
        if isinstance(source, Stream) and in_passing:
            self._take_arrivals(self._pass_over(source))
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

    def _take_in(self, held: Batch, arrived: Batch, count: int, candidates: Dictionary | None = None) -> None:
        """Let what arrived wait, if there is room, or choose; so many were seen."""
        if candidates is None and self._has_room(len(held), len(arrived)):
            self._let_wait(held, arrived, count)
        else:
            self._commit(held, arrived, self.revise(held, arrived, candidates), count)

    def _take_arrivals(self, arrivals: Arrivals) -> None:
        held, arrived = self._beside_held(arrivals.candidates)
        if self._has_room(len(held), arrivals.count):
            self._let_wait(held, arrived, arrivals.count, arrivals)
        else:
            choice = self.revise(held, arrived, arrivals=arrivals)
            self._commit(held, arrived, choice, arrivals.count, arrivals.count)

    def _pass_over(self, stream: Stream) -> Arrivals:
        """Look at each example once, on the way in."""
        embedding, prepared = self._known()
        return one_pass(
            embedding,
            stream.batches(self.seen, like=self._batch),
            shortlist_length(self.capacity, self._shortlist),
            fewer=self._limit,
            seed=self.seed,
            length=stream.length,
            prepared=prepared,
            progress=self.progress,
        )

    def _are_many(self, targets: Tensor) -> bool:
        """Whether not all of them are candidates; if all are, they must be here anyway."""
        return len(targets) > self._limit(len(targets))

    def _limit(self, count: int) -> int:
        """How many of so many examples that arrive are candidates at most."""
        return shortlist_length(self.capacity, self._shortlist_for(count, self.total_weight + count))

    def _shortlist_for(self, arrived: float, total: float) -> float | None:
        """How many candidates there are for each place, where what arrived is so much of everything up to then.

        As many as `shortlist` says for each place that they may take in the end: examples that are a tenth of all stand
        for a tenth of it. All of them where classes have weights and places of their own.
        """
        if self._shortlist is None or self._classes != (None, 0):
            return self._shortlist
        least = max(LEAST, FEWEST / self.capacity)
        return max(min(self._shortlist, least), self._shortlist * arrived / (total or 1.0))

    def _update_elsewhere(self, cut: Callable[[], tuple[list[Piece], Load]]) -> None:
        if self.cluster is None:
            raise ValueError("a Ray Dataset needs the cluster that it is on, got none: pass cluster='auto'")
        with connected(self.cluster) as processors:
            self.take_pieces(*cut(), processors)

    def take_pieces(self, pieces: Sequence[Piece], load: Load, processors: int) -> None:
        """As `update`, of examples that the workers of the cluster that is connected look at, wherever they are.

        Args:
            pieces: the examples, in order.
            load: makes examples of what a piece says.
            processors: how many the cluster has.
        """
        before, waiting = self._before_those_that_wait()
        count = len(waiting) + sum(piece.rows for piece in pieces)
        limit = before._limit(count)
        if count <= limit:  # all are candidates: they come here anyway
            held, arrived = self._beside_held(fetched(pieces, load, self.seen))
            self._take_in(held, arrived, len(arrived))
            return
        if len(waiting):  # as if they came now
            pieces, load = [Piece(waiting, len(waiting)), *pieces], partial(as_it_is, load)
        embedding, prepared = before._known()
        options: dict[str, Any] = {"seed": self.seed, "processors": processors, "progress": self.progress}
        arrivals = look_over(embedding, pieces, load, limit, first_id=before.seen, prepared=prepared, **options)
        before._take_arrivals(arrivals)
        self._batch, self._state, self.seen = before._batch, before._state, before.seen
        self._prepared = before._prepared

    def _before_those_that_wait(self) -> tuple[Self, Batch]:
        """A copy as it was before those came that wait for a choice, and these.

        Not if examples came with weights, which workers do not know of: then those that wait are left to the choice.
        """
        before = copy(self)
        if not len(self) or OWN in self._state:
            return before, Batch(torch.empty(0), torch.empty(0), torch.empty(0), torch.empty(0))
        chosen, waiting = self._divided(self.batch)
        before._batch, before.seen = chosen if len(chosen) else None, self.seen - len(waiting)
        before._state = {name: value for name, value in self._state.items() if name != "waiting"}
        if TOTAL in before._state:
            before._state[TOTAL] = self._total_without(len(waiting))
        return before, waiting

    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        return self.revise(held, arrived)

    def revise(
        self, held: Batch, arrived: Batch, candidates: Dictionary | None = None, *, arrivals: Arrivals | None = None
    ) -> Choice:
        """Decide what stays of what is held and what arrived (Alg. 2).

        What arrived is embedded unless candidates are given; it may be some of those that passed, the `arrivals`.
        """
        embedding, prepared = self._ready(arrived, candidates is not None, arrivals)
        count = arrivals.count if arrivals else len(arrived)
        room = self._room(count)
        total = self.total_weight + arrivals.count if arrivals else self._total(arrived)
        held, waiting = self._divided(held)
        if len(waiting) and candidates is None and arrivals is None:  # as if they came now
            waiting, arrived = waiting.take(torch.arange(0)), waiting.followed_by(arrived)
            if not len(held) and embedding.prepared is None:  # no gradient has been looked at: all of them decide
                prepared = embedding.prepare(arrived.inputs, arrived.targets)
        if room and candidates is None and arrivals is None:
            thinned = self._thinned(held, arrived, embedding, prepared, total)
            if thinned is not None:
                return thinned
        labels, seen = self._count(arrived)
        if arrivals is None:
            pool = self._gathered(arrived, candidates, embedding, prepared, labels, seen, total)
        else:
            pool = _Pool.of(arrived, *arrivals.gathered(embedding, progress=self.progress))
        if len(waiting):
            others = embedding.dictionary(waiting.inputs, waiting.targets, prepared=prepared)
            pool = pool.behind(waiting, total_of(others, waiting.weights if waiting.weighted else None), others)
        if "target" in self._state:
            pool = pool.behind(held, *self._remembered(pool.target.device, seen))
        if self.seen + count <= self.capacity:
            coreset = self._everything(pool, self._own(held, waiting.followed_by(arrived)), seen)
        else:
            coreset = self._fitted(pool, total, seen, self.capacity - room)
        choice = pool.choice(coreset, seen, prepared.tensors)
        if seen is not None or get_loss(embedding.loss) is cross_entropy:
            passed = pool.targets[:0] if arrivals is None else arrivals.classes.cpu()
            warn_of_lost_classes(torch.cat([pool.targets, passed]), pool.targets[choice.indices], self._classes[1])
        self._prepared = prepared
        return choice

    def _gathered(
        self,
        arrived: Batch,
        candidates: Dictionary | None,
        embedding: GradientEmbedding,
        prepared: Prepared,
        labels: Tensor | None,
        seen: Tally | None,
        total: float,
    ) -> "_Pool":
        """What arrived: the sum of its embeddings, and those on the shortlist, or standing out, as candidates."""
        weights = arrived.weights.to(embedding.device) if arrived.weighted else None
        about: dict[str, Any] = {"weights": weights, "labels": labels}
        shortlist = self._shortlist_for(float(arrived.weights.sum(dtype=torch.float64)), total)
        rows = shortlisted(
            arrived.ids.cpu(), self.capacity, shortlist, self.seed, seen=seen, classes=self._classes, **about
        )
        if candidates is None:
            options = {**about, "prepared": prepared, "progress": self.progress}
            target, candidates, rows = gather(embedding, arrived.inputs, arrived.targets, rows, **options)
        else:
            target = total_of(candidates, **about)
            if rows is not None:
                rows = with_standouts(rows, losses_of(candidates))
                candidates = taken(candidates, rows)
        if seen is not None and labels is not None:
            target = seen.spread(target, Tally.of(labels))
        return _Pool.of(arrived, target, candidates, rows)

    def _remembered(self, device: torch.device, seen: Tally | None) -> tuple[Tensor, Dictionary]:
        """The sum of all embeddings up to now, by all classes seen where they matter, and those of the chosen."""
        target, before = self._state["target"].to(device), self._seen_classes()
        spread = target if seen is None or before is None else seen.spread(target, before)
        return spread, remembered(self._state, device)

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
        parts = [memory._settled() for memory in (self, other) if memory.seen]
        about = [{name: value for name, value in m._state.items() if name not in _ITS_OWN} for m in parts]
        if not self._matches_like(other) or not _same_tensors(about[0], about[-1]):
            raise ValueError(
                "memories to be merged must have the same draws and classes, got others: give both the same make_model "
                "and options, and one prepared embedding where it depends on the first examples"
            )
        later = parts[-1].batch.to(self.device)
        both = replace(later, ids=later.ids + self.seen)
        if self.seen:
            check_same_form(parts[0].batch, later)
            both = parts[0].batch.followed_by(both)
        tallies = [tally for m in parts if (tally := m._seen_classes()) is not None]
        seen = reduce(Tally.plus, tallies) if tallies else None
        targets = [m._state["target"].to(self.device) for m in parts]
        if seen is not None:
            targets = [seen.spread(g, tally) for g, tally in zip(targets, tallies, strict=True)]
        rows = reduce(joined, (remembered(m._state, self.device) for m in parts))
        pool = _Pool.of(both, sum(targets[1:], targets[0]), rows)
        nothing = both.take(torch.arange(0))
        own = torch.cat([m._own(m.batch, nothing).to(self.device) for m in parts])
        if self.seen + other.seen <= self.capacity:
            coreset = self._everything(pool, own, seen)
        else:
            coreset = self._fitted(pool, self.total_weight + other.total_weight, seen, self.capacity)
        merged, choice = copy(self), pool.choice(coreset, seen, about[0])
        merged._commit(nothing, replace(both, weights=own), choice, other.seen, other.total_weight)
        return merged

    def _matches_like(self, other: "GradientMatching") -> bool:
        """Whether embeddings of both may be added up."""
        options = [
            plain_options({k: v for k, v in m._gradients.items() if k not in ("batch_size", "device")})
            for m in (self, other)
        ]
        return (self.seed, self._classes, options[0]) == (other.seed, other._classes, options[1])

    def _settled(self) -> Self:
        """The same, with the gradients of those that wait for a choice, all of them kept."""
        _, waiting = self._divided(self.batch)
        if not len(waiting):
            return self
        embedding, prepared = self._ready(waiting)
        rows = embedding.dictionary(waiting.inputs, waiting.targets, prepared=prepared)
        settled, state = copy(self), {k: v for k, v in self._state.items() if k not in ("waiting", "factors")}
        state["target"] = total_of(rows, waiting.weights if waiting.weighted else None).to(self.device)
        if "target" in self._state:
            state["target"] = self._state["target"] + state["target"]
            rows = joined(remembered(self._state, embedding.device), rows)
        settled._state = {**state, **self._here(to_remember(rows))}
        return settled

    def _here(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.to(self.device) for name, value in tensors.items()}

    @full_precision()
    def forget(self, ids: Any, inputs: Any = None, targets: Any = None, *, weights: Any = None) -> Tensor:
        """Remove examples that must be deleted, and take their gradients, as they came, out of the target.

        The weights of those that stay are fitted anew. Of an example that is no longer held nothing is known but its
        part of the target: to take that out too, pass the examples themselves. Returns the ids that were not held.
        On any error the memory is as before.

        Args:
            ids: places in the stream, as in `batch.ids`.
            inputs: the examples with these ids, in their order, if some are not held.
            targets: one row per example.
            weights: with which these examples came, if not with one.
        """
        wanted = self._check_ids(ids)
        settled = self._settled()
        held = settled.batch
        stay = (~torch.isin(held.ids, wanted)).nonzero()[:, 0]
        gone = torch.isin(held.ids, wanted).nonzero()[:, 0]
        all_rows = remembered(settled._state, self.device)
        rows, labels = taken(all_rows, gone), held.targets[gone]
        own = self._own(held, held.take(gone[:0]))
        lost = own[gone]
        missing = wanted[~torch.isin(wanted, held.ids)]
        if inputs is not None and len(missing):
            given = Batch.arriving(inputs, targets, weights=weights).to(self.device)
            order = self._check_given(ids, given)
            other = given.take(torch.isin(order, missing).nonzero()[:, 0])
            embedding, prepared = self._ready(other)
            rows = joined(rows, embedding.dictionary(other.inputs, other.targets, prepared=prepared))
            labels, lost = torch.cat([labels, other.targets]), torch.cat([lost, other.weights])
        target, seen = settled._state["target"], self._seen_classes()
        if seen is None:
            target = target - weighted_sum(rows, torch.arange(len(lost)), lost)
        else:
            places = seen.places(class_labels(labels, COUNTED).cpu())
            target = target.clone()
            for place in places.unique():
                mine = (places == place).nonzero()[:, 0]
                target[place] -= weighted_sum(rows, mine, lost[mine])
            fewer = torch.bincount(places, lost.double().cpu(), minlength=len(seen.counts))
            seen = Tally(seen.classes, (seen.counts - fewer).to(seen.counts.dtype))
        rest = held.take(stay)
        pool = _Pool.of(rest, target, taken(all_rows, stay))
        total = max(float(self._total_without(float(lost.sum(dtype=torch.float64)))), float(own[stay].sum()))
        if len(stay) and self.seen > self.capacity:
            coreset = self._fitted(pool, total, seen, len(stay))
        else:
            coreset = Coreset(torch.arange(len(stay)), rest.weights.cpu(), 0.0)
        choice = pool.choice(coreset, seen, settled._state)
        kept = replace(rest.take(choice.indices), weights=choice.weights.to(self.device, torch.float32))
        state = {**choice.state, TOTAL: torch.tensor(total, dtype=torch.float64).to(self.device)}
        if OWN in state:
            state[OWN] = own[stay][choice.indices.to(self.device)]
        self._batch, self._state = kept, state
        return missing

    def _check_given(self, ids: Any, given: Batch) -> Tensor:
        check_same_form(self.batch, given)
        order = torch.as_tensor(ids).to(self.device)
        if len(order) != len(given):
            raise ValueError(f"inputs must be those of the {len(order)} ids, got {len(given)}")
        return order

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

    def _has_room(self, held: int, count: int) -> bool:
        """Whether so many examples can take free places until the next choice."""
        return held + count <= self.capacity and self._room(count) > 0

    def _let_wait(self, held: Batch, arrived: Batch, count: int, arrivals: Arrivals | None = None) -> None:
        """Hold what arrived, as it came, without a look at its gradients until the next choice.

        Many small updates end here, so it is done without a detour by `revise`.
        """
        embedding, prepared = self._ready(arrived, arrivals=arrivals)
        embedding.check(arrived.inputs, arrived.targets, prepared)
        before = self._state.get("waiting")
        waiting = torch.tensor(len(arrived)).to(self.device) if before is None else before + len(arrived)
        state = {**self._state, "waiting": waiting}
        if not self.seen:
            state |= {name: value.detach().to(self.device) for name, value in prepared.tensors.items()}
            state["error"] = torch.zeros((), dtype=torch.float64).to(self.device)
        seen, kept = self.seen + count, held.followed_by(arrived)
        weighs = self._weighs(arrived)
        if weighs or TOTAL in state:
            state = self._with_weights(state, seen, self._total(arrived), self._own(held, arrived) if weighs else None)
        # From here on nothing can fail.
        self._state = state
        self._batch, self.seen, self._prepared = kept, seen, prepared

    def _thinned(
        self, held: Batch, arrived: Batch, embedding: GradientEmbedding, prepared: Prepared, total: float
    ) -> Choice | None:
        """Let some of those that came stay for all of them until the next choice; None if it is time for that.

        Who does is drawn by their ids, as a shortlist of the whole stream would be.
        """
        if self._shortlist is None or "target" not in self._state:
            return None
        weights = arrived.weights.double()
        chances = weights * (min(self._shortlist, DRAWN) * self.capacity / total)
        race = uniform_keys(self.seed, arrived.ids, "shortlist") / chances
        some = race.topk(max(1, int((race < 1).sum())), largest=False).indices.sort().values
        if len(held) + len(some) > self.capacity - self.capacity // ROOM // 4:
            return None
        if get_loss(embedding.loss) is cross_entropy:
            stay = torch.cat([held.targets, arrived.targets[some]])
            warn_of_lost_classes(torch.cat([held.targets, arrived.targets]), stay)
        rows = embedding.dictionary(arrived.inputs, arrived.targets, prepared=prepared)
        state = {name: value for name, value in self._state.items() if name not in ("waiting", "factors")}
        everything = torch.arange(len(rows), device=embedding.device)
        state["target"] = state["target"] + weighted_sum(rows, everything, weights.to(embedding.device)).to(self.device)
        state |= self._here(remembering_more(self._state, taken(rows, some), embedding.device))
        stand = weights[some] / chances[some].clamp(max=1)
        stand *= weights.sum() / stand.sum()
        self._prepared = prepared
        return Choice(
            torch.cat([torch.arange(len(held)), len(held) + some.cpu()]), torch.cat([held.weights, stand]), state
        )

    def _everything(self, pool: "_Pool", own: Tensor, seen: Tally | None) -> Coreset:
        """All of the pool, as there is room, each with the weight that it came with times the factor of its class."""
        weights = own.cpu()
        if seen is not None:
            weights = weights * seen.factors(self._classes[0])[seen.places(pool.labels)]
        return Coreset(torch.arange(len(pool.places)), weights, 0.0)

    def _fitted(self, pool: "_Pool", count: float, seen: Tally | None, places: int) -> Coreset:
        """So many of the pool, whose weights add up to about the count."""
        size, options = min(places, len(pool.places)), {**self._pursuit, "progress": self.progress}
        if seen is None:
            return pursue(pool.candidates, size, target=pool.target, count=count, **options)
        return pursue_classes(pool.candidates, pool.labels, size, seen, pool.target, self._classes, **options)

    def _count(self, arrived: Batch) -> tuple[Tensor | None, Tally | None]:
        """The classes of what arrived, and how many of each were seen with it; None if classes do not matter."""
        if self._classes == (None, 0):
            return None, None
        labels = class_labels(arrived.targets, COUNTED).cpu()
        before, now = self._seen_classes(), Tally.of(labels, arrived.weights.cpu() if arrived.weighted else None)
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


_ITS_OWN = ("target", "embeddings", "factors", "error", "waiting", "classes", "counts", TOTAL, OWN)
"""What a memory remembers beside its draws."""


def _same_tensors(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two embeddings were prepared alike; the draws' numbers may differ by rounding between machines."""
    if a.keys() != b.keys() or any(a[k].shape != b[k].shape for k in a):
        return False
    return all(torch.allclose(a[k].double().cpu(), b[k].double().cpu(), rtol=1e-6) for k in a)


@dataclass(frozen=True)
class _Pool:
    """What a choice is made from.

    Attributes:
        targets: of the examples at hand.
        places: which of them are candidates, ascending.
        target: what all examples add up to, also those that are no longer at hand; class by class where they matter.
        candidates: the embeddings that are chosen from.
    """

    targets: Tensor
    places: Tensor
    target: Tensor
    candidates: Dictionary

    @classmethod
    def of(cls, batch: Batch, target: Tensor, candidates: Dictionary, places: Tensor | None = None) -> Self:
        """Of a batch of which all are candidates, unless it is said which."""
        return cls(
            batch.targets.cpu(), torch.arange(len(batch)) if places is None else places.cpu(), target, candidates
        )

    @property
    def labels(self) -> Tensor:
        """The classes of the candidates."""
        return self.targets[self.places].long()

    def behind(self, batch: Batch, target: Tensor, candidates: Dictionary) -> "_Pool":
        """The same with others before them, all of which are candidates."""
        return _Pool(
            torch.cat([batch.targets.cpu(), self.targets]),
            torch.cat([torch.arange(len(batch)), len(batch) + self.places]),
            target + self.target,  # Alg. 2: g <- g + sum_i g_i
            joined(candidates, self.candidates),  # Alg. 2: G <- [C, G]
        )

    def choice(self, coreset: Coreset, seen: Tally | None, state: Mapping[str, Tensor]) -> Choice:
        """Which of the examples at hand stay, with what is to be remembered of everything beside the given."""
        chosen, order = coreset.indices.cpu().sort()
        about = {
            "target": self.target,
            **to_remember(taken(self.candidates, chosen)),
            "error": torch.tensor(coreset.error, dtype=torch.float64),
        }
        if seen is not None:
            about |= {"classes": seen.classes, "counts": seen.counts}
        return Choice(self.places[chosen], coreset.weights.cpu()[order], {**state, **about})


_DEFAULTS: dict[str, Any] = GradientMatching.__init__.__kwdefaults__ or {}
