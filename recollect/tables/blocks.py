"""Rows on their way into a memory: cut into blocks of a fixed number, and encoded.

What is found out about some rows is small and can be put together with what is found out about others, so that each
part of a block may be encoded by somebody else.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from recollect.memories import Memory
from recollect.tables.encoding import Encoding, Noted, numbered


@dataclass(frozen=True)
class Encoded:
    """Rows as a model sees them, as far as it is known before all of a block are there.

    Attributes:
        features: a row of numbers each.
        labels: quantities, or numbers of names.
        names: of classes, in the order in which they come.
    """

    features: Tensor
    labels: Tensor
    names: list[str]

    def examples(self, classes: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Features and targets, without the rows of other classes."""
        targets, places = numbered(self.labels, self.names, classes), self.fitting(classes)
        return (self.features, targets) if places is None else (self.features[places], targets[places])

    def fitting(self, classes: Sequence[str]) -> Tensor | None:
        """Which rows are of these classes; None if all are."""
        if set(self.names) <= set(classes):
            return None
        return (numbered(self.labels, self.names, classes) >= 0).nonzero()[:, 0]

    def take(self, table: pa.Table, places: NDArray[np.int64], classes: Sequence[str]) -> pa.Table:
        """Rows as they came, by their places among those of these classes."""
        fitting = self.fitting(classes)
        return table.take(places if fitting is None else fitting.numpy()[places])


@dataclass(frozen=True)
class Found:
    """What there is to know of some rows beside themselves.

    Attributes:
        rows: how many there are.
        unlabelled: how many more have no target, and are left out.
        noted: what each column holds that may be new.
        counts: how many there are of each class, in the order in which they come.
    """

    rows: int
    unlabelled: int
    noted: list[Noted]
    counts: dict[str, int]

    def plus(self, later: "Found") -> "Found":
        """Of these rows and those that come after them."""
        noted = [a.plus(b) for a, b in zip(self.noted, later.noted, strict=True)]
        counts = {n: self.counts.get(n, 0) + later.counts.get(n, 0) for n in {**self.counts, **later.counts}}
        return Found(self.rows + later.rows, self.unlabelled + later.unlabelled, noted, counts)


def encode(table: pa.Table, encoding: Encoding) -> tuple[Found, Encoded, pa.Table]:
    """Rows as a model sees them, and as they came; those without a target are left out, and counted."""
    unlabelled = 0
    if (without := encoding.unlabelled(table)).any():
        unlabelled, table = int(without.sum()), table.filter(pa.array(~without))
    features, noted = encoding.encoded(table)
    labels, names = encoding.labels(table)
    counts = dict(zip(names, torch.bincount(labels, minlength=len(names)).tolist(), strict=True)) if names else {}
    return Found(table.num_rows, unlabelled, noted, counts), Encoded(features, labels, names), table


class Block(Protocol):
    """Rows that are taken in at once, wherever they are."""

    def found(self) -> Found:
        """What there is to know of them."""

    def head(self, classes: Sequence[str]) -> tuple[Tensor, Tensor] | None:
        """The first of those of these classes, to measure how long they take; None if that would tell nothing."""

    def update(self, memory: Memory, classes: Sequence[str]) -> None:
        """Let a memory choose from those of these classes."""

    def take(self, places: NDArray[np.int64], classes: Sequence[str]) -> pa.Table:
        """Some of those of these classes, as they came, with their places in the last column."""


class RowsHere:
    """Rows that are in this process."""

    def __init__(self, table: pa.Table, encoding: Encoding) -> None:
        self._found, self._encoded, self._table = encode(table, encoding)

    def found(self) -> Found:
        return self._found

    def head(self, classes: Sequence[str]) -> tuple[Tensor, Tensor]:
        return self._encoded.examples(classes)

    def update(self, memory: Memory, classes: Sequence[str]) -> None:
        memory.update(*self._encoded.examples(classes))

    def take(self, places: NDArray[np.int64], classes: Sequence[str]) -> pa.Table:
        return self._encoded.take(self._table, places, classes)


class Part(NamedTuple):
    """Consecutive rows of a piece."""

    piece: Any
    start: int
    stop: int


def cut_blocks(pieces: Iterable[tuple[Any, int, int]], rows: int, most_bytes: int) -> Iterator[list[Part]]:
    """Blocks of a fixed number of rows, whatever the pieces were; fewer where they are wide, or the last.

    Args:
        pieces: what each piece is, how many rows it has, and how many bytes these take.
        rows: of a block.
        most_bytes: a block that takes this many is closed, however few rows it has.

    Example:
        >>> [[tuple(part) for part in block] for block in cut_blocks([("a", 5, 50), ("b", 2, 20)], 3, 1000)]
        [[('a', 0, 3)], [('a', 3, 5), ('b', 0, 1)], [('b', 1, 2)]]
    """
    waiting: list[Part] = []
    count = size = 0
    for piece, length, nbytes in pieces:
        start = 0
        while count + length - start >= rows:
            waiting.append(Part(piece, start, start + rows - count))
            yield waiting
            start = waiting[-1].stop
            waiting, count, size = [], 0, 0
        if start < length:
            waiting.append(Part(piece, start, length))
            count, size = count + length - start, size + nbytes * (length - start) // length
        if size >= most_bytes:
            yield waiting
            waiting, count, size = [], 0, 0
    if count:
        yield waiting


def with_places(table: pa.Table, name: str, places: NDArray[np.int64]) -> pa.Table:
    """Rows with their places beside them, in the last column, so that they are told wherever the rows go."""
    return table.append_column(name, pa.array(places, pa.int64()))


def joined(parts: Iterable[Part]) -> pa.Table:
    """The rows of parts of tables."""
    return pa.concat_tables([piece.slice(start, stop - start) for piece, start, stop in parts])
