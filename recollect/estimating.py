"""What selecting will cost, before it is run: from a short calibration on the first rows."""

import inspect
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from recollect.batch import Batch, Inputs, check_examples, check_inputs, forward, map_inputs, named_tensors
from recollect.candidates import shortlist_length
from recollect.checks import check_count, check_size
from recollect.dictionary import Factored
from recollect.embedding import GradientEmbedding, MakeModel, draw_model
from recollect.losses import get_loss
from recollect.pursuit import Rule, check_options, look, picks_per_scan, pool_size, pursue
from recollect.rows import Form, Outer, Plain
from recollect.selection import select
from recollect.sources import Incoming, examples_of

_ENOUGH = 0.3  # seconds of a measurement that say something
_FIRST = 16  # rows of the first measurement
_PURSUED = 512  # rows that choosing is tried on
# What choosing costs, in nanoseconds: for each number of the candidates once, per scan and per pick, and for each scan.
# Fitted to runs from 500 x 2,000 to 10,000 x 10,000 numbers, 50 to 1,000 chosen; only their proportions count, as what
# the machine takes for a small problem sets the unit.
_ONCE, _PER_SCAN, _PER_PICK, _SCAN = 12.8, 0.3, 0.032, 1.7e6
# The same for least squares, in seconds, from the profile of 1000 chosen of 10,000: for each number that is scanned, as
# such or by factors; that is gathered; of products of rows; of norms; and for each round of picks.
_SCANNED, _GATHERED, _MULTIPLIED, _NORM, _ROUND = (2.5e-10, 1.3e-10), 2.6e-9, 1.5e-11, 4e-9, 3e-3


@dataclass(frozen=True)
class Estimate:
    """What selecting will cost.

    Attributes:
        seconds: how long it takes.
        bytes: how much memory it needs at most, beside the examples and the libraries.
        parts: the seconds of each part: preparing, summing, embedding and choosing.
        rows: how many examples there are.
        candidates: how many of them are candidates.
    """

    seconds: float
    bytes: int
    parts: dict[str, float]
    rows: int
    candidates: int

    def __str__(self) -> str:
        """For people."""
        size = f"{self.bytes / 1e9:.1f} GB" if self.bytes >= 1e9 else f"{max(1, round(self.bytes / 1e6))} MB"
        seconds = f"{self.seconds:.1f} s" if self.seconds < 100 else f"{self.seconds / 60:.0f} minutes"
        return (
            f"about {seconds} and {size} beside the examples, for {self.rows} examples and {self.candidates} candidates"
        )


def estimate(
    make_model: MakeModel,
    inputs: Any,
    targets: Any = None,
    size: float | None = None,
    *,
    rows: int | None = None,
    target: str | None = None,
    **options: Any,
) -> Estimate:
    """How long `select` will take, and how much memory it needs, within a factor of two or so.

    The first rows are embedded, and chosen from, for a second or a few.

    Args:
        make_model: returns a freshly initialised model at each call.
        inputs: what would be passed to `select`, or the first rows of it; or its shape, such as (60000, 1, 28, 28).
        targets: those of the inputs; made up if there are none and the loss is a name.
        size: how many examples to keep: a whole number, or a fraction of all up to 1.
        rows: how many examples there will be, if more than the inputs.
        target: the name of the targets, if they are an entry of each dict or a column of the table.
        **options: those of `select`.

    Returns:
        An `Estimate`: seconds and bytes, the seconds of each part, and the numbers of rows and of candidates.

    Raises:
        ValueError: an argument is wrong, or the number of rows or the targets are not known.

    Example:
        >>> from recollect import models
        >>> cost = estimate(lambda: models.mlp(4, 3), (100_000, 4), size=100, inits=2)
        >>> cost.rows, cost.candidates, cost.seconds > 0
        (100000, 1000, True)
    """
    known = inspect.signature(select).parameters
    if unknown := [name for name in options if name not in known or name in ("make_model", "inputs", "targets")]:
        raise ValueError(f"options must be those of select, got {unknown[0]!r}")
    chosen = {name: options.get(name, p.default) for name, p in known.items() if p.kind is p.KEYWORD_ONLY}
    check_options(**{name: chosen[name] for name in inspect.signature(check_options).parameters})
    names = inspect.signature(GradientEmbedding).parameters
    embedding = GradientEmbedding(make_model, **{name: chosen[name] for name in names if name in chosen})
    examples, n = _first_rows(embedding, inputs, targets, target)
    n = n if rows is None else check_count("rows", rows)
    if n is None:
        raise ValueError("rows must be given where nobody knows how many examples there will be, got None")
    size = check_size(size, n, "examples")
    shortlist = chosen["shortlist"]
    k = n if shortlist is None else min(n, shortlist_length(size, shortlist))

    began = time.perf_counter()
    prepared = embedding.prepared = embedding.prepare(examples.inputs, examples.targets)
    parts = {"preparing": time.perf_counter() - began, "summing": 0.0}
    most = 4 * embedding.batch_size
    if k < n:
        summing = _line(lambda some: embedding.total(some.inputs, some.targets), examples, min(n, most))
        parts["summing"] = summing(n)
    found = embedding.dictionary(*_pair(_repeated(examples, min(k, _PURSUED))))
    embedding_rows = _line(lambda some: embedding.dictionary(some.inputs, some.targets), examples, min(k, most))
    parts["embedding"] = embedding_rows(k)

    trial = max(1, min(len(found) // 2, 64, size))
    taken = _seconds(lambda: pursue(found, trial, rule=chosen["rule"]))
    form = found.form if isinstance(found, Factored) else Plain()
    unit = taken / _choosing(len(found), found.dim, trial, form, chosen["rule"], exact=False)
    parts["choosing"] = unit * _choosing(k, found.dim, size, form, chosen["rule"], chosen["exact"])

    itemsize = torch.empty(0, dtype=found.dtype).element_size()
    per_row = form.width if isinstance(form, Outer) else found.dim
    near = min(k, look(size, form, k)[1])
    weights = sum(p.nbytes for p in draw_model(make_model, embedding.seed).parameters())
    draws = embedding.inits if prepared.draws is not None else 1
    raw = sum(value[:1].nbytes for value in named_tensors(examples.inputs).values())
    total = (k + 2 * (size + near)) * per_row * itemsize + k * raw + near * size * itemsize + (6 * draws + 4) * weights
    total += _activations(embedding, examples)
    return Estimate(sum(parts.values()), total, parts, n, k)


def _first_rows(
    embedding: GradientEmbedding, inputs: Any, targets: Any, target: str | None
) -> tuple[Batch, int | None]:
    """Some examples, and how many there are if that is known."""
    if isinstance(inputs, tuple) and inputs and all(isinstance(part, int) for part in inputs):
        check_count("the number of examples", inputs[0])
        few = min(inputs[0], 2 * embedding.batch_size)
        made = torch.randn(few, *inputs[1:], generator=torch.Generator().manual_seed(0))
        return Batch.arriving(made, _made_up(embedding, made)), inputs[0]
    if targets is None and target is None and isinstance(inputs, Tensor | np.ndarray | dict):
        inputs = check_inputs(inputs)
        n = len(next(iter(named_tensors(inputs).values())))
        few = min(n, 2 * embedding.batch_size)
        some = map_inputs(lambda t: t[:few], inputs)
        return Batch.arriving(some, _made_up(embedding, some)), n
    if isinstance(inputs, Iterator):
        raise ValueError("inputs must not be an iterator, which would be used up: pass its first rows, and rows=...")
    source = examples_of(inputs, targets, target)
    if isinstance(source, Incoming):
        return next(source.batches()), source.length
    inputs, targets = check_examples(*source)
    few = min(len(targets), 2 * embedding.batch_size)
    return Batch.arriving(map_inputs(lambda t: t[:few], inputs), targets[:few]), len(targets)


def _made_up(embedding: GradientEmbedding, inputs: Inputs) -> Tensor:
    """Targets that the loss can take: what they are does not change what it costs."""
    if not isinstance(embedding.loss, str):
        raise ValueError("targets must be given where the loss is a function, got none")
    get_loss(embedding.loss)
    with torch.no_grad():
        outputs = forward(draw_model(embedding.make_model, embedding.seed).to(embedding.device), inputs).cpu()
    if embedding.loss == "cross_entropy":
        return (
            torch.arange(len(outputs))
            .remainder(outputs.shape[1])
            .reshape(-1, *[1] * (outputs.ndim - 2))
            .expand(len(outputs), *outputs.shape[2:])
        )
    return torch.rand(outputs.shape, generator=torch.Generator().manual_seed(0))


def _repeated(examples: Batch, count: int) -> Batch:
    return examples.take(torch.arange(count) % len(examples))


def _pair(batch: Batch) -> tuple[Inputs, Tensor]:
    return batch.inputs, batch.targets


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _line(call: Callable[[Batch], object], examples: Batch, most: int) -> Callable[[int], float]:
    """Seconds as a function of the number of rows: a straight line through measurements of more and more rows."""
    call(_repeated(examples, min(most, 2)))  # what is slow only once
    points: list[tuple[int, float]] = []
    count = min(_FIRST, most)
    while True:
        some = _repeated(examples, count)
        seconds = min(_seconds(partial(call, some)) for _ in range(2))
        points.append((count, seconds))
        if seconds > _ENOUGH or count == most:
            break
        count = min(2 * count, most)
    slope, start = points[-1][1] / points[-1][0], 0.0
    for (few, short), (more, long) in pairwise(points[-2:]):
        if long > short:
            slope = min(slope, (long - short) / (more - few))
            start = long - slope * more
    return lambda rows: max(0.0, start) + slope * rows


def _choosing(k: int, dim: int, size: int, form: Form, rule: Rule, exact: bool) -> float:
    """What choosing costs, in a unit of its own."""
    if rule == "least-squares" and not exact:
        return _choosing_near(k, dim, size, form)
    scans = chosen = 0
    while chosen < size:
        chosen += picks_per_scan(chosen, rule, exact)
        scans += 1
    numbers = k * dim * (_ONCE + _PER_SCAN * scans + _PER_PICK * size) + size**2 * dim * _PER_PICK
    return (numbers + scans * _SCAN) * 1e-9


def _choosing_near(k: int, dim: int, size: int, form: Form) -> float:
    """The same for least squares, whose picks are made among those near, step by step as `proposals.Near` goes."""
    factors = isinstance(form, Outer)
    width = form.width if isinstance(form, Outer) else dim
    scan, cost = _SCANNED[factors], k * width * _NORM
    chosen = until = near = 0
    while chosen < size:
        if chosen >= until:
            picks, near = look(chosen, form, k)
            near, until = min(near, k), chosen + picks
            cost += k * dim * scan + near * width * _GATHERED + near * chosen * (width + chosen) * _MULTIPLIED
        picks = min(picks_per_scan(chosen, "least-squares", exact=False), size - chosen)
        pool = pool_size(picks)
        cost += (near + 2 * chosen) * dim * scan + _ROUND
        cost += (picks * near * (width + chosen) + pool * pool * (width + picks)) * _MULTIPLIED
        chosen += picks
    return cost


def _activations(embedding: GradientEmbedding, examples: Batch) -> int:
    """About how many bytes a pass over a batch keeps for its way back."""
    few = min(len(examples), 8)
    kept: dict[int, int] = {}

    def note(value: Tensor) -> Tensor:
        kept[value.data_ptr()] = value.nbytes
        return value

    with saved_tensors_hooks(note, lambda value: value):
        embedding.total(*_pair(_repeated(examples, few)))
    return math.ceil(sum(kept.values()) * embedding.batch_size / few)
