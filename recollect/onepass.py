"""One look at examples that come batch by batch: what their gradients add up to, and the few that are candidates."""

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
    examples, bit for bit: it is taken in the same blocks. Beside the candidates, one block is held at a time.

    Args:
        embedding: how examples become vectors.
        batches: the examples, with their ids.
        limit: how many candidates are drawn at most.
        seed: of the keys.
        fewer: how many are drawn of so many examples, if that may be fewer: known in the end only.
        length: how many examples there will be, if that is known, for the progress bar.
        prepared: what was decided on earlier examples; on these if None.
        progress: show a progress bar in a terminal.
    """
    first, batches = _peek(batches)
    total: ExactSum | None = None
    some: Batch | None = None
    standouts: Standouts | None = None
    count, classes = 0, whole_classes(first.targets)
    with progress_bar("looking at examples", length or 1, show=progress and length is not None) as bar:
        for block in recut(batches, embedding.block_rows(first.inputs)):
            if prepared is None:
                prepared = embedding.prepare(block.inputs, block.targets)
            count += len(block)
            classes = torch.cat([classes, whole_classes(block.targets)]).unique()
            some = block if some is None else Batch.joined([some, block])
            if count > limit:
                new = some if total is None else block  # until now all were candidates, and may have been all there are
                total, found = _added(embedding, total, new, limit, prepared)
                standouts = found if standouts is None else standouts.plus(found)
                some = some.take(drawn(some.ids.cpu(), limit, seed))
            bar.advance(len(block))
    assert some is not None and prepared is not None
    last = limit if fewer is None else fewer(count)
    if count > last:
        if standouts is None:
            total, standouts = _added(embedding, None, some, limit, prepared)
        some = standouts.beside(some.take(drawn(some.ids.cpu(), last, seed)))
    return Arrivals(some, total, count, prepared, classes)


def _added(
    embedding: GradientEmbedding, total: ExactSum | None, new: Batch, limit: int, prepared: Prepared
) -> tuple[ExactSum, Standouts]:
    """The sum with some more examples, and which of these may stand out."""
    total, losses = embedding.add_total(total, new.inputs, new.targets, prepared=prepared)
    return total, Standouts.of(new, losses, limit)


def drawn(ids: Tensor, limit: int, seed: int) -> Tensor:
    """Where those stand whose ids have the smallest keys, ascending: the same of all ids as of what parts leave."""
    return uniform_keys(seed, ids, "shortlist").topk(min(limit, len(ids)), largest=False).indices.sort().values


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
