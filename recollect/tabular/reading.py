"""Table files to pieces of rows, without trusting them.

Parquet, Arrow, NDJSON, CSV and NPZ files are read piece by piece, so that a file may be larger than memory. CSV holds
text and is kept as text: what a value means is decided by the encoding, and what is exported is what was read.
"""

import glob
import hashlib
import io
import json
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.json
import pyarrow.parquet

PIECE = 16_384
"""Rows per piece, about."""

_BLOCK_BYTES = 2**22
_MAGIC = b"ARROW1"


class UnreadableError(ValueError):
    """A file is not a table that can be read."""


def find_files(patterns: Iterable[str]) -> list[Path]:
    """The files that paths and globs stand for, in order, each once."""
    found: list[Path] = []
    for pattern in patterns:
        path = Path(pattern)
        matches = [path] if path.exists() else sorted(map(Path, glob.glob(pattern, recursive=True)))  # noqa: PTH207
        if not matches:
            raise ValueError(f"there must be a file {pattern!r}, got none")
        found += [match for match in matches if match not in found]
    for path in found:
        if not path.is_file():
            raise ValueError(f"rows are read from files, got {str(path)!r}, which is not one")
        if path.suffix.lower() not in READERS:
            raise ValueError(f"a table must end in {', '.join(READERS)}, got {str(path)!r}")
    return found


def pieces(path: Path) -> Generator[pa.Table, None, None]:
    """The rows of a file, a piece at a time; at least one row in all, and the same columns throughout."""
    schema: pa.Schema | None = None
    rows = 0
    try:
        for piece in READERS[path.suffix.lower()](path):
            piece.validate(full=True)  # a damaged file may hold offsets that lead out of its buffers
            if schema is None:
                schema = piece.schema
                _check_names(path, schema)
            if piece.num_rows:
                rows += piece.num_rows
                yield piece
    except UnreadableError:
        raise
    except Exception as error:  # whatever a reader makes of a damaged file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableError(f"{str(path)!r} must be a readable {path.suffix[1:]} file: {reason[:300]}") from None
    if not rows:
        raise UnreadableError(f"{str(path)!r} must hold at least one row, got none")


def content_hash(path: Path) -> str:
    """What tells one file's content from another's."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def write_table(table: pa.Table, path: Path, file: BinaryIO) -> None:
    """Write rows in the format of the path's ending."""
    match path.suffix.lower():
        case ".parquet":
            pyarrow.parquet.write_table(table, file)
        case ".arrow" | ".feather" | ".ipc":
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        case ".csv":
            pyarrow.csv.write_csv(_flat(table), file)
        case ".ndjson" | ".jsonl":
            for row in table.to_pylist():
                file.write(json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n")
        case other:
            raise ValueError(f"a table must end in {', '.join(WRITTEN)}, got {other!r}")


def _read_parquet(path: Path) -> Iterator[pa.Table]:
    with pyarrow.parquet.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
        yield file.schema_arrow.empty_table()
        for batch in file.iter_batches(batch_size=PIECE):
            yield pa.Table.from_batches([batch])


def _read_arrow(path: Path) -> Iterator[pa.Table]:
    with pa.memory_map(str(path)) as source:
        is_file = source.read(len(_MAGIC)) == _MAGIC
        source.seek(0)
        if is_file:
            with pa.ipc.open_file(source) as reader:
                yield reader.schema.empty_table()
                for i in range(reader.num_record_batches):
                    yield from _cut(pa.Table.from_batches([reader.get_batch(i)]))
        else:
            with pa.ipc.open_stream(source) as reader:
                yield reader.schema.empty_table()
                for batch in reader:
                    yield from _cut(pa.Table.from_batches([batch]))


def _read_csv(path: Path) -> Iterator[pa.Table]:
    with path.open("rb") as file:
        names = pyarrow.csv.open_csv(io.BytesIO(_first_line(file)), parse_options=_PARSE).schema.names
    _check_names(path, names)
    convert = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
    )
    read = pyarrow.csv.ReadOptions(block_size=_BLOCK_BYTES)
    with pyarrow.csv.open_csv(path, read_options=read, parse_options=_PARSE, convert_options=convert) as reader:
        for batch in reader:
            yield from _cut(pa.Table.from_batches([batch]))


_PARSE = pa.csv.ParseOptions(newlines_in_values=True)


def _first_line(file: BinaryIO) -> bytes:
    """The header, which may hold quoted newlines, and enough to end it."""
    text = file.readline(2**20)
    while text.count(b'"') % 2 and (more := file.readline(2**20)):
        text += more
    return text if text.endswith(b"\n") else text + b"\n"


def _read_ndjson(path: Path) -> Iterator[pa.Table]:
    read = pyarrow.json.ReadOptions(block_size=_BLOCK_BYTES)
    with pyarrow.json.open_json(path, read_options=read) as reader:
        for batch in reader:
            yield from _cut(pa.Table.from_batches([batch]))


def _read_npz(path: Path) -> Iterator[pa.Table]:
    """Arrays of one length; a matrix becomes the columns name_0, name_1, ..."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        columns: dict[str, np.ndarray] = {}
        for name in arrays.files:
            array = arrays[name]
            if array.ndim == 1:
                columns[name] = array
            elif array.ndim > 1:
                matrix = array.reshape(len(array), -1)
                columns |= {f"{name}_{i}": matrix[:, i] for i in range(matrix.shape[1])}
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1:
        raise UnreadableError(f"the arrays of {str(path)!r} must have one length, got {sorted(lengths) or 'none'}")
    yield from _cut(pa.table({name: pa.array(np.ascontiguousarray(column)) for name, column in columns.items()}))


def _cut(table: pa.Table) -> Iterator[pa.Table]:
    yield table.slice(0, 0)
    for start in range(0, table.num_rows, PIECE):
        yield table.slice(start, PIECE)


def _check_names(path: Path, schema: "pa.Schema | list[str]") -> None:
    names = schema.names if isinstance(schema, pa.Schema) else schema
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UnreadableError(
            f"the columns of {str(path)!r} must have different names, got {twice[0]!r} more than once"
        )


def _flat(table: pa.Table) -> pa.Table:
    """Columns that CSV has no form for, such as lists, as JSON-like text."""
    for i, field in enumerate(table.schema):
        if pa.types.is_nested(field.type):
            values = pa.array([None if v is None else str(v) for v in table.column(i).to_pylist()], pa.string())
            table = table.set_column(i, field.name, values)
    return table


READERS: dict[str, Callable[[Path], Iterator[pa.Table]]] = {
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    ".ndjson": _read_ndjson,
    ".jsonl": _read_ndjson,
    ".arrow": _read_arrow,
    ".feather": _read_arrow,
    ".ipc": _read_arrow,
    ".npz": _read_npz,
}

WRITTEN = (".parquet", ".csv", ".ndjson", ".arrow")
