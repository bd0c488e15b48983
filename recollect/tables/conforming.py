"""Several files as rows of one kind of table: recognised, looked at, and brought to the columns of the first."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from recollect.progress import Bar, progress_bar
from recollect.tables.casting import cast_unchanged, widened
from recollect.tables.examining import Examined, examine
from recollect.tables.reading import Reading, Source, pieces, recognise
from recollect.tables.settings import Settings
from recollect.tables.wording import option


def read_as(sources: Iterable[Source]) -> dict[str, str]:
    """How each file is read, by its name, which need not be text."""
    return {Path(source.name).name.encode(errors="replace").decode(): source.read_as for source in sources}


def recognised(sources: Iterable[Path | Source], reading: Reading) -> list[Source]:
    """Files, and how each is read."""
    return [source if isinstance(source, Source) else recognise(source, reading) for source in sources]


def examine_files(
    settings: Settings, sources: Sequence[Source], *, target: bool = True, progress: bool = False
) -> tuple[pa.Schema, Examined]:
    """The columns of the first file, and what all rows of all files say about them."""
    with closing(pieces(sources[0])) as first:
        schema = next(first).schema
    while True:
        with progress_bar("looking at columns", None, show=progress) as bar:
            try:
                found = examine(
                    _watched(_rows(sources, schema), bar),
                    settings.target if target else None,
                    task=settings.task,
                    kinds=kinds_of(settings),
                    decimal=settings.reading.decimal,
                )
                return schema, found
            except _WiderError as error:  # the first file did not tell all: look again
                schema = error.schema


class _WiderError(Exception):
    """A later file says more of the columns than the first."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__()
        self.schema = schema


def _rows(sources: Sequence[Source], schema: pa.Schema) -> Iterator[pa.Table]:
    for source in sources:
        for piece in pieces(source):
            if (wider := widened_schema(schema, piece.schema, source)) != schema:
                raise _WiderError(wider)
            yield conform(piece, schema, source)


def widened_schema(schema: pa.Schema, later: pa.Schema, source: Source, ignore: Sequence[str] = ()) -> pa.Schema:
    """The columns, in types that hold those of a later file where nothing but missing values told theirs so far.

    In JSON, whole numbers do not tell that there are no fractions either.
    """
    fractions = source.dialect.format in ("json", "ndjson")
    known = {field.name: field.type for field in later if field.name not in ignore}
    fields = [f.with_type(widened(f.type, known.get(f.name, f.type), fractions=fractions)) for f in schema]
    return pa.schema(fields, schema.metadata)


def kinds_of(settings: Settings) -> dict[str, str]:
    """What columns were said to be."""
    return {**dict.fromkeys(settings.ignore, "ignored"), **settings.kinds}


def _watched(tables: Iterable[pa.Table], bar: Bar) -> Iterator[pa.Table]:
    for table in tables:
        yield table
        bar.advance(table.num_rows)


def conform(piece: pa.Table, schema: pa.Schema, source: object, ignore: Sequence[str] | None = None) -> pa.Table:
    """The rows with the columns of the first file; another schema is refused with the column named.

    A type that differs is taken where no value changes by it.

    Args:
        piece: some rows.
        schema: the columns of the first file.
        source: where the rows come from, for the sentence.
        ignore: columns that may be missing, or be more, or of another type: they are missing values then. None if
            nobody can say so, as of files that are chosen from together.
    """

    def advice(name: str, otherwise: str) -> str:
        return "give all files the same columns" if ignore is None else f"pass {option('ignore', name)} to {otherwise}"

    wanted_names, names, what = schema.names, piece.schema.names, repr(str(source))
    if wanted_names != names:
        more = sorted(set(names) - set(wanted_names) - set(ignore or ()))
        if missing := sorted(set(wanted_names) - set(names) - set(ignore or ())):
            new = f", while {', '.join(map(repr, more[:3]))} came besides" if more else ""
            raise ValueError(
                f"{what} must have the column {missing[0]!r} of the first file, which is missing{new}: "
                f"{advice(missing[0], 'take it as missing values, or name it so if it is the target')}"
            )
        if more:
            raise ValueError(
                f"{what} must have the columns of the first file, got {more[0]!r} besides: "
                f"{advice(more[0], 'leave it out')}"
            )
    columns = []
    for wanted in schema:
        if wanted.name in (ignore or ()):
            columns.append(pa.nulls(piece.num_rows, wanted.type))
            continue
        column = piece.column(wanted.name)
        try:
            columns.append(cast_unchanged(column, wanted.type))
        except (pa.ArrowException, ValueError, OverflowError):
            raise ValueError(
                f"column {wanted.name!r} of {what} must be {wanted.type} as in the first file, got {column.type}: "
                f"{advice(wanted.name, 'take it as missing values')}"
            ) from None
    return pa.table(columns, schema=schema)
