"""Files that the workers of a Ray cluster read, look at and encode; what is found comes to the driver, rows do not.

A file is read in parts: row groups of a Parquet file, or the whole of another. A first pass asks a worker for each part
what its rows say of the columns; what they say is folded in, in order, as if one process had read all. A second pass
reads and encodes, and leaves the rows with the workers, where the memory's look at them goes on.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recollect.batch import Batch
from recollect.cluster import Piece, connected, import_ray
from recollect.memories import GradientMatching, Memory
from recollect.progress import progress_bar
from recollect.tables.blocks import Encoded, Found, Part, cut_blocks, encode, with_places
from recollect.tables.conforming import conform, kinds_of
from recollect.tables.encoding import Encoding
from recollect.tables.examining import Examined, begin, conclude
from recollect.tables.memory import TableMemory
from recollect.tables.reading import (
    Reading,
    Skipped,
    Source,
    at_hand,
    content_hash,
    found_at,
    parts,
    pieces,
    recognise_at,
)
from recollect.tables.settings import Settings
from recollect.tables.summaries import Glimpse, Summary
from recollect.tables.wording import option, spoken

_TOGETHER = 16  # findings that are put together by one task

_AlwaysAgain = {"max_retries": -1}  # a worker that dies is started again, and its part is read again


@contextmanager
def working(address: str) -> Iterator["Workers"]:
    """The workers of a cluster, for as long as they are needed."""
    with connected(address) as processors:
        yield Workers(processors)


def _task(ray: Any, function: Any, **options: Any) -> Any:
    """What a worker does, whose sentences are in the words of who asks."""
    return ray.remote(spoken(function)).options(name=function.__name__, **_AlwaysAgain, **options)


def check_settings(settings: Settings) -> None:
    """Refuse what needs all rows in one place."""
    wanted = "a cluster chooses by gradient matching, and from all classes alike"
    if settings.memory != "recollect":
        raise ValueError(
            f"{wanted}, got memory {settings.memory!r}: pass {option('memory', 'recollect')} where it is "
            f"made, or no {option('cluster')}"
        )
    if settings.class_weight or settings.min_per_class:
        raise ValueError(f"{wanted}, got class weights or places: leave out {option('cluster')}")


class Workers:
    """Those who read files, of the cluster that is connected."""

    def __init__(self, processors: int) -> None:
        self._ray, self._processors = import_ray(), processors

    def _task(self, function: Any, **options: Any) -> Any:
        return _task(self._ray, function, **options)

    def _in_order(self, function: Any, items: Iterable[tuple[Any, ...]]) -> list[Any]:
        task = self._task(function)
        return [self._ray.get(answer) for answer in [task.remote(*item) for item in items]]

    def sources(self, patterns: Iterable[str], reading: Reading) -> list[Source]:
        """The tables that paths, globs, folders and addresses stand for, each recognised by a worker."""
        found: list[Source] = self._in_order(recognise_at, [(*where, reading) for where in found_at(patterns)])
        return found

    def digest(self, source: Source) -> str:
        """What tells a file's content from another's."""
        return source.digest or str(self._in_order(_digest, [(source,)])[0])

    def examine(
        self, settings: Settings, sources: Sequence[Source], *, target: bool = True, progress: bool = False
    ) -> tuple[pa.Schema, Examined]:
        """As `examine_files`."""
        wanted = settings.target if target else None
        divided = self._parts(sources)
        start = self._task(_begin, num_returns=2).remote(divided[0], wanted, kinds_of(settings))
        schema, state = start
        glimpse, fold = self._task(_glimpses), self._task(_fold)
        glimpses = [glimpse.remote(part, schema, state, i == 0) for i, part in enumerate(divided)]
        states = []
        for i in range(0, len(glimpses), _TOGETHER):
            state = fold.remote(state, *glimpses[i : i + _TOGETHER])
            states.append(state)
        with progress_bar("looking at columns", len(states), show=progress) as bar:
            for done in states:
                self._ray.wait([done], fetch_local=False)
                bar.advance()
        try:
            summaries = self._ray.get(state)
        except self._ray.exceptions.RayTaskError:
            for answer in [*start, *glimpses]:  # of several parts that cannot be read, the first is told
                self._ray.get(answer)
            raise
        found = conclude(summaries, wanted, task=settings.task, decimal=settings.reading.decimal)
        return self._ray.get(schema), found

    def blocks(
        self, held: TableMemory, sources: Sequence[Source], skipped: Skipped, ignore: Sequence[str] = ()
    ) -> Iterator["RowsThere"]:
        """The rows of files in the blocks that they are taken in by."""
        check_settings(held.settings)
        encoding = self._ray.put(held.encoding)
        for some in cut_blocks(self._pieces(held, sources, tuple(ignore), skipped), *held.block_size):
            yield RowsThere(some, encoding, self._processors)

    def _pieces(
        self, held: TableMemory, sources: Sequence[Source], ignore: tuple[str, ...], skipped: Skipped
    ) -> Iterator[tuple[tuple[Any, int], int, int]]:
        """Where the rows are, piece by piece, and how many; as many parts as there are workers are read ahead.

        Beside each piece stands how many rows there are before the part that it is of.
        """
        read, schema, passed = self._task(_read, num_returns="streaming"), self._ray.put(held.schema), held.passed
        divided, reading = deque(self._parts(sources)), deque[Any]()
        while divided or reading:
            while divided and len(reading) < self._processors:
                reading.append(read.remote(divided.popleft(), schema, ignore, held.row_name))
            answers, before = reading.popleft(), passed
            for answer in answers:
                rows, nbytes, left_out = self._ray.get(answer)
                skipped.rows += left_out
                passed += rows + left_out
                if rows:
                    yield (next(answers), before), rows, nbytes

    def _parts(self, sources: Sequence[Source]) -> list[Source]:
        return [part for some in self._in_order(_parts, [(source,) for source in sources]) for part in some]


class RowsThere:
    """Rows that stay with the workers that read them."""

    def __init__(self, some: Sequence[Part], encoding: Any, processors: int) -> None:
        self._ray, self._processors = import_ray(), processors
        task = _task(self._ray, _encode, num_returns=3)
        answers = [task.remote(encoding, start, stop, before, piece) for (piece, before), start, stop in some]
        self._found, self._encoded, self._rows = ([answer[i] for answer in answers] for i in range(3))

    def found(self) -> Found:
        task, left = _task(self._ray, _plus), self._found
        while len(left) > 1:
            left = [task.remote(*left[i : i + _TOGETHER]) for i in range(0, len(left), _TOGETHER)]
        try:
            whole: Found = self._ray.get(left[0])
        except self._ray.exceptions.RayTaskError:
            for answer in self._found:  # of several parts that cannot be encoded, the first is told
                self._ray.get(answer)
            raise
        return whole

    def head(self, classes: Sequence[str]) -> None:
        return None

    def update(self, memory: Memory, classes: Sequence[str]) -> None:
        assert isinstance(memory, GradientMatching)
        sizes = self._sizes(classes)
        here = [Piece(what, rows) for what, rows in zip(self._encoded, sizes, strict=True) if rows]
        memory.take_pieces(here, partial(_examples, tuple(classes)), self._processors)

    def take(self, places: NDArray[np.int64], classes: Sequence[str]) -> pa.Table:
        ends = np.cumsum(self._sizes(classes))
        task, asked = _task(self._ray, _take), []
        owner = np.searchsorted(ends, places, side="right")
        for i in np.unique(owner).tolist():
            first = ends[i - 1] if i else 0
            asked.append(task.remote(self._rows[i], self._encoded[i], places[owner == i] - first, tuple(classes)))
        if not asked:
            asked = [task.remote(self._rows[0], self._encoded[0], places, tuple(classes))]
        return self._ray.get(_task(self._ray, _joined).remote(*asked))

    def _sizes(self, classes: Sequence[str]) -> list[int]:
        """How many rows of these classes each part has."""
        task = _task(self._ray, _sizes)
        steps = range(0, len(self._found), 64)
        asked = [task.remote(tuple(classes), *self._found[i : i + 64]) for i in steps]
        return [rows for some in self._ray.get(asked) for rows in some]


# What one worker does


def _digest(source: Source) -> str:
    with at_hand(source) as here:
        return content_hash(here)


def _parts(source: Source) -> list[Source]:
    with at_hand(source) as here:
        return parts(here) if source.address is None else [source]


def _begin(part: Source, target: str | None, kinds: dict[str, str]) -> tuple[pa.Schema, dict[str, Summary]]:
    """The columns, and what the first piece of all says about them."""
    with at_hand(part) as here, closing(pieces(here)) as first:
        piece = next(first)
    return piece.schema, begin(piece, target, kinds)


def _glimpses(part: Source, schema: pa.Schema, state: dict[str, Summary], is_first: bool) -> list[dict[str, Glimpse]]:
    """What the rows of a part say, piece by piece; the very first piece is in the state already."""
    with at_hand(part) as here:
        conformed = (conform(piece, schema, part) for piece in pieces(here))
        if is_first:
            next(conformed)
        return [
            {name: summary.look(piece.column(name), later=True) for name, summary in state.items()}
            for piece in conformed
        ]


def _fold(state: dict[str, Summary], *parts: list[dict[str, Glimpse]]) -> dict[str, Summary]:
    for glimpses in parts:
        for glimpse in glimpses:
            for name, summary in state.items():
                summary.fold(glimpse[name])
    return state


def _read(part: Source, schema: pa.Schema, ignore: tuple[str, ...], row_name: str) -> Iterator[Any]:
    """For each piece its rows, bytes, and rows left out before it; then the piece, with places in the part."""
    skipped, told, read = Skipped(), 0, 0
    with at_hand(part) as here:
        for piece in pieces(here, skipped):
            table = conform(piece, schema, part, ignore)
            yield table.num_rows, table.nbytes, skipped.rows - told
            told = skipped.rows
            yield with_places(table, row_name, skipped.places(read, table.num_rows))
            read += table.num_rows
    yield 0, 0, skipped.rows - told


def _encode(encoding: Encoding, start: int, stop: int, before: int, piece: pa.Table) -> tuple[Found, Encoded, pa.Table]:
    rows, place = piece.slice(start, stop - start), piece.num_columns - 1
    return encode(rows.set_column(place, rows.field(place), pc.add(rows.column(place), before)), encoding)


def _plus(first: Found, *others: Found) -> Found:
    for other in others:
        first = first.plus(other)
    return first


def _sizes(classes: tuple[str, ...], *found: Found) -> list[int]:
    known = set(classes)
    return [
        sum(rows for name, rows in some.counts.items() if name in known) if some.counts else some.rows for some in found
    ]


def _examples(classes: tuple[str, ...], encoded: Encoded) -> Batch:
    return Batch.arriving(*encoded.examples(classes))


def _joined(*tables: pa.Table) -> pa.Table:
    """In one table: the columns' names alone may take more than a few rows."""
    return pa.concat_tables(tables).combine_chunks()


def _take(rows: pa.Table, encoded: Encoded, places: NDArray[np.int64], classes: tuple[str, ...]) -> pa.Table:
    return encoded.take(rows, places, classes)
