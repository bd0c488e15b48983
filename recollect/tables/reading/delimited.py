"""Text with a line per row. It is kept as text: what a value means is decided by the encoding of its column."""

import csv
import io
import re
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv

from recollect.tables.reading.characters import open_recoded
from recollect.tables.reading.compression import open_content
from recollect.tables.reading.cutting import block_bytes, cut
from recollect.tables.reading.dialect import Dialect, Skipped, Source, UnreadableError
from recollect.tables.wording import option

_HEADER_BYTES = 2**22
_TAIL_BYTES = 2**10


def read_csv(source: Source, skipped: Skipped) -> Iterator[pa.Table]:
    """Every value as the text it is; nothing between two delimiters is a missing value."""
    with open_text(source) as file:
        names = _names(source, file)
        convert = pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
        )
        # Several threads do not know which rows are left out.
        threads = not source.reading.skip_bad_rows
        read = pyarrow.csv.ReadOptions(block_size=block_bytes(len(names)), column_names=names, use_threads=threads)
        wrong: list[Any] = []

        def handle(row: Any) -> str:
            if source.reading.skip_bad_rows and not _is_open(row.text, source.dialect):
                skipped.add(row.text, row.number - 1)
                return "skip"
            wrong.append(row)
            return "error"

        parse = _parse(source.dialect, handle)
        try:
            if not (head := file.read(1)):
                return
            rest, last = _Prepended(head, file, source.dialect), None
            with pyarrow.csv.open_csv(rest, read_options=read, parse_options=parse, convert_options=convert) as reader:
                for batch in reader:
                    last = batch.column(-1)[-1].as_py() if batch.num_rows else last
                    yield from cut(pa.Table.from_batches([batch]))
        except pa.ArrowInvalid:
            if not wrong:
                raise
            raise UnreadableError(_sentence(source, len(names), wrong[0])) from None
        if "\n" in (last or "") and not rest.ends_in_quote(source.dialect.quote):
            raise UnreadableError(_open_quote(source, last or ""))


def open_text(source: Source) -> IO[bytes]:
    """The text of a file in UTF-8, unpacked as it is read."""
    dialect = source.dialect
    content = open_content(source.path, dialect.compression)
    return open_recoded(content, dialect.encoding, source.name, dialect.returns)


class _Prepended(io.RawIOBase):
    """A stream of which something was read already, and in which a backslash that escapes nothing stands for itself."""

    def __init__(self, head: bytes, file: IO[bytes], dialect: Dialect) -> None:
        self._head, self._file, self._dialect = head, file, dialect
        self._ready = self._tail = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        size = -1 if size is None or size < 0 else size
        if size < 0 or len(self._ready) < size:
            self._ready += self._more(size)
        found, self._ready = (self._ready, b"") if size < 0 else (self._ready[:size], self._ready[size:])
        self._tail = (self._tail + found[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        return found

    def _more(self, size: int) -> bytes:
        head, self._head = self._head, b""
        found = head + self._file.read(size)
        if self._dialect.escape is None:
            return found
        is_cut = (len(found) - len(found.rstrip(b"\\"))) % 2 == 1
        return _escaped(found + self._file.read(1) if is_cut else found, self._dialect)

    def ends_in_quote(self, quote: str) -> bool:
        """Whether the last value was closed: a pair of quotes is one of the text."""
        tail = self._tail.rstrip()
        tail = re.sub(rb"\\.", b"", tail, flags=re.DOTALL) if self._dialect.escape else tail
        return (len(tail) - len(tail.rstrip(quote.encode()))) % 2 == 1


def _escaped(text: bytes, dialect: Dialect) -> bytes:
    """The text with two backslashes for one that stands before anything but a quote, a delimiter or the like.

    The reader takes any backslash for an escape, and would leave it out of a path.
    """
    before = re.escape(f"{dialect.quote}{dialect.delimiter}").encode()
    return re.sub(rb"\\([\\\r\n" + before + rb"])?", lambda found: found[0] if found[1] else rb"\\", text)


def _parse(dialect: Dialect, handle: Any = None) -> pyarrow.csv.ParseOptions:
    return pyarrow.csv.ParseOptions(
        delimiter=dialect.delimiter,
        quote_char=dialect.quote,
        escape_char=dialect.escape or False,
        newlines_in_values=True,
        invalid_row_handler=handle,
    )


def _names(source: Source, file: IO[bytes]) -> list[str]:
    """The names of the columns; the stream goes on with the first row."""
    for _ in range(source.dialect.preamble):
        file.readline(_HEADER_BYTES)
    header = _first_line(source, file)
    header = _escaped(header, source.dialect) if source.dialect.escape else header
    if not header.strip():
        raise UnreadableError(f"{source.name!r} must begin with the names of its columns, got nothing")
    names: list[str] = pyarrow.csv.open_csv(io.BytesIO(header), parse_options=_parse(source.dialect)).schema.names
    return names


def _first_line(source: Source, file: IO[bytes]) -> bytes:
    """The header, which may hold quoted newlines, and enough to end it."""
    lines, size, quotes = [], 0, 0
    while line := file.readline(_HEADER_BYTES):
        lines.append(line)
        size, quotes = size + len(line), quotes + line.count(source.dialect.quote.encode())
        if size >= _HEADER_BYTES:
            raise UnreadableError(
                f"the header of {source.name!r} must take at most {_HEADER_BYTES:,} bytes, got more: is a quote open?"
            )
        if quotes % 2 == 0:
            break
    text = b"".join(lines)
    return text if text.endswith(b"\n") else text + b"\n"


def _is_open(text: str, dialect: Dialect) -> bool:
    """Whether a row of several lines has a quote that nothing closes, so that it may be many rows."""
    text = re.sub(re.escape(dialect.escape) + ".", "", text, flags=re.DOTALL) if dialect.escape else text
    return "\n" in text and text.count(dialect.quote) % 2 == 1


def _open_quote(source: Source, text: str) -> str:
    place = f"line {line:,} of" if (line := _line_number(source, None)) else "a line of"
    return (
        f"{place} {source.name!r} must close the quote that it opens, got none up to the end, after {text[:60]!r}: "
        "mend it, or what follows is one value"
    )


def _sentence(source: Source, columns: int, row: Any) -> str:
    if _is_open(row.text, source.dialect):
        return _open_quote(source, row.text)
    place = f"line {line:,} of" if (line := _line_number(source, columns)) else "a line of"
    text = row.text if len(row.text) <= 80 else row.text[:77] + "..."
    if columns == 1:
        return (
            f"{place} {source.name!r} must have one value as the first line has one name, got {row.actual_columns} in "
            f"{text!r}: remove what stands above the names of the columns, which must be the first line"
        )
    return (
        f"{place} {source.name!r} must have {columns} values, one per column, got {row.actual_columns} in {text!r}: "
        f"mend it, or pass {option('skip_bad_rows', True)} to leave such rows out"
    )


def _line_number(source: Source, columns: int | None) -> int | None:
    """Of the first row that has more or fewer values, or of the last row; looked for only when it is there."""
    dialect = source.dialect
    with open_text(source) as file, io.TextIOWrapper(file, "utf-8", errors="replace", newline="") as text:
        for _ in range(dialect.preamble):
            text.readline()
        rows = csv.reader(
            text,
            delimiter=dialect.delimiter,
            quotechar=dialect.quote,
            escapechar=dialect.escape,
            doublequote=dialect.escape is None,
        )
        before = last = 0
        try:
            for row in rows:
                if row and columns is not None and len(row) != columns:
                    return dialect.preamble + before + 1
                last, before = before, rows.line_num
        except csv.Error:  # a value that is too long for this reader
            last = before
    return None if columns is not None else dialect.preamble + last + 1
