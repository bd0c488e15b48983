"""Arrays of one length in an NPZ file; a matrix becomes the columns name_0, name_1, ..."""

import math
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from typing import IO, Any

import numpy as np
import pyarrow as pa

from recollect.tables.reading.cutting import rows_per_piece
from recollect.tables.reading.dialect import Skipped, Source, UnreadableError

_MOST_COLUMNS = 100_000


def read_npz(source: Source, skipped: Skipped) -> Iterator[pa.Table]:
    """Some rows of all arrays at a time."""
    with zipfile.ZipFile(source.path) as archive, ExitStack() as stack:
        arrays = [_Array(archive, name, stack) for name in archive.namelist()]
        arrays = [array for array in arrays if array.shape]
        lengths = {array.shape[0] for array in arrays}
        if len(lengths) != 1:
            raise UnreadableError(
                f"the arrays of {source.name!r} must have one length, got {sorted(lengths) or 'none'}"
            )
        if sum(array.width for array in arrays) > _MOST_COLUMNS:
            raise UnreadableError(f"{source.name!r} must have at most {_MOST_COLUMNS:,} columns, got more")
        [length] = lengths
        rows = rows_per_piece(sum(array.row_bytes for array in arrays))
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
        self._native = self._dtype.newbyteorder("=")
        if self._dtype.itemsize == 0 or any(n < 0 for n in self.shape) or not _has_place(self._native):
            raise UnreadableError(f"the array {self.name!r} must hold numbers, dates or text, got {self._dtype}")
        self.width = math.prod(self.shape[1:])
        self.row_bytes = self.width * self._dtype.itemsize
        self._whole: Any = None
        if by_columns and len(self.shape) > 1:  # rows are strewn all over it, so that it needs a place as a whole
            place = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            left = self.shape[0] * self.row_bytes
            while part := self._file.read(min(left, 2**20)):
                left -= place.write(part)
            self._check_length(-left, 0)
            place.flush()
            self._whole = np.memmap(place, self._dtype, "r", shape=self.shape, order="F")

    def columns(self, start: int, stop: int) -> dict[str, Any]:
        """The next rows, by the names of their columns."""
        if self._whole is not None:
            rows = self._whole[start:stop]
        else:
            content = self._file.read((stop - start) * self.row_bytes)
            self._check_length(len(content), (stop - start) * self.row_bytes)
            rows = np.frombuffer(content, self._dtype).reshape(stop - start, *self.shape[1:])
        rows = rows.astype(self._native, copy=False)  # the other byte order has no place in a table
        if len(self.shape) == 1:
            return {self.name: rows}
        matrix = rows.reshape(stop - start, -1)
        return {f"{self.name}_{i}": np.ascontiguousarray(matrix[:, i]) for i in range(self.width)}

    def finish(self) -> None:
        """See that nothing is left, which also checks the checksum of the archive."""
        self._check_length(len(self._file.read(1)), 0)

    def _check_length(self, got: int, expected: int) -> None:
        if got != expected:
            less_or_more = "less" if got < expected else "more"
            raise UnreadableError(f"the array {self.name!r} must be as long as it says, got {less_or_more}")


def _has_place(kind: np.dtype[Any]) -> bool:
    """Whether there are columns of it; not of objects, nor of complex numbers and the like."""
    if kind.hasobject:
        return False
    try:
        pa.array(np.empty(0, kind))
    except (pa.ArrowException, ValueError, TypeError):
        return False
    return True
