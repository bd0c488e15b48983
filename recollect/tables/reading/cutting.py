"""Pieces of rows of a size that fits memory, whatever the rows are like."""

from collections.abc import Iterator

import pyarrow as pa

PIECE = 16_384
"""Rows per piece, about."""

BLOCK_BYTES = 2**22
"""How much of a text is parsed at a time."""

_PIECE_BYTES = 2**26  # wide rows come fewer at a time


def rows_per_piece(row_bytes: float) -> int:
    """How many rows a piece has, if they are so large."""
    return max(1, min(PIECE, int(_PIECE_BYTES / max(row_bytes, 1.0))))


def cut(table: pa.Table) -> Iterator[pa.Table]:
    """A table in pieces, after one without rows, which tells the columns."""
    yield table.slice(0, 0)
    rows = rows_per_piece(table.nbytes / max(table.num_rows, 1))
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)
