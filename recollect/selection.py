"""Selecting once, and measuring how well a selection matches."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from recollect.arrays import as_tensor
from recollect.batch import NO_INFERENCE, Batch, Inputs, check_examples, forward, map_inputs
from recollect.checks import check_count, check_number, check_seed, check_size
from recollect.classes import (
    COUNTED,
    Classes,
    ClassWeight,
    Tally,
    check_classes,
    class_labels,
    pursue_classes,
    sums_by_class,
    warn_of_lost_classes,
)
from recollect.cluster import connected, in_memory, is_ray_dataset, look_over, of_dataset, shards_of
from recollect.dictionary import Dictionary, weighted_sum
from recollect.embedding import (
    GradientEmbedding,
    Init,
    MakeModel,
    Prepared,
    ProjectionName,
    ScaleOutputs,
    calibrate,
    draw_model,
)
from recollect.embedding.initialisations import CALIBRATION_ROWS, check_not_lazy
from recollect.embedding.plain import gradients_of
from recollect.embedding.scaling import TargetScale, check_scale_outputs, scaled_loss, scales
from recollect.losses import LossFunction, check_labels, check_losses, cross_entropy, get_loss, squared_error
from recollect.numerics import full_precision
from recollect.onepass import Arrivals, drawn, one_pass
from recollect.pursuit import Center, Coreset, Nonnegative, Rule, pursue
from recollect.randomness import derive_seed, uniform_keys
from recollect.sources import Stream, examples_of
from recollect.standouts import with_standouts

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
"""The paper's settings, as keyword arguments of `select` and `GradientMatching`."""

SHORTLIST = 10.0
"""How many candidates there are by default for each example that is kept."""


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
    """Choose the few weighted examples whose loss gradients add up to those of all.

    A dataset, a loader or any iterable of batches is looked at once and never held whole, unless `shortlist` is None;
    the choice is that of the same examples in tensors.
    `PAPER` holds the paper's settings as keyword arguments.

    Args:
        make_model: returns a freshly initialised model at each call.
        inputs: a tensor, an array or a table, or a dict or tuple of them, one row per example; or, without `targets`, a
            torch dataset, a loader that does not shuffle, or an iterable of batches (inputs, targets).
        targets: one row per example, unless the inputs have them.
        size: how many examples to keep; below one, which part of them.
        target: the name of the targets, where they are an entry of each dict or a column of the table.
        loss: a name or a function of outputs and targets that returns one loss per example.
        inits: S, the number of initialisations at which gradients are matched.
        dim: d, numbers per initialisation that a gradient is projected to.
        layers: which parameters' gradients: "last" (the last linear layer), "all", names of modules, or "auto": the
            last one where targets are class numbers and the model ends in a linear layer, otherwise all.
        projection: "auto" (None for a last layer whose two factors are no longer than `dim`, otherwise "kronecker"),
            "kronecker", "sparse" (the paper's) or None; see `GradientEmbedding`.
        init: "default", "kaiming_uniform", "kaiming_normal", or a function that redraws a model's parameters.
        init_scale: multiplies what was drawn.
        calibrate: give fresh BatchNorm layers the statistics of the first examples.
        scale_outputs: let the draws' outputs vary as the targets of the first examples do; "auto" for squared error.
        batch_size: examples per pass; bounds memory and changes nothing else, but for rounding.
        device: where to compute.
        shortlist: how many arriving examples per kept one are candidates, drawn at random; all of them count in what is
            to be matched. None considers all, as in the paper.
        class_weight: how much each class counts, as in scikit-learn: None as often as it comes, "balanced" all the
            same, or a dict of factors by class. Weights then approximate the sum of all losses times these factors.
        min_per_class: so many examples of each class stay, whatever matching says.
        rule: "least-squares" picks the row that lowers the objective most, "inner-product" as in the paper.
        regularization: lambda, the pull of the weights towards the centre.
        relative: lambda is a multiple of the embeddings' mean squared norm; otherwise absolute, as in the paper.
        center: "uniform" pulls towards the best equal weight for all, "zero" towards zero.
        tolerance: stop as soon as the relative residual is this small.
        nonnegative: True replaces rows with negative weights, "clip" sets those to zero, False leaves them.
        hold_count: let the weights add up to about the number of examples, at the cost of some matching error.
        exact: one pick per scan of all candidates instead of several.
        seed: the same seed gives the same choice.
        progress: show progress bars in a terminal.
        cluster: let the workers of a Ray cluster look at the examples, which may be a Ray Dataset: "auto" for the one
            that this machine belongs to, or one of its own, otherwise an address. The choice is the same.

    Example:
        >>> from recollect import models
        >>> x = torch.linspace(-1, 1, 40)[:, None]
        >>> coreset = select(lambda: models.mlp(1, 2), x, (x[:, 0] > 0).long(), size=6)
        >>> len(coreset), coreset.error < 0.2
        (6, True)
    """
    classes = check_classes(class_weight, min_per_class)
    source: Any = inputs if is_ray_dataset(inputs) else examples_of(inputs, targets, target)
    if is_ray_dataset(source) and cluster is None:
        raise ValueError("a Ray Dataset needs the cluster that it is on, got none: pass cluster='auto'")
    if cluster is not None and (classes != (None, 0) or isinstance(source, Stream)):
        got = "a loader or an iterable" if isinstance(source, Stream) else "class_weight or min_per_class"
        raise ValueError(
            f"a cluster chooses from tensors or a Ray Dataset, and from all classes alike, got {got}: leave out cluster"
        )
    if isinstance(source, Stream):
        if not source.in_order:
            raise ValueError(
                "a loader to select from must not shuffle, as rows are counted in its order: pass its dataset"
            )
        if shortlist is None or classes != (None, 0):
            everything = source.whole()
            source = everything.inputs, everything.targets
    size = check_size(size, _length(source), "examples")
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
    pursuit: dict[str, Any] = {
        "rule": rule,
        "regularization": regularization,
        "relative": relative,
        "center": center,
        "tolerance": tolerance,
        "nonnegative": nonnegative,
        "hold_count": hold_count,
        "exact": exact,
        "progress": progress,
    }
    with nullcontext(0) if cluster is None else connected(cluster) as processors:
        if cluster is not None:
            found = _elsewhere(embedding, source, size, shortlist, target, processors, progress=progress)
        elif isinstance(source, Stream):
            found = _in_passing(embedding, source, size, shortlist, progress=progress)
        else:
            found = _at_hand(embedding, source, size, shortlist, classes, progress=progress)
        if found.seen is None or found.labels is None:
            coreset = pursue(found.candidates, size, target=found.target, count=found.count, **pursuit)
        else:
            coreset = pursue_classes(found.candidates, found.labels, size, found.seen, found.target, classes, **pursuit)
    if found.seen is not None or get_loss(loss) is cross_entropy:
        warn_of_lost_classes(found.classes, found.targets[coreset.indices.to(found.targets.device)], min_per_class)
    return coreset if found.rows is None else replace(coreset, indices=found.rows[coreset.indices.cpu()])


def _length(source: Any) -> int | None:
    """How many examples there are; None if nobody knows yet."""
    if isinstance(source, tuple):
        return len(source[1])
    return source.length if isinstance(source, Stream) else int(source.count())


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
        labels = class_labels(targets, COUNTED)
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
    embedding: GradientEmbedding, stream: Stream, size: int, shortlist: float | None, *, progress: bool
) -> _Gathered:
    """Of examples that come batch by batch."""
    options: dict[str, Any] = {"seed": embedding.seed, "length": stream.length, "progress": progress}
    arrivals = one_pass(embedding, stream.batches(), shortlist_length(size, shortlist), **options)
    check_size(size, arrivals.count, "examples")
    return _Gathered.of(arrivals, embedding, progress)


def _elsewhere(
    embedding: GradientEmbedding,
    source: tuple[Inputs, Tensor] | Any,
    size: int,
    shortlist: float | None,
    target: str | None,
    processors: int,
    *,
    progress: bool,
) -> _Gathered:
    """Of examples that the workers of a cluster look at; they are here or in a Ray Dataset."""
    pieces, load = in_memory(Batch.arriving(*source)) if isinstance(source, tuple) else of_dataset(source, target)
    if shortlist is not None:
        limit = shortlist_length(size, shortlist)
        arrivals = look_over(
            embedding, pieces, load, limit, seed=embedding.seed, processors=processors, progress=progress
        )
        return _Gathered.of(arrivals, embedding, progress)
    candidates, targets = shards_of(embedding, pieces, load, processors=processors)
    return _Gathered(candidates.sum(), candidates, None, targets, targets, len(targets))


def shortlisted(
    ids: Tensor,
    size: int,
    shortlist: float | None,
    seed: int,
    *,
    weights: Tensor | None = None,
    labels: Tensor | None = None,
    seen: Tally | None = None,
    classes: Classes = (None, 0),
) -> Tensor | None:
    """Which of the arriving examples are candidates for `size` places, as ascending positions; None for all.

    They are drawn by their ids, so that who deals out the examples, and in which portions, changes nothing. An example
    that counts twice as much, by its weight or its class, is twice as likely to be one, and there are some of each
    class that has places.

    Example:
        >>> shortlisted(torch.arange(100), 2, 3.0, seed=0).shape
        torch.Size([6])
    """
    if shortlist is None or (count := shortlist_length(size, shortlist)) >= len(ids):
        return None
    by_class = labels is not None and seen is not None
    if weights is None and not by_class:
        return drawn(ids, count, seed)
    keys = -torch.log1p(-uniform_keys(seed, ids, "shortlist"))  # the first of a race: likelier if divided by more
    if weights is not None:
        keys /= weights.to(keys)
    class_weight, min_per_class = classes
    places = torch.zeros(len(ids), dtype=torch.long, device=keys.device)
    if labels is not None and seen is not None:
        places = seen.places(labels).to(keys.device)
        keys /= seen.factors(class_weight).to(keys.device)[places]
    candidates = torch.zeros(len(ids), dtype=torch.bool, device=keys.device)
    candidates[keys.topk(count, largest=False).indices] = True
    for place in places.unique() if min_per_class else ():
        mine = (places == place).nonzero()[:, 0]
        some = min(math.ceil(shortlist * min_per_class), len(mine))
        candidates[mine[keys[mine].topk(some, largest=False).indices]] = True
    return candidates.nonzero()[:, 0]


def shortlist_length(size: int, shortlist: float | None) -> int:
    """How many candidates there are for `size` places, where not all are."""
    if shortlist is None or not (math.isfinite(check_number("shortlist", shortlist)) and shortlist >= 1):
        raise ValueError(f"shortlist must be a number of at least 1, or None for all, got {shortlist!r}")
    return math.ceil(shortlist * size)


def gather(
    embedding: GradientEmbedding,
    inputs: Inputs,
    targets: Tensor,
    rows: Tensor | None,
    *,
    weights: Tensor | None = None,
    labels: Tensor | None = None,
    prepared: Prepared | None = None,
    progress: bool = False,
) -> tuple[Tensor, Dictionary, Tensor | None]:
    """The sum of the embeddings of all examples, those of the candidates, and which these are; None if they are all.

    Candidates are the rows that were drawn and those that stand out, or all if `rows` is None. With weights each
    example counts so much in the sum. With labels there are sums by class, in the order of the classes.
    """
    if labels is not None:
        prepared = prepared or embedding.prepared or embedding.prepare(inputs, targets)  # on all, not on one class
    if rows is None:
        candidates = embedding.dictionary(inputs, targets, prepared=prepared, progress=progress)
        return total_of(candidates, weights, labels), candidates, None

    def some(rows: Tensor) -> tuple[Inputs, Tensor]:
        return map_inputs(lambda t: t[rows], inputs), targets[rows]

    options: dict[str, Any] = {"prepared": prepared, "progress": progress}
    if labels is None:
        total, losses = embedding.total_and_losses(inputs, targets, weights=weights, **options)
    else:
        members = [(labels == label).nonzero()[:, 0] for label in labels.unique()]
        count = [None if weights is None else weights[m] for m in members]
        found = [
            embedding.total_and_losses(*some(m), weights=w, **options) for m, w in zip(members, count, strict=True)
        ]
        total = torch.stack([one for one, _ in found])
        losses = torch.cat([of_class for _, of_class in found])[torch.cat(members).argsort().to(embedding.device)]
    rows = with_standouts(rows, losses)
    return total, embedding.dictionary(*some(rows), prepared=prepared, progress=progress), rows


def total_of(candidates: Dictionary, weights: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
    """The sum of embeddings that are there, each times its weight, in float64; by class, in their order, with labels.

    Example:
        >>> from recollect.dictionary import InMemory
        >>> total_of(InMemory(torch.eye(2)), torch.tensor([3.0, 1.0]))
        tensor([3., 1.], dtype=torch.float64)
    """
    if labels is not None:
        return sums_by_class(candidates, labels, weights)
    if weights is None:
        return candidates.sum()
    return weighted_sum(candidates, torch.arange(len(candidates), device=weights.device), weights)


@full_precision()
def matching_error(
    make_model: MakeModel,
    data: tuple[Any, Any],
    coreset: Coreset | Batch,
    *,
    loss: str | LossFunction = "cross_entropy",
    scale_outputs: ScaleOutputs = "auto",
    inits: int = 10,
    batch_size: int = 500,
    seed: int = 0,
) -> float:
    """How far the coreset's gradient is from the gradient of all, at initialisations it has not seen.

    This is the objective itself (Eq. 3), without projection: the norm of the difference of the two gradient sums
    over the norm of the full one, over `inits` draws that no selection uses, whatever its seed. For the squared error
    a draw is a model whose outputs are scaled to the targets of `data`, as in selecting.

    Args:
        make_model: returns a freshly initialised model at each call.
        data: all inputs and targets.
        coreset: row numbers of `data` with weights, or a memory's batch.
        loss: as for selecting.
        scale_outputs: as for selecting, by all targets of `data`.
        inits: number of fresh initialisations.
        batch_size: examples per pass.
        seed: the same seed gives the same initialisations.

    Example:
        >>> from recollect import models
        >>> x, y = torch.linspace(-1, 1, 40)[:, None], torch.arange(40) // 20
        >>> everything = Coreset(torch.arange(40), torch.ones(40, dtype=torch.float64), error=0.0)
        >>> matching_error(lambda: models.mlp(1, 2), (x, y), everything)
        0.0
    """
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise ValueError(f"data must be the inputs and the targets of all examples, got {type(data).__name__}")
    if not isinstance(coreset, Coreset | Batch):
        raise ValueError(f"coreset must be a Coreset or a memory's batch, got {type(coreset).__name__}")
    inputs, targets = check_examples(*data)
    inits, seed = check_count("inits", inits), check_seed(seed)
    everything = Batch.arriving(inputs, targets)
    if isinstance(coreset, Coreset):
        indices, weights = _rows_and_weights(coreset)
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(targets):
            raise ValueError(f"the coreset's indices must be rows of the {len(targets)} examples given")
        chosen = everything.take(indices)
        chosen = Batch(chosen.inputs, chosen.targets, weights, chosen.ids)
    else:
        chosen = coreset
    check_scale_outputs(scale_outputs, loss)
    plain = get_loss(loss)
    scale = TargetScale.of(everything.targets) if scales(scale_outputs, loss) else None
    difference = total = 0.0
    for s in range(inits):
        model = draw_model(make_model, derive_seed(seed, "fresh model", s))
        calibrate(model, map_inputs(lambda t: t[:CALIBRATION_ROWS], everything.inputs))
        per_example = plain
        if scale is not None:
            per_example = scaled_loss(model, everything.inputs, scale, plain, squared=plain is squared_error)
        full = _gradient(model, everything, loss, per_example, batch_size)
        kept = _gradient(model, chosen, loss, per_example, batch_size)
        difference += float((full - kept).square().sum())
        total += float(full.square().sum())
    return math.sqrt(difference / total) if total else 0.0


def _rows_and_weights(coreset: Coreset) -> tuple[Tensor, Tensor]:
    """Of a coreset that may have been put together by hand, out of arrays or lists."""
    indices, weights = as_tensor(coreset.indices, "indices"), as_tensor(coreset.weights, "weights")
    indices = indices if indices.numel() else indices.long()  # an empty list is one of no numbers
    whole = not indices.is_floating_point() and indices.dtype != torch.bool
    if not whole or indices.ndim != 1 or weights.shape != indices.shape or not bool(weights.isfinite().all()):
        raise ValueError(
            "a coreset must have a finite weight for each of its row numbers, got indices of "
            f"{indices.dtype} and shape {tuple(indices.shape)} and weights of shape {tuple(weights.shape)}"
        )
    return indices.long(), weights


def _gradient(
    model: torch.nn.Module, batch: Batch, loss: str | LossFunction, per_example: LossFunction, batch_size: int
) -> Tensor:
    """The gradient of the weighted sum of losses, flattened, in float64."""
    if torch.is_inference_mode_enabled():
        raise ValueError(NO_INFERENCE)
    check_not_lazy(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model must have at least one trainable parameter, got none")
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    for part in batch.minibatches(batch_size):
        with torch.enable_grad():
            outputs = forward(model, part.inputs)
            check_labels(outputs, part.targets, loss)
            losses = check_losses(per_example(outputs, part.targets.to(outputs.device)), len(part))
            gradients = gradients_of((losses * part.weights.to(losses)).sum(), parameters)
        total += torch.cat([g.double().flatten() for g in gradients]).cpu()
    return total
