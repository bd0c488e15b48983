"""Selecting once."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from recollect.batch import Batch, Inputs
from recollect.candidates import SHORTLIST, gather, shortlist_length, shortlisted
from recollect.checks import check_size
from recollect.classes import (
    COUNTED,
    Classes,
    ClassWeight,
    Tally,
    are_classes,
    check_classes,
    class_labels,
    pursue_classes,
    warn_of_lost_classes,
)
from recollect.cluster import Load, Piece, connected, in_memory, is_ray_dataset, look_over, of_dataset, shards_of
from recollect.dictionary import Dictionary
from recollect.embedding import GradientEmbedding, Init, MakeModel, ProjectionName, ScaleOutputs
from recollect.losses import LossFunction
from recollect.numerics import full_precision
from recollect.onepass import Arrivals, one_pass
from recollect.pursuit import Center, Coreset, Nonnegative, Rule, check_options, pursue
from recollect.sources import Incoming, examples_of

PAPER: dict[str, Any] = {
    "inits": 10,
    "dim": 1000,
    "layers": "all",
    "projection": "sparse",
    "shortlist": None,
    "rule": "inner-product",
    "hold_count": False,
    "regularization": 0.5 / 10,  # lambda = 0.5 for embeddings that the paper does not divide by sqrt(S)
    "relative": False,
    "nonnegative": "clip",
}
"""The paper's settings, as keyword arguments of `select` and `GradientMatching`: `select(..., **PAPER)`."""


@full_precision()
def select(
    make_model: MakeModel,
    inputs: Any,
    targets: Any = None,
    size: float | None = None,
    *,
    target: str | None = None,
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
    hold_count: bool = False,
    exact: bool = False,
    seed: int = 0,
    progress: bool = False,
    cluster: str | None = None,
) -> Coreset:
    """Choose a few examples, with weights, whose loss gradients add up to those of all.

    A dataset, a loader or any iterable of batches is read once and never held in memory (unless `shortlist` is None).
    The choice is the same as for the same examples in tensors. `PAPER` holds the paper's settings as keyword arguments.

    Args:
        make_model: returns a freshly initialised model at each call.
        inputs: a tensor, an array or a table, or a dict or tuple of them, one row per example; or, without `targets`, a
            torch dataset, a loader that does not shuffle, or an iterable of batches (inputs, targets).
        targets: one per example, such as class numbers; left out if the inputs have them.
        size: how many examples to keep: a whole number, or a fraction of all up to 1.
        target: the name of the targets, if they are an entry of each dict or a column of the table.
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
        calibrate: give fresh BatchNorm layers the statistics of the first examples, instead of none.
        scale_outputs: scale the outputs of fresh models to the spread of the first targets; "auto" does so for squared
            error.
        batch_size: examples per pass; bounds memory, and changes the result by rounding at most.
        device: where to compute.
        shortlist: how many candidates there are for each example that is kept, drawn at random. All examples count in
            what is matched. None makes all of them candidates, as in the paper.
        class_weight: how much each class counts, as in scikit-learn: None for as often as it comes, "balanced" for all
            classes the same, or a dict of factors by class. Weights then approximate the sum of all losses times these
            factors.
        min_per_class: keep at least this many examples of each class.
        rule: "least-squares" picks the row that improves the fit most, "inner-product" as in the paper.
        regularization: lambda, how strongly the weights are pulled towards `center`.
        relative: True makes lambda a multiple of the embeddings' mean squared norm; False is absolute, as in the paper.
        center: "uniform" pulls weights towards the best equal weight for all, "zero" towards zero.
        tolerance: stop as soon as the matching error is this small.
        nonnegative: True replaces rows with negative weights by others, "clip" sets the weights to zero, False leaves
            them.
        hold_count: pull the weights towards adding up to the number of examples, at the cost of some matching error.
            Memories do so by default, as they are mixed with new examples of weight one; here it is off.
        exact: scan all candidates for each pick, instead of picking several per scan; slower.
        seed: the same seed gives the same choice.
        progress: show progress bars in a terminal.
        cluster: use a Ray cluster; the examples may then be a Ray Dataset. "auto" is the cluster that this machine
            belongs to, or a new local one; otherwise pass its address. The choice is the same.

    Returns:
        A `Coreset`: `indices`, row numbers in the order in which they were picked, not sorted; `weights`, one for each;
        and `error`, the matching error at the initialisations that were used to choose. There may be fewer rows than
        `size`, if no other row would help or `tolerance` is reached.

    Raises:
        ValueError: an argument is wrong, there are fewer examples than `size`, or some input, target or gradient is NaN
            or infinite.

    Example:
        >>> from recollect import models
        >>> x = torch.linspace(-1, 1, 40)[:, None]
        >>> coreset = select(lambda: models.mlp(1, 2), x, (x[:, 0] > 0).long(), size=6)
        >>> len(coreset), coreset.error < 0.2
        (6, True)
    """
    pursuit: dict[str, Any] = {
        "rule": rule,
        "regularization": regularization,
        "relative": relative,
        "center": center,
        "tolerance": tolerance,
        "nonnegative": nonnegative,
        "hold_count": hold_count,
        "exact": exact,
    }
    check_options(**pursuit)  # before hours of gradients
    pursuit["progress"] = progress
    classes = check_classes(class_weight, min_per_class)
    source: Any = inputs if is_ray_dataset(inputs) else examples_of(inputs, targets, target)
    if is_ray_dataset(source) and cluster is None:
        raise ValueError("a Ray Dataset needs the cluster that it is on, got none: pass cluster='auto'")
    if cluster is not None and (classes != (None, 0) or isinstance(source, Incoming)):
        got = "a loader or an iterable" if isinstance(source, Incoming) else "class_weight or min_per_class"
        raise ValueError(
            f"a cluster chooses from tensors or a Ray Dataset, and from all classes alike, got {got}: leave out cluster"
        )
    if isinstance(source, Incoming):
        if not source.in_order:
            raise ValueError(
                "a loader to select from must not shuffle, as rows are counted in its order: pass its dataset"
            )
        if shortlist is None or classes != (None, 0):
            everything = source.whole()
            source = everything.inputs, everything.targets
    if not is_ray_dataset(source):  # whose rows are made once, and counted then
        kept = check_size(size, _length(source), "examples")
    embedding = GradientEmbedding(
        make_model,
        loss=loss,
        inits=inits,
        dim=dim,
        layers=layers,
        projection=projection,
        init=init,
        init_scale=init_scale,
        calibrate=calibrate,
        scale_outputs=scale_outputs,
        batch_size=batch_size,
        device=device,
        seed=seed,
    )
    with nullcontext(0) if cluster is None else connected(cluster) as processors:
        if cluster is not None:
            elsewhere = of_dataset(source, target) if is_ray_dataset(source) else in_memory(Batch.arriving(*source))
            kept = check_size(size, sum(piece.rows for piece in elsewhere[0]), "examples")
            found = _elsewhere(embedding, *elsewhere, kept, shortlist, processors, progress=progress)
        elif isinstance(source, Incoming):
            found = _in_passing(embedding, source, kept, shortlist, progress=progress)
        else:
            found = _at_hand(embedding, source, kept, shortlist, classes, progress=progress)
        if found.seen is None or found.labels is None:
            coreset = pursue(found.candidates, kept, target=found.target, count=found.count, **pursuit)
        else:
            coreset = pursue_classes(found.candidates, found.labels, kept, found.seen, found.target, classes, **pursuit)
    if found.seen is not None or are_classes(found.targets, loss):
        warn_of_lost_classes(found.classes, found.targets[coreset.indices.to(found.targets.device)], min_per_class)
    return coreset if found.rows is None else replace(coreset, indices=found.rows[coreset.indices.cpu()])


def _length(source: tuple[Inputs, Tensor] | Incoming) -> int | None:
    """How many examples there are; None if nobody knows yet."""
    return source.length if isinstance(source, Incoming) else len(source[1])


@dataclass(frozen=True)
class _Gathered:
    """What a choice is made from.

    Attributes:
        target: the sum of the embeddings of all examples; sums by class if there are labels.
        candidates: the embeddings of those that can be chosen.
        rows: which of all they are; None if they are all.
        targets: of the candidates.
        classes: targets of all examples, or each of them once.
        count: how many examples there are.
        labels: the classes of the candidates, if classes matter.
        seen: how many there are of each class, if classes matter.
    """

    target: Tensor
    candidates: Dictionary
    rows: Tensor | None
    targets: Tensor
    classes: Tensor
    count: int
    labels: Tensor | None = None
    seen: Tally | None = None

    @classmethod
    def of(cls, arrivals: Arrivals, embedding: GradientEmbedding, progress: bool) -> "_Gathered":
        some = arrivals.candidates
        target, candidates = arrivals.gathered(embedding, progress=progress)
        return cls(target, candidates, some.ids.cpu(), some.targets, arrivals.classes, arrivals.count)


def _at_hand(
    embedding: GradientEmbedding,
    source: tuple[Inputs, Tensor],
    size: int,
    shortlist: float | None,
    classes: Classes,
    *,
    progress: bool,
) -> _Gathered:
    """Of examples that are all here."""
    inputs, targets = source
    labels = seen = None
    if classes != (None, 0):
        labels = class_labels(targets, COUNTED).cpu()
        seen = Tally.of(labels)
        if (needed := int(seen.counts.clamp(max=classes[1]).sum())) > size:
            raise ValueError(f"size must be at least the {needed} places that min_per_class asks for, got {size}")
    ids = torch.arange(len(targets))
    rows = shortlisted(ids, size, shortlist, embedding.seed, labels=labels, seen=seen, classes=classes)
    target, candidates, rows = gather(embedding, inputs, targets, rows, labels=labels, progress=progress)
    if rows is None:
        return _Gathered(target, candidates, None, targets, targets, len(targets), labels, seen)
    labels = None if labels is None else labels[rows]
    return _Gathered(target, candidates, rows, targets[rows.to(targets.device)], targets, len(targets), labels, seen)


def _in_passing(
    embedding: GradientEmbedding, stream: Incoming, size: int, shortlist: float | None, *, progress: bool
) -> _Gathered:
    """Of examples that come batch by batch."""
    options: dict[str, Any] = {"seed": embedding.seed, "length": stream.length, "progress": progress}
    arrivals = one_pass(embedding, stream.batches(), shortlist_length(size, shortlist), **options)
    check_size(size, arrivals.count, "examples")
    return _Gathered.of(arrivals, embedding, progress)


def _elsewhere(
    embedding: GradientEmbedding,
    pieces: Sequence[Piece],
    load: Load,
    size: int,
    shortlist: float | None,
    processors: int,
    *,
    progress: bool,
) -> _Gathered:
    """Of examples that the workers of a cluster look at; they are here or in a Ray Dataset."""
    if shortlist is not None:
        limit = shortlist_length(size, shortlist)
        arrivals = look_over(
            embedding, pieces, load, limit, seed=embedding.seed, processors=processors, progress=progress
        )
        return _Gathered.of(arrivals, embedding, progress)
    candidates, targets = shards_of(embedding, pieces, load, processors=processors)
    return _Gathered(candidates.sum(), candidates, None, targets, targets, len(targets))
