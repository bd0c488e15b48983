"""Pieces of rows of a size that fits memory, whatever the rows are like."""

from collections.abc import Iterator

import pyarrow as pa

PIECE = 16_384
"""Rows per piece, about."""

BLOCK_BYTES = 2**22
"""How much of a text is parsed at a time."""

_WIDE_BYTES = 2**13  # of a text for each of many columns, as each piece of a column has its price
_MOST_BYTES = 2**23

_PIECE_BYTES = 2**26  # wide rows come fewer at a time


def block_bytes(columns: int) -> int:
    """How much of a text with so many columns is parsed at a time.

    Example:
        >>> block_bytes(100) == BLOCK_BYTES, block_bytes(2000) // BLOCK_BYTES
        (True, 2)
    """
    return max(BLOCK_BYTES, min(_MOST_BYTES, _WIDE_BYTES * columns))


def rows_per_piece(row_bytes: float) -> int:
    """How many rows a piece has, if they are so large."""
    return max(1, min(PIECE, int(_PIECE_BYTES / max(row_bytes, 1.0))))


def cut(table: pa.Table) -> Iterator[pa.Table]:
    """A table in pieces, after one without rows, which tells the columns."""
    yield table.slice(0, 0)
    rows = rows_per_piece(table.nbytes / max(table.num_rows, 1))
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)
