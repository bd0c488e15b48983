"""Rows to a file, in the format of its ending."""

import io
import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from recollect.tables.reading import retyped

WRITTEN = (".parquet", ".csv", ".ndjson", ".jsonl", ".arrow", ".feather", ".ipc")


def write_table(table: pa.Table, path: Path, file: BinaryIO) -> None:
    """Write rows in the format of the path's ending."""
    if path.suffix.lower() not in WRITERS:
        raise ValueError(f"a table must end in {', '.join(WRITTEN)}, got {path.suffix!r}")
    write = WRITERS[path.suffix.lower()]
    try:
        write(table, file)
    except (pa.ArrowException, OverflowError) as error:  # not every format has a place for every value
        column = next((name for name in table.column_names if not _fits(table.select([name]), write)), None)
        what = "the rows" if column is None else f"column {column!r}"
        got = f"of {table.schema.field(column).type} " if column is not None else ""
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{what} must have values that {path.suffix[1:]} has a form for, got some {got}that it has not ({reason}): "
            "choose another ending"
        ) from None


def _fits(table: pa.Table, write: Callable[[pa.Table, BinaryIO], None]) -> bool:
    try:
        write(table, io.BytesIO())
    except (pa.ArrowException, OverflowError):
        return False
    return True


def _write_arrow(table: pa.Table, file: BinaryIO) -> None:
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _write_ndjson(table: pa.Table, file: BinaryIO) -> None:
    for row in retyped(table, _numbers).to_pylist():
        file.write(_json({name: _in_json(name, value) for name, value in row.items()}).encode() + b"\n")


def _numbers(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decimals as numbers, unless one has more digits than a float: then all of them stay text, digit for digit."""
    if not pa.types.is_decimal(column.type):
        return column
    exact = column.to_pylist()
    found = [None if value is None else float(value) for value in exact]
    lost = any(value is not None and Decimal(repr(number)) != value for number, value in zip(found, exact, strict=True))
    return column if lost else pa.chunked_array([pa.array(found, pa.float64())])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _in_json(name: str, value: Any) -> Any:
    """A value of a column as JSON has it, which knows neither NaN nor bytes."""
    if isinstance(value, dict):
        return {key: _in_json(name, part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_in_json(name, part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        if not math.isnan(value):
            raise ValueError(f"numbers in JSON must be finite, got {value} in column {name!r}: choose another ending")
        return None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueError(
                f"bytes in JSON must be text in utf-8, got {value[:20]!r} in column {name!r}: choose another ending"
            ) from None
    return value


def _flat(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """What CSV has no form for: lists and the like as JSON, and other types as what they stand for."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    extended = isinstance(kind, pa.BaseExtensionType)
    if not (extended or pa.types.is_nested(kind) or pa.types.is_interval(kind) or pa.types.is_string_view(kind)):
        return column
    return pa.chunked_array([pa.array([_in_csv(name, value) for value in column.to_pylist()])])


def _in_csv(name: str, value: Any) -> Any:
    if isinstance(value, dict | list | tuple):
        return _json(_in_json(name, value))
    return value if value is None or isinstance(value, bool | int | float | bytes) else str(value)


WRITERS: dict[str, Callable[[pa.Table, BinaryIO], None]] = {
    ".parquet": pyarrow.parquet.write_table,
    ".csv": lambda table, file: pyarrow.csv.write_csv(retyped(table, _flat), file),
    **dict.fromkeys((".ndjson", ".jsonl"), _write_ndjson),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), _write_arrow),
}
