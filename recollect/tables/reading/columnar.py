"""Parquet and Arrow files, a piece at a time."""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from recollect.tables.reading.cutting import PIECE, cut, rows_per_piece
from recollect.tables.reading.dialect import Skipped, Source

_MAGIC = b"ARROW1"
_PART = 4 * PIECE  # rows that are read by one worker, at least


def read_parquet(source: Source, skipped: Skipped) -> Iterator[pa.Table]:
    """Row groups may be large: batches are not. No batch goes beyond a part, so that parts may be read apart."""
    with pyarrow.parquet.ParquetFile(source.path, pre_buffer=False, buffer_size=2**20) as file:
        yield file.schema_arrow.empty_table()
        rows = rows_per_piece(_row_bytes(file))
        for start, stop in [source.groups] if source.groups else _parts(file.metadata):
            for batch in file.iter_batches(batch_size=rows, row_groups=range(start, stop)):
                yield pa.Table.from_batches([batch])


def parquet_parts(source: Source) -> list[Source]:
    """Parts of a file that may be read apart, in order."""
    with pyarrow.parquet.ParquetFile(source.path) as file:
        return [replace(source, groups=groups) for groups in _parts(file.metadata)]


def _parts(metadata: pyarrow.parquet.FileMetaData) -> list[tuple[int, int]]:
    """Row groups that together have enough rows to be worth a worker's while; the last may have fewer."""
    parts, start, rows = [], 0, 0
    for i in range(metadata.num_row_groups):
        rows += metadata.row_group(i).num_rows
        if rows >= _PART or i == metadata.num_row_groups - 1:
            parts.append((start, i + 1))
            start, rows = i + 1, 0
    return parts


def _row_bytes(file: pyarrow.parquet.ParquetFile) -> float:
    """How much memory a row takes, about: as the file says, and as its first rows do, where words were stored once."""
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    told = max((group.total_byte_size / max(group.num_rows, 1) for group in groups), default=0.0)
    if all(pa.types.is_primitive(field.type) for field in file.schema_arrow):
        return told
    first = next(file.iter_batches(batch_size=64), None)
    return told if first is None or not first.num_rows else max(told, first.nbytes / first.num_rows)


def read_arrow(source: Source, skipped: Skipped) -> Iterator[pa.Table]:
    """Files and streams."""
    with pa.memory_map(str(source.path)) as content:
        is_file = content.read(len(_MAGIC)) == _MAGIC
        content.seek(0)
        if is_file:
            with pa.ipc.open_file(content) as reader:
                yield reader.schema.empty_table()
                for i in range(reader.num_record_batches):
                    yield from cut(pa.Table.from_batches([reader.get_batch(i)]))
        else:
            with pa.ipc.open_stream(content) as reader:
                yield reader.schema.empty_table()
                for batch in reader:
                    yield from cut(pa.Table.from_batches([batch]))
