"""From the first bytes of a file to its dialect: what is safe to tell is told, and the rest is refused or asked for."""

import csv
import io
import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO

from recollect.tables.reading.characters import open_recoded, recognise_encoding
from recollect.tables.reading.compression import ENDINGS, compression_of, only_member, open_content
from recollect.tables.reading.dialect import (
    TEXTS,
    Compression,
    Dialect,
    Folders,
    Format,
    Reading,
    Source,
    UnreadableError,
)
from recollect.tables.reading.sheets import sheet_names

SUFFIXES: dict[str, Format] = {
    **dict.fromkeys((".csv", ".tsv", ".tab", ".txt", ".dat", ".data"), "csv"),
    ".parquet": "parquet",
    ".pq": "parquet",
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".ndjson", ".jsonl"), "ndjson"),
    ".json": "json",
    ".npz": "npz",
    ".xlsx": "xlsx",
    ".xlsm": "xlsx",
}
"""What the ending of a name says of a file."""

_DELIMITERS = (",", ";", "\t", "|")
_SAMPLE = 2**18  # bytes of text that are looked at
_LINES = 200
_BLOCK = 2**20
_LIMIT = Lock()
_EXCEL = re.compile(r"sep=(.)\s*\Z", flags=re.IGNORECASE)


def recognise(
    path: Path,
    reading: Reading | None = None,
    name: str | None = None,
    folders: Folders = (),
) -> Source:
    """How a file is read: as somebody said, or as its content shows.

    Args:
        path: where it is.
        reading: what somebody said.
        name: what people call it, if that is not its path.
        folders: what the names of its folders say.
    """
    reading, name = reading or Reading(), name or str(path)
    try:
        return Source(name, path, _dialect(path, reading, name), reading, folders)
    except UnreadableError:
        raise
    except Exception as error:  # whatever a damaged file brings about
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableError(f"{name!r} must be a readable table: {reason[:300]}") from None


def _dialect(path: Path, reading: Reading, name: str) -> Dialect:
    with path.open("rb") as file:
        head = file.read(16)
    compression: Compression | None = compression_of(head)
    inner = path.name.removesuffix(path.suffix) if path.suffix.lower() in ENDINGS else path.name
    kind = reading.format
    if head.startswith(b"PK") and kind not in ("npz", "xlsx"):
        kind, compression = kind or _archived(path), "zip"
        if kind in ("npz", "xlsx"):
            compression = None
        else:
            inner = only_member(path)
    said = SUFFIXES.get(Path(inner).suffix.lower())
    with open_content(path, compression) as content:
        head = content.read(16)
    kind = kind or _kind(head, said, name)
    if kind not in TEXTS:
        if compression is not None:
            raise UnreadableError(f"{name!r} must be unpacked first, got a {kind} file in {compression}")
        if kind == "xlsx":
            sheets = sheet_names(path, name, reading.sheet)
            return Dialect(kind, sheet=sheets[0], sheets=len(sheets))
        return Dialect(kind)
    encoding = reading.encoding
    if encoding is None:
        with open_content(path, compression) as content:
            encoding = recognise_encoding(content, name)
    with open_recoded(open_content(path, compression), encoding, name) as text:
        sample = text.read(_SAMPLE)
    if reading.format is None and said != "csv" and sample.lstrip()[:1] in (b"{", b"["):
        kind = "ndjson" if sample.lstrip()[:1] == b"{" and said != "json" else "json"
    if kind != "csv":
        return Dialect(kind, compression, encoding)
    returns = b"\r" in sample and b"\n" not in sample
    sample = sample.replace(b"\r", b"\n") if returns else sample
    lines = _lines(sample)
    shape = _shape(lines, reading.delimiter, "\t" if Path(inner).suffix.lower() in (".tsv", ".tab") else ",")
    escape = shape.escape
    if not any(f"\\{shape.quote}" in line for line in lines):  # what tells may come later
        with open_recoded(open_content(path, compression), encoding, name, returns) as text:
            escape = "\\" if _is_escaped_later(text, shape.delimiter, shape.quote) else None
    return Dialect(kind, compression, encoding, shape.delimiter, shape.quote, escape, returns, shape.preamble)


def _archived(path: Path) -> Format | None:
    """What kind of archive it is; None if it is one that holds a table."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if "[Content_Types].xml" in names:
        return "xlsx"
    return "npz" if all(name.endswith(".npy") for name in names) else None


def _kind(head: bytes, said: Format | None, name: str) -> Format:
    """By the first bytes, where they tell; by the ending otherwise; else it must be text."""
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):  # a file or a stream
        return "arrow"
    if head.startswith(b"\xd0\xcf\x11\xe0"):
        raise UnreadableError(f"{name!r} must be xlsx, got a workbook of an older Excel: save it as xlsx or csv")
    return said or "csv"


def _lines(sample: bytes) -> list[str]:
    """The first lines, without the last, which may be cut off."""
    text = sample.decode("utf-8", errors="replace")
    lines = text.split("\n")
    whole = lines if len(sample) < _SAMPLE else lines[:-1]
    return [line.rstrip("\r\n") for line in whole[:_LINES]]


@contextmanager
def _long_values() -> Iterator[None]:
    """Lets Python's reader take values as long as what is looked at; its limit is one for all, and is put back."""
    with _LIMIT:
        before = csv.field_size_limit()
        csv.field_size_limit(max(before, _SAMPLE))
        try:
            yield
        finally:
            csv.field_size_limit(before)


@dataclass(frozen=True)
class _Shape:
    delimiter: str
    quote: str
    escape: str | None
    preamble: int


def _shape(lines: list[str], given: str | None, usual: str) -> _Shape:
    """The delimiter, quote and escape with which the first lines have as many values as there are names."""
    preamble = 0
    if lines and (excel := _EXCEL.match(lines[0])):
        preamble, given = 1, given or excel[1]
    while preamble < len(lines) and not lines[preamble].strip():
        preamble += 1
    lines = [line for line in lines[preamble:] if line.strip()]
    quote = "'" if lines and _is_quoted(lines[0], given, "'") else '"'
    best, shape = (0.0, 0, 0), _Shape(given or usual, quote, None, preamble)
    for delimiter in (given,) if given else (usual, *(d for d in _DELIMITERS if d != usual)):
        for escape in (None, "\\"):
            if escape and not any(f"\\{quote}" in line for line in lines):
                continue
            counts = [len(row) for row in _rows(lines, delimiter, quote, escape)]
            if not counts or (counts[0] < 2 and not given):
                continue
            agree = sum(count == counts[0] for count in counts) / len(counts)
            likely = 2 if escape and _is_escaped(lines, delimiter, quote) else 1 if escape is None else 0
            # A share of lines that agree, then more columns; what is written first wins where they are alike.
            if (round(agree, 2), counts[0], likely) > best:
                best = (round(agree, 2), counts[0], likely)
                shape = _Shape(delimiter, quote, escape, preamble)
    return shape


def _is_quoted(line: str, delimiter: str | None, quote: str) -> bool:
    between = re.escape(delimiter) if delimiter else "[,;\t|]"
    return re.fullmatch(rf"{quote}[^{quote}]*{quote}({between}{quote}[^{quote}]*{quote})+", line) is not None


def _is_escaped(lines: Iterable[str], delimiter: str, quote: str) -> bool:
    """Whether a backslash and a quote stand in the midst of a quoted value, not at its end as in a path to a folder."""
    start, end = rf"(?:^|{re.escape(delimiter)}){quote}", rf"(?! *(?:{quote}|{re.escape(delimiter)}|$))"
    inside = re.compile(rf"{start}(?:[^{quote}]|{quote}{quote})*\\{quote}{end}")
    return any(inside.search(line) for line in lines)


def _is_escaped_later(text: IO[bytes], delimiter: str, quote: str) -> bool:
    """The same of a whole text, of which few blocks have such a pair, and only those are looked at closely."""
    pair, rest = f"\\{quote}".encode(), b""
    while block := text.read(_BLOCK):
        whole, _, rest = (rest[-_SAMPLE:] + block).rpartition(b"\n")
        if pair in whole and _is_escaped(_split(whole), delimiter, quote):
            return True
    return pair in rest and _is_escaped(_split(rest), delimiter, quote)


def _split(text: bytes) -> list[str]:
    return [line.rstrip("\r") for line in text.decode("utf-8", errors="replace").split("\n")]


def _rows(lines: Iterable[str], delimiter: str, quote: str, escape: str | None) -> list[list[str]]:
    text: IO[str] = io.StringIO("\n".join(lines))
    rows = csv.reader(
        text, delimiter=delimiter, quotechar=quote, escapechar=escape, doublequote=escape is None, strict=False
    )
    try:
        with _long_values():
            return [row for row in rows if row]
    except csv.Error:
        return []
