"""Table files to pieces of rows, without trusting them.

Parquet, Arrow, NDJSON, CSV and NPZ files are read piece by piece, so that a file may be larger than memory. CSV holds
text and is kept as text: what a value means is decided by the encoding, and what is exported is what was read.
"""

import glob
import hashlib
import io
import json
import math
import re
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.ipc
import pyarrow.json
import pyarrow.parquet

PIECE = 16_384
"""Rows per piece, about."""

_PIECE_BYTES = 2**26  # wide rows come fewer at a time
_BLOCK_BYTES = 2**22
_HEADER_BYTES = 2**22
_MOST_COLUMNS = 100_000
_DEEPEST = 100  # brackets within brackets: pyarrow's reader of JSON calls itself for each, until the stack ends
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
                yield retyped(piece, _plain)
    except UnreadableError:
        raise
    except MemoryError:
        raise UnreadableError(
            f"{str(path)!r} must be readable in the memory there is: it is damaged, or needs a smaller --memory-limit"
        ) from None
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


def _read_parquet(path: Path) -> Iterator[pa.Table]:
    with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=2**20) as file:
        yield file.schema_arrow.empty_table()
        for batch in file.iter_batches(batch_size=_rows_per_piece(_row_bytes(file))):
            yield pa.Table.from_batches([batch])


def _row_bytes(file: pyarrow.parquet.ParquetFile) -> float:
    """How much memory a row takes, about: as the file says, and as its first rows do, where words were stored once."""
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    told = max((group.total_byte_size / max(group.num_rows, 1) for group in groups), default=0.0)
    if all(pa.types.is_primitive(field.type) for field in file.schema_arrow):
        return told
    first = next(file.iter_batches(batch_size=64), None)
    return told if first is None or not first.num_rows else max(told, first.nbytes / first.num_rows)


def _rows_per_piece(row_bytes: float) -> int:
    return max(1, min(PIECE, int(_PIECE_BYTES / max(row_bytes, 1.0))))


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
    lines, size, quotes = [], 0, 0
    while line := file.readline(_HEADER_BYTES):
        lines.append(line)
        size, quotes = size + len(line), quotes + line.count(b'"')
        if size >= _HEADER_BYTES:
            raise UnreadableError(
                f"the header of {file.name!r} must take at most {_HEADER_BYTES:,} bytes, got more: is a quote open?"
            )
        if quotes % 2 == 0:
            break
    text = b"".join(lines)
    return text if text.endswith(b"\n") else text + b"\n"


def _read_ndjson(path: Path) -> Iterator[pa.Table]:
    _check_depth(path)
    read = pyarrow.json.ReadOptions(block_size=_BLOCK_BYTES)
    with pyarrow.json.open_json(path, read_options=read) as reader:
        for batch in reader:
            yield from _cut(pa.Table.from_batches([batch]))


def _check_depth(path: Path) -> None:
    """Refuse brackets within brackets within brackets. Texts end with their line: no newline is allowed in them."""
    step = np.zeros(256, np.int32)
    step[list(b"[{")], step[list(b"]}")] = 1, -1
    kept = b'[]{}"\n'
    others = bytes(set(range(256)) - set(kept))
    depth = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            block += file.readline()
            if b"\\" in block:
                block = re.sub(rb"\\.", b"", block, flags=re.DOTALL)
            brackets = re.sub(rb'"[^"\n]*"', b"", block.translate(None, others))
            heights = depth + np.cumsum(step[np.frombuffer(brackets, np.uint8)], dtype=np.int64)
            if not len(heights):
                continue
            heights -= np.minimum(np.minimum.accumulate(heights), 0)  # what is closed too often does not count
            if heights.max() > _DEEPEST:
                raise UnreadableError(f"{str(path)!r} must hold plain objects, got brackets {_DEEPEST} deep and more")
            depth = int(heights[-1])


def _read_npz(path: Path) -> Iterator[pa.Table]:
    """Arrays of one length; a matrix becomes the columns name_0, name_1, ..."""
    with zipfile.ZipFile(path) as archive, ExitStack() as stack:
        arrays = [_Array(archive, name, stack) for name in archive.namelist()]
        arrays = [array for array in arrays if array.shape]
        lengths = {array.shape[0] for array in arrays}
        if len(lengths) != 1:
            raise UnreadableError(f"the arrays of {str(path)!r} must have one length, got {sorted(lengths) or 'none'}")
        if sum(array.width for array in arrays) > _MOST_COLUMNS:
            raise UnreadableError(f"{str(path)!r} must have at most {_MOST_COLUMNS:,} columns, got more")
        [length] = lengths
        rows = _rows_per_piece(sum(array.row_bytes for array in arrays))
        for start in range(0, length, rows):
            parts = [array.columns(start, min(start + rows, length)) for array in arrays]
            yield pa.table({name: pa.array(column) for part in parts for name, column in part.items()})
        for array in arrays:
            array.finish()


class _Array:
    """An array in an archive, read some rows at a time: what it says of its size is not believed."""

    def __init__(self, archive: zipfile.ZipFile, name: str, stack: ExitStack) -> None:
        self.name = name.removesuffix(".npy")
        self._file: IO[bytes] = stack.enter_context(archive.open(name))
        version = np.lib.format.read_magic(self._file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, by_columns, self._dtype = read(self._file)
        if self._dtype.hasobject or self._dtype.itemsize == 0 or any(n < 0 for n in self.shape):
            raise UnreadableError(f"the array {self.name!r} must hold numbers or text, got {self._dtype}")
        self.width = math.prod(self.shape[1:])
        self.row_bytes = self.width * self._dtype.itemsize
        self._whole: Any = None
        if by_columns and len(self.shape) > 1:  # rows are strewn all over it, so that it needs a place as a whole
            place = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            shutil.copyfileobj(self._file, place)
            place.flush()
            self._whole = np.memmap(place, self._dtype, "r", shape=self.shape, order="F")

    def columns(self, start: int, stop: int) -> dict[str, Any]:
        """The next rows, by the names of their columns."""
        if self._whole is not None:
            rows = self._whole[start:stop]
        else:
            content = self._file.read((stop - start) * self.row_bytes)
            rows = np.frombuffer(content, self._dtype).reshape(stop - start, *self.shape[1:])
        if len(self.shape) == 1:
            return {self.name: rows}
        matrix = rows.reshape(stop - start, -1)
        return {f"{self.name}_{i}": np.ascontiguousarray(matrix[:, i]) for i in range(self.width)}

    def finish(self) -> None:
        """See that nothing is left, which also checks the checksum of the archive."""
        if self._file.read(1):
            raise UnreadableError(f"the array {self.name!r} must be as long as it says, got more")


def _cut(table: pa.Table) -> Iterator[pa.Table]:
    yield table.slice(0, 0)
    rows = _rows_per_piece(table.nbytes / max(table.num_rows, 1))
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def retyped(table: pa.Table, change: Callable[[str, pa.ChunkedArray], pa.ChunkedArray]) -> pa.Table:
    """The same table with columns in other types, and all else as it was."""
    columns = [change(name, column) for name, column in zip(table.schema.names, table.columns, strict=True)]
    fields = [field.with_type(column.type) for field, column in zip(table.schema, columns, strict=True)]
    return pa.table(columns, schema=pa.schema(fields, table.schema.metadata))


def _plain(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same values in a type that rows can be taken from."""
    kind = column.type
    if pa.types.is_run_end_encoded(kind):
        return pc.run_end_decode(column)
    if pa.types.is_binary_view(kind):
        return column.cast(pa.binary())
    if pa.types.is_string_view(kind.value_type if pa.types.is_dictionary(kind) else kind):
        return column.cast(pa.string())
    return column


def _check_names(path: Path, schema: "pa.Schema | list[str]") -> None:
    names = schema.names if isinstance(schema, pa.Schema) else schema
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UnreadableError(
            f"the columns of {str(path)!r} must have different names, got {twice[0]!r} more than once"
        )


def _flat(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """What CSV has no form for, such as lists, as JSON-like text."""
    if not pa.types.is_nested(column.type):
        return column
    return pa.chunked_array([pa.array([None if v is None else str(v) for v in column.to_pylist()], pa.string())])


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

WRITERS: dict[str, Callable[[pa.Table, BinaryIO], None]] = {
    ".parquet": pyarrow.parquet.write_table,
    ".csv": lambda table, file: pyarrow.csv.write_csv(retyped(table, _flat), file),
    **dict.fromkeys((".ndjson", ".jsonl"), _write_ndjson),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), _write_arrow),
}
