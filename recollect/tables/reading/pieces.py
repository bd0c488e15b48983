"""Any file to pieces of rows, or to one sentence that says why not."""

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from recollect.tables.reading.arrays import read_npz
from recollect.tables.reading.columnar import parquet_parts, read_arrow, read_parquet
from recollect.tables.reading.delimited import read_csv
from recollect.tables.reading.dialect import Format, Skipped, Source, UnreadableError
from recollect.tables.reading.recognising import recognise
from recollect.tables.reading.records import read_json, read_ndjson
from recollect.tables.reading.sheets import read_xlsx
from recollect.tables.wording import option

READERS: dict[Format, Callable[[Source, Skipped], Iterator[pa.Table]]] = {
    "parquet": read_parquet,
    "csv": read_csv,
    "ndjson": read_ndjson,
    "json": read_json,
    "arrow": read_arrow,
    "npz": read_npz,
    "xlsx": read_xlsx,
}


def pieces(source: Path | Source, skipped: Skipped | None = None) -> Generator[pa.Table, None, None]:
    """The rows of a file or a part of it, a piece at a time, with the same columns; a whole file has at least one.

    Args:
        source: a file, which is recognised, or one that has been.
        skipped: told of rows that are left out, if the source's reading says so, of one file after the other.
    """
    source = recognise(source) if isinstance(source, Path) else source
    schema: pa.Schema | None = None
    skipped = skipped or Skipped()
    rows, left_out = 0, skipped.rows
    try:
        for piece in READERS[source.dialect.format](source, skipped):
            piece.validate(full=True)  # a damaged file may hold offsets that lead out of its buffers
            piece = _with_folders(piece, source)
            if schema is None:
                schema = piece.schema
                _check_names(source, schema)
            if piece.num_rows:
                rows += piece.num_rows
                yield retyped(piece, plain)
    except UnreadableError:
        raise
    except MemoryError:
        raise UnreadableError(
            f"{source.name!r} must be readable in the memory there is: it is damaged, or "
            f"needs a smaller {option('memory_limit')}"
        ) from None
    except Exception as error:  # whatever a reader makes of a damaged file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableError(
            f"{source.name!r} must be a readable {source.dialect.format} file: {reason[:300]}"
        ) from None
    if not rows and source.groups is None:
        is_left_out = source.reading.skip_bad_rows and source.dialect.format == "csv"
        hint = " that could be read: the names of the columns must be the first line" if is_left_out else ""
        if source.dialect.sheets > 1:
            hint = f" in the sheet {source.dialect.sheet!r} of {source.dialect.sheets}: pass {option('sheet')}"
        raise UnreadableError(f"{source.name!r} must hold at least one row, got none{hint}")
    skipped.start += rows + skipped.rows - left_out


def _with_folders(piece: pa.Table, source: Source) -> pa.Table:
    """The same rows with a column for what each folder says, unless the file has one of that name."""
    for name, value in source.folders:
        if name not in piece.schema.names:
            piece = piece.append_column(name, pa.repeat(pa.scalar(value, pa.string()), piece.num_rows))
    return piece


def parts(source: Source) -> list[Source]:
    """Parts of a file that may be read apart, in order: a file whose format has none is one."""
    if source.dialect.format != "parquet" or source.address is not None:
        return [source]
    try:
        found = parquet_parts(source)
    except (pa.ArrowException, OSError, ValueError):
        return [source]  # whoever reads it says what is wrong
    return found if len(found) > 1 else [source]


def known_rows(source: Source) -> int | None:
    """How many rows a file says that it has; None if it does not say. Only for showing how far it is."""
    if source.dialect.format != "parquet":
        return None
    try:
        return int(pyarrow.parquet.read_metadata(source.path).num_rows)
    except (pa.ArrowException, OSError, ValueError):
        return None


def retyped(table: pa.Table, change: Callable[[str, pa.ChunkedArray], pa.ChunkedArray]) -> pa.Table:
    """The same table with columns in other types, and all else as it was."""
    columns = [change(name, column) for name, column in zip(table.schema.names, table.columns, strict=True)]
    fields = [field.with_type(column.type) for field, column in zip(table.schema, columns, strict=True)]
    return pa.table(columns, schema=pa.schema(fields, table.schema.metadata))


def plain(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same values in a type that rows can be taken from."""
    kind = column.type
    if pa.types.is_run_end_encoded(kind):
        return pc.run_end_decode(column)
    if pa.types.is_binary_view(kind):
        return column.cast(pa.binary())
    if pa.types.is_dictionary(kind) and pa.types.is_string_view(kind.value_type):  # as polars has them
        chunks = [chunk.dictionary.cast(pa.string()).take(chunk.indices) for chunk in column.chunks]
        return pa.chunked_array(chunks, pa.string())
    if pa.types.is_dictionary(kind) and (pa.types.is_nested(kind.value_type) or _is_extension(kind.value_type)):
        chunks = [chunk.dictionary.take(chunk.indices) for chunk in column.chunks]  # of several parts make no whole
        return pa.chunked_array(chunks, kind.value_type)
    if pa.types.is_string_view(kind):
        return column.cast(pa.string())
    if pa.types.is_dictionary(kind) and kind.index_type.bit_width < 32:  # values of many files may be more than fit
        chunks = [_recoded(chunk, chunk.indices.cast(pa.int32()), chunk.dictionary) for chunk in column.chunks]
        return pa.chunked_array(chunks, pa.dictionary(pa.int32(), kind.value_type, kind.ordered))
    if pa.types.is_nested(kind) and (decoded := _decoded(kind)) != kind:
        with suppress(pa.ArrowNotImplementedError):  # as for lists of what polars has
            return column.cast(decoded)
    return column


def _is_extension(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType)


def in_use(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same values without what no row has: rows that are taken bring all values of those that are not.

    An ordered scale stays whole, as its steps mean something beside one another.
    """
    if not pa.types.is_dictionary(column.type) or column.type.ordered:
        return column
    chunks = []
    for chunk in column.chunks:
        used = pc.unique(chunk.indices.drop_null())
        used = used.take(pc.array_sort_indices(used))
        indices = pc.index_in(chunk.indices, value_set=used).cast(column.type.index_type)
        chunks.append(_recoded(chunk, indices, chunk.dictionary.take(used)))
    return pa.chunked_array(chunks, column.type)


def _recoded(chunk: pa.DictionaryArray, indices: pa.Array, values: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(indices, values, ordered=chunk.type.ordered)


def _decoded(kind: pa.DataType) -> pa.DataType:
    """The type with values themselves where it has numbers of values."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_decoded(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_decoded(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_decoded(kind.value_type)))
    return kind


def _check_names(source: Source, schema: pa.Schema) -> None:
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if not twice:
        return
    has_first_line = source.dialect.format in ("csv", "xlsx")
    if has_first_line and "" in twice:
        raise UnreadableError(
            f"the columns of {source.name!r} must have names, got {schema.names.count('')} of {len(schema.names)} "
            "without one: remove what stands above the names, which must be the first line, or name each column"
        )
    unnamed = has_first_line and all(re.fullmatch(r"[+-]?[\d.,]+", name) for name in schema.names)
    raise UnreadableError(
        f"the columns of {source.name!r} must have different names, got {twice[0]!r} more than once: "
        f"{'the first line must hold the names of the columns' if unnamed else 'rename one'}"
    )
