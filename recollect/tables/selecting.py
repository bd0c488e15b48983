"""Choosing rows of table files once, and writing chosen rows down."""

import contextlib
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from recollect.files import replacing
from recollect.tables.encoding import Encoding
from recollect.tables.memory import MakeNetwork, Settings, TableMemory, Taken, conform
from recollect.tables.reading import pieces, retyped, write_table


def select_rows(
    settings: Settings,
    paths: list[Path],
    *,
    make_network: MakeNetwork | None = None,
    progress: bool = False,
) -> tuple[TableMemory, Taken]:
    """Choose rows of all files together; they are read twice, once to decide how columns are encoded.

    Rows that do not fit the memory limit at once are taken in one block after the other, as a stream.
    """
    held = TableMemory.for_files(settings, paths, make_network, all_known=True, progress=progress)
    rows = (conform(piece, held.schema, path) for path in paths for piece in pieces(path))
    return held, held.take(rows)


def export_table(held: TableMemory, output: Path) -> int:
    """Write the chosen rows with their weights, in the format of the file's ending; returns how many."""
    table = held.table()
    if output.suffix.lower() != ".csv":
        table = _typed(table, held.encoding)
    with replacing(output) as file:
        write_table(table, output, file)
    return int(table.num_rows)


def _typed(table: pa.Table, encoding: Encoding) -> pa.Table:
    """Numbers that were read as text, from CSV, as numbers: other formats have a place for them."""
    kinds = {column.name: column.kind for column in encoding.columns}
    if encoding.task == "regression":
        kinds[encoding.target] = "number"

    def typed(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        if pa.types.is_string(column.type) and (kinds.get(name) == "number" or name == encoding.target):
            for kind in (pa.int64(), pa.float64()):
                with contextlib.suppress(pa.ArrowException):
                    return pc.utf8_trim_whitespace(column).cast(kind)
        return column  # also if something is no number, such as "NA": it stays as it is

    return retyped(table, typed)
