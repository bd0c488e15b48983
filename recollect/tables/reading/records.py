"""JSON: an object per line, or a list of objects, which is turned into lines as it is read."""

import io
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.json

from recollect.tables.reading.cutting import BLOCK_BYTES, cut
from recollect.tables.reading.delimited import open_text
from recollect.tables.reading.dialect import Skipped, Source, UnreadableError

_DEEPEST = 100  # brackets within brackets: pyarrow's reader of JSON calls itself for each, until the stack ends
_LARGEST = 2**28  # characters of one object, or of a file that is one object
_SPACE = re.compile(r"[\s,]*")


def read_ndjson(source: Source, skipped: Skipped) -> Iterator[pa.Table]:
    """An object per line."""
    if source.reading.skip_bad_rows:
        # Looked at twice, counted once.
        return _read(lambda: _Lines(_good_lines(source, skipped)), lambda: _Lines(_good_lines(source, Skipped())))
    _check_depth(source)
    return _checked(source)


def read_json(source: Source, skipped: Skipped) -> Iterator[pa.Table]:
    """A list of objects, an object of such a list or of columns, or an object per line after all."""
    with open_text(source) as file:
        head = file.read(2**16).decode("utf-8", errors="replace").lstrip()
    if head.startswith("["):
        return _read(lambda: _Lines(_records(source)))
    first, _, rest = head.partition("\n")
    if rest.strip() and _is_object(first):
        return read_ndjson(source, skipped)
    return _read(lambda: _Lines(_from_object(source)))


def _read(open_file: Callable[[], Any], first_look: Callable[[], Any] | None = None) -> Iterator[pa.Table]:
    """The rows, in which text stays text: pyarrow takes some of it for moments, in another zone and notation."""
    read = pyarrow.json.ReadOptions(block_size=BLOCK_BYTES)
    with (first_look or open_file)() as file, pyarrow.json.open_json(file, read_options=read) as reader:
        names = reader.schema.names
        dated = [field.with_type(kind) for field in reader.schema if (kind := _as_text(field.type)) != field.type]
    parse = pyarrow.json.ParseOptions(explicit_schema=pa.schema(dated) if dated else None)
    with open_file() as file, pyarrow.json.open_json(file, read_options=read, parse_options=parse) as reader:
        for batch in reader:
            table = pa.Table.from_batches([batch])
            if dated:  # which came first
                table = table.select([*names, *(name for name in table.column_names if name not in names)])
            yield from cut(table)


def _as_text(kind: pa.DataType) -> pa.DataType:
    """The type with text where moments were recognised."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_text(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_text(kind.value_type)))
    return kind


def _checked(source: Source) -> Iterator[pa.Table]:
    try:
        yield from _read(lambda: open_text(source))
    except pa.ArrowInvalid as error:
        for number, line in enumerate(_lines(source), 1):
            if line.strip() and not _is_object(line):
                raise UnreadableError(
                    f"line {number:,} of {source.name!r} must be a JSON object, got {_short(line)!r}: "
                    "mend it, or pass --skip-bad-rows to leave such rows out"
                ) from None
        raise error


def _lines(source: Source) -> Iterator[str]:
    with open_text(source) as file:
        while line := file.readline(_LARGEST):
            yield line.decode("utf-8", errors="replace")


def _good_lines(source: Source, skipped: Skipped) -> Iterator[bytes]:
    for line in _lines(source):
        if not line.strip():
            continue
        if _is_object(line) and _depth(line) <= _DEEPEST:
            yield line.encode() if line.endswith("\n") else line.encode() + b"\n"
        else:
            skipped.add(_short(line))


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _short(line: str) -> str:
    line = line.strip()
    return line if len(line) <= 80 else line[:77] + "..."


def _records(source: Source) -> Iterator[bytes]:
    """The objects of a list, one per line; only what belongs to one of them is held at a time."""
    decoder = json.JSONDecoder()
    with open_text(source) as file, io.TextIOWrapper(cast(Any, file), "utf-8") as text:
        waiting, place, count = text.read(2**16).lstrip()[1:], 0, 0
        while True:
            place = cast(re.Match[str], _SPACE.match(waiting, place)).end()
            if waiting[place : place + 1] == "]":
                return
            try:
                found, place = decoder.raw_decode(waiting, place)
                count += 1
            except ValueError:
                more = text.read(max(2**16, len(waiting) - place))
                waiting, place = waiting[place:] + more, 0
                if not more or len(waiting) > _LARGEST:
                    what = _short(waiting[:200]) or "its end"
                    raise UnreadableError(
                        f"record {count + 1:,} of {source.name!r} must be a whole JSON object, got {what!r}"
                    ) from None
                continue
            yield _line(found, source, f"record {count:,}")


def _from_object(source: Source) -> Iterator[bytes]:
    """The rows of a document that is one object: {"rows": [{...}]}, {"a": [...], "b": [...]} or {"a": {"0": ...}}."""
    with open_text(source) as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise UnreadableError(f"{source.name!r} must be a list of objects, got one object that is too large to be read")
    document = json.loads(content)
    lists = [value for value in document.values() if isinstance(value, list)] if isinstance(document, dict) else []
    if len(lists) == 1 and lists[0] and all(isinstance(row, dict) for row in lists[0]):
        for i, row in enumerate(lists[0], 1):
            yield _line(row, source, f"record {i:,}")
        return
    if isinstance(document, dict) and document and all(isinstance(v, list | dict) and v for v in document.values()):
        columns = {name: v if isinstance(v, list) else list(v.values()) for name, v in document.items()}
        if len({len(column) for column in columns.values()}) == 1:
            for values in zip(*columns.values(), strict=True):
                yield _line(dict(zip(columns, values, strict=True)), source, "a row")
            return
    raise UnreadableError(f"{source.name!r} must be a list of objects, one for each row, got something else")


def _line(record: Any, source: Source, what: str) -> bytes:
    if not isinstance(record, dict):
        raise UnreadableError(f"{what} of {source.name!r} must be an object, got {_short(repr(record))!r}")
    line = json.dumps(record)
    if _depth(line) > _DEEPEST:
        raise UnreadableError(f"{source.name!r} must hold plain objects, got brackets {_DEEPEST} deep and more")
    return line.encode() + b"\n"


def _depth(line: str) -> int:
    return int(_heights(line.encode()).max(initial=0)) if "[" in line or line.count("{") > 1 else 1


class _Lines(io.RawIOBase):
    """Lines as they are made, to be read as a file."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines, self._ready = lines, b""

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        size = BLOCK_BYTES if size is None or size < 0 else size
        parts, length = [self._ready], len(self._ready)
        while length < size and (line := next(self._lines, None)) is not None:
            parts.append(line)
            length += len(line)
        content = b"".join(parts)
        self._ready = content[size:]
        return content[:size]


_STEP = np.zeros(256, np.int32)
_STEP[list(b"[{")], _STEP[list(b"]}")] = 1, -1
_OTHERS = bytes(set(range(256)) - set(b'[]{}"\n'))


def _heights(block: bytes) -> Any:
    """How deep it is after each bracket that is not within a text; texts end with their line."""
    if b"\\" in block:
        block = re.sub(rb"\\.", b"", block, flags=re.DOTALL)
    brackets = re.sub(rb'"[^"\n]*"', b"", block.translate(None, _OTHERS))
    return np.cumsum(_STEP[np.frombuffer(brackets, np.uint8)], dtype=np.int64)


def _check_depth(source: Source) -> None:
    """Refuse brackets within brackets within brackets. Texts end with their line: no newline is allowed in them."""
    depth = 0
    with open_text(source) as file:
        while block := file.read(BLOCK_BYTES):
            heights = depth + _heights(block + file.readline())
            if not len(heights):
                continue
            heights -= np.minimum(np.minimum.accumulate(heights), 0)  # what is closed too often does not count
            if heights.max() > _DEEPEST:
                raise UnreadableError(f"{source.name!r} must hold plain objects, got brackets {_DEEPEST} deep and more")
            depth = int(heights[-1])
