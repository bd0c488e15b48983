"""Rows to a file, in the format of its ending."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from recollect.tables.reading import retyped

WRITTEN = (".parquet", ".csv", ".ndjson", ".arrow")


def write_table(table: pa.Table, path: Path, file: BinaryIO) -> None:
    """Write rows in the format of the path's ending."""
    if path.suffix.lower() not in WRITERS:
        raise ValueError(f"a table must end in {', '.join(WRITTEN)}, got {path.suffix!r}")
    try:
        WRITERS[path.suffix.lower()](table, file)
    except (pa.ArrowException, OverflowError) as error:  # not every format has a place for every type
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"the rows must have types that {path.suffix[1:]} has: choose another ending: {reason}"
        ) from None


def _write_arrow(table: pa.Table, file: BinaryIO) -> None:
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _write_ndjson(table: pa.Table, file: BinaryIO) -> None:
    for row in table.to_pylist():
        file.write(json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n")


def _flat(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """What CSV has no form for, such as lists, as JSON-like text."""
    if not pa.types.is_nested(column.type):
        return column
    return pa.chunked_array([pa.array([None if v is None else str(v) for v in column.to_pylist()], pa.string())])


WRITERS: dict[str, Callable[[pa.Table, BinaryIO], None]] = {
    ".parquet": pyarrow.parquet.write_table,
    ".csv": lambda table, file: pyarrow.csv.write_csv(retyped(table, _flat), file),
    **dict.fromkeys((".ndjson", ".jsonl"), _write_ndjson),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), _write_arrow),
}
