"""One look at examples that come batch by batch: what their gradients add up to, and the few that are candidates."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from recollect.batch import Batch
from recollect.dictionary import Dictionary
from recollect.embedding import GradientEmbedding, Prepared
from recollect.numerics import ExactSum
from recollect.progress import progress_bar
from recollect.randomness import uniform_keys
from recollect.sources import recut
from recollect.standouts import Standouts

_ROOM = 1.25  # how many times the candidates are held before those that will not be drawn are left out


@dataclass(frozen=True)
class Arrivals:
    """What is left of examples once they have passed.

    Attributes:
        candidates: some of them, drawn or standing out, in the order in which they came.
        total: the sum of the embeddings of all; None if all are candidates.
        count: how many there were.
        prepared: what embeddings depend on.
        classes: the targets that there were, each once, if they are whole numbers; otherwise none.
    """

    candidates: Batch
    total: ExactSum | None
    count: int
    prepared: Prepared
    classes: Tensor

    def gathered(self, embedding: GradientEmbedding, *, progress: bool = False) -> tuple[Tensor, Dictionary]:
        """The sum of the embeddings of all examples, and those of the candidates."""
        some = self.candidates
        found = embedding.dictionary(some.inputs, some.targets, prepared=self.prepared, progress=progress)
        return found.sum() if self.total is None else self.total.value().flatten().to(embedding.device), found


def one_pass(
    embedding: GradientEmbedding,
    batches: Iterable[Batch],
    limit: int,
    *,
    seed: int,
    fewer: Callable[[int], int] | None = None,
    length: int | None = None,
    prepared: Prepared | None = None,
    progress: bool = False,
) -> Arrivals:
    """Look at each example once, and keep those `limit` whose ids have the smallest keys, and those that stand out.

    The former are the ones that `shortlisted` draws of all ids, and the sum is that of `embedding.total` of all
    examples, bit for bit: it is taken in the same blocks. Beside the candidates and a quarter more, one block is held
    at a time.

    Args:
        embedding: how examples become vectors.
        batches: the examples, with their ids.
        limit: how many candidates are drawn at most.
        seed: of the keys.
        fewer: from how many examples there were, known only in the end, to how many are drawn; `limit` if None.
        length: how many examples there will be, if that is known, for the progress bar.
        prepared: what was decided on earlier examples; on these if None.
        progress: show a progress bar in a terminal.
    """
    first, batches = _peek(batches)
    total: ExactSum | None = None
    standouts: Standouts | None = None
    some: list[Batch] = []
    count, bound, classes = 0, math.inf, whole_classes(first.targets)
    with progress_bar("looking at examples", length or 1, show=progress and length is not None) as bar:
        for block in recut(batches, embedding.block_rows(first.inputs)):
            if prepared is None:
                prepared = embedding.prepare(block.inputs, block.targets)
            count += len(block)
            classes = torch.cat([classes, whole_classes(block.targets)]).unique()
            some.append(block if math.isinf(bound) else block.take((keys_of(block.ids, seed) < bound).nonzero()[:, 0]))
            if count > limit:
                # Until now all were candidates, and may have been all there are.
                new = Batch.joined(some) if total is None else block
                total, found = _added(embedding, total, new, limit, prepared)
                standouts = found if standouts is None else standouts.plus(found)
                if sum(map(len, some)) > _ROOM * limit:
                    some = [_drawn(some, limit, seed)]
                    bound = float(keys_of(some[0].ids, seed).max())
            bar.advance(len(block))
    assert prepared is not None
    last = limit if fewer is None else fewer(count)
    if count <= last:
        return Arrivals(Batch.joined(some), total, count, prepared, classes)
    if standouts is None:
        total, standouts = _added(embedding, None, Batch.joined(some), limit, prepared)
    return Arrivals(standouts.beside(_drawn(some, last, seed)), total, count, prepared, classes)


def _added(
    embedding: GradientEmbedding, total: ExactSum | None, new: Batch, limit: int, prepared: Prepared
) -> tuple[ExactSum, Standouts]:
    """The sum with some more examples, and which of these may stand out."""
    total, losses = embedding.add_total(total, new.inputs, new.targets, prepared=prepared)
    return total, Standouts.of(new, losses, limit)


def drawn(ids: Tensor, limit: int, seed: int) -> Tensor:
    """Where those stand whose ids have the smallest keys, ascending: the same of all ids as of what parts leave."""
    return keys_of(ids, seed).topk(min(limit, len(ids)), largest=False).indices.sort().values


def keys_of(ids: Tensor, seed: int) -> Tensor:
    """A random number in [0, 1) for each id, the same wherever it is asked for: the smallest are drawn."""
    return uniform_keys(seed, ids, "shortlist")


def _drawn(some: list[Batch], limit: int, seed: int) -> Batch:
    everything = Batch.joined(some)
    return everything.take(drawn(everything.ids, limit, seed))


def whole_classes(targets: Tensor) -> Tensor:
    """The targets that there are, each once, if they are whole numbers."""
    found: Tensor = (
        targets if targets.ndim == 1 and not targets.is_floating_point() else targets.new_empty(0)
    ).unique()
    return found


def _peek(batches: Iterable[Batch]) -> tuple[Batch, Iterator[Batch]]:
    rest = iter(batches)
    first = next(rest)
    return first, chain([first], rest)
