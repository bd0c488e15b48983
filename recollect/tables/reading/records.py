"""JSON: an object per line, or a list of objects, which is turned into lines as it is read."""

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from recollect.tables.reading.cutting import BLOCK_BYTES, cut
from recollect.tables.reading.delimited import open_text
from recollect.tables.reading.dialect import Skipped, Source, UnreadableError
from recollect.tables.wording import option

_DEEPEST = 100  # brackets within brackets: pyarrow's reader of JSON calls itself for each, until the stack ends
_LARGEST = 2**28  # characters of one object, or of a file that is one object
_SPACE = re.compile(r"[\s,]*")
_MOST_EXACT, _MOST_SIGNED, _MOST_UNSIGNED = 2.0**53, 2**63 - 1, 2**64 - 1  # whole numbers, by type


def read_ndjson(source: Source, skipped: Skipped) -> Iterator[pa.Table]:
    """An object per line."""
    if source.reading.skip_bad_rows:
        # Looked at twice, counted once.
        looked_at, read = (partial(_good_lines, source, counter) for counter in (Skipped(), skipped))
        return _checked(source, lambda: _blocks(looked_at()), lambda: _blocks(read()))
    _check_depth(source)
    return _checked(source, lambda: _line_blocks(source))


def read_json(source: Source, skipped: Skipped) -> Iterator[pa.Table]:
    """A list of objects, an object of such a list or of columns, or an object per line after all."""
    with open_text(source) as file:
        head = file.read(2**16).decode("utf-8", errors="replace").lstrip()
    if head.startswith("["):
        return _checked(source, lambda: _blocks(_records(source)))
    first, _, rest = head.partition("\n")
    if rest.strip() and _is_object(first):
        return read_ndjson(source, skipped)
    return _checked(source, lambda: _blocks(_from_object(source)))


_Blocks: TypeAlias = Callable[[], Iterator[bytes]]


def _blocks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines, as many at a time as are parsed at once."""
    block, size = [], 0
    for line in lines:
        block.append(line)
        size += len(line)
        if size >= BLOCK_BYTES:
            yield b"".join(block)
            block, size = [], 0
    if block:
        yield b"".join(block)


def _line_blocks(source: Source) -> Iterator[bytes]:
    """The same of a file as it is."""
    with open_text(source) as file:
        while block := file.read(BLOCK_BYTES):
            yield block + file.readline()


def _checked(source: Source, looked_at: _Blocks, read: _Blocks | None = None) -> Iterator[pa.Table]:
    """The rows, in types that hold for all of them, which must be known before the first is read."""
    try:
        kinds: dict[str, pa.DataType] = {}
        long: dict[_Path, int] = {}
        for block in looked_at():
            found = _parsed(block) if block.strip() else pa.table({})
            for name, column in zip(found.column_names, found.columns, strict=True):
                kind = _as_text(_exact((name,), column, block, source, long))
                kinds[name] = _joined(kinds.get(name, pa.null()), kind)
        for path, number in long.items():
            if pa.types.is_floating(_kind_at(kinds, path)):  # because of what another block holds
                raise _too_long(path, number, source)
        for block in (read or looked_at)():
            if block.strip():
                yield from cut(_parsed(block, pa.schema(list(kinds.items()))))
    except (pa.ArrowInvalid, _OfTwoKindsError) as error:
        if source.dialect.format == "ndjson" and not source.reading.skip_bad_rows:
            _check_lines(source)
        _check_kinds(source, looked_at)
        raise error


def _parsed(block: bytes, schema: pa.Schema | None = None) -> pa.Table:
    read = pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    parse = pyarrow.json.ParseOptions(explicit_schema=schema)
    return pyarrow.json.read_json(pa.BufferReader(block), read_options=read, parse_options=parse)


class _OfTwoKindsError(ValueError):
    """A column is no one thing."""


def _joined(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """A type for the values of both."""
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    if pa.float64() in (first, second) and {first, second} <= {pa.int64(), pa.uint64(), pa.float64()}:
        return pa.float64()
    if {first, second} == {pa.int64(), pa.uint64()}:
        return pa.uint64()
    if pa.types.is_list(first) and pa.types.is_list(second):
        return pa.list_(_joined(first.value_type, second.value_type))
    if pa.types.is_struct(first) and pa.types.is_struct(second):
        fields = {field.name: field.type for field in first}
        for field in second:
            fields[field.name] = _joined(fields.get(field.name, pa.null()), field.type)
        return pa.struct(list(fields.items()))
    raise _OfTwoKindsError(f"a column must hold values of one kind, got {first} and {second}")


_Path: TypeAlias = tuple[str | None, ...]
"""The names that lead to a value, with None for the items of a list."""


def _exact(path: _Path, column: pa.ChunkedArray, block: bytes, source: Source, long: dict[_Path, int]) -> pa.DataType:
    """A type that holds what the column holds: pyarrow makes other numbers of whole ones with too many digits.

    Args:
        path: what leads to the column.
        column: as pyarrow has it.
        block: what it was read from.
        source: the file, for the sentence.
        long: takes the first whole number that no float holds, by path.
    """
    kind = column.type
    if pa.types.is_struct(kind):
        inner = [_exact((*path, f.name), pc.struct_field(column, i), block, source, long) for i, f in enumerate(kind)]
        return pa.struct([field.with_type(found) for field, found in zip(kind, inner, strict=True)])
    if pa.types.is_list(kind):
        items = _exact((*path, None), pc.list_flatten(column), block, source, long)
        return pa.list_(kind.value_field.with_type(items))
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) or not _is_large(column):
        return kind
    values = column.to_pylist() if pa.types.is_integer(kind) else _values_at(path, block)
    whole = [value for value in values if type(value) is int]
    unfit = [v for v in whole if abs(v) > _MOST_UNSIGNED or int(float(v)) != v]
    if unfit:
        long.setdefault(path, unfit[0])
    unfit = [v for v in whole if abs(v) > _MOST_SIGNED] or unfit
    if pa.types.is_integer(kind) or not unfit:
        return kind
    if all(v is None or (type(v) is int and 0 <= v <= _MOST_UNSIGNED) for v in values):
        return pa.uint64()
    raise _too_long(path, unfit[0], source)


def _is_large(numbers: pa.ChunkedArray) -> bool:
    ends = [end for end in pc.min_max(numbers).as_py().values() if end is not None]
    return any(abs(end) >= _MOST_EXACT for end in ends)


def _values_at(path: _Path, block: bytes) -> list[Any]:
    found: list[Any] = [json.loads(line) for line in block.splitlines() if line.strip()]
    for step in path:
        known = [value for value in found if value is not None]
        found = [item for value in known for item in value] if step is None else [value.get(step) for value in known]
    return found


def _kind_at(kinds: dict[str, pa.DataType], path: _Path) -> pa.DataType:
    kind = pa.struct(list(kinds.items()))
    for step in path:
        kind = kind.value_type if step is None else kind.field(step).type
    return kind


def _too_long(path: _Path, number: int, source: Source) -> UnreadableError:
    name = ".".join(step for step in path if step is not None)
    return UnreadableError(
        f"column {name!r} of {source.name!r} must hold whole numbers of 64 bits, or numbers that need no more digits "
        f"than a float has, got {_short(str(number))}: write them as text, in quotes"
    )


def _as_text(kind: pa.DataType) -> pa.DataType:
    """The type with text where moments were recognised: pyarrow has them in another zone and notation."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_text(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_text(kind.value_type)))
    return kind


def _check_lines(source: Source) -> None:
    """Refuse the first line that is no object."""
    for number, line in enumerate(_lines(source), 1):
        if line.strip() and (flaw := _flaw(line)) is not None:
            got = f"{flaw} in {_short(line)!r}" if flaw else repr(_short(line))
            raise UnreadableError(
                f"line {number:,} of {source.name!r} must be a JSON object, got {got}: "
                f"mend it, or pass {option('skip_bad_rows', True)} to leave such rows out"
            ) from None


def _check_kinds(source: Source, rows: _Blocks) -> None:
    """Refuse the first value that is of another kind than those before it in its column."""
    kinds: dict[str, str] = {}
    number = 0
    for line in (line for block in rows() for line in block.splitlines() if line.strip()):
        number += 1
        for name, value in json.loads(line).items():
            if value is None or (kind := _KINDS[type(value)]) == kinds.setdefault(name, kind):
                continue
            raise UnreadableError(
                f"column {name!r} of {source.name!r} must hold values of one kind, got {kind} such as "
                f"{_short(json.dumps(value, ensure_ascii=False))} in row {number:,} after {kinds[name]}: "
                "mend it, or write all of them as text"
            ) from None


_KINDS = {
    **dict.fromkeys((int, float), "numbers"),
    str: "text",
    bool: "true or false",
    list: "lists",
    dict: "objects",
}


def _lines(source: Source) -> Iterator[str]:
    with open_text(source) as file:
        while line := file.readline(_LARGEST):
            yield line.decode("utf-8", errors="replace")


def _good_lines(source: Source, skipped: Skipped) -> Iterator[bytes]:
    rows = (line for line in _lines(source) if line.strip())
    for place, line in enumerate(rows):
        if _is_object(line) and _depth(line) <= _DEEPEST:
            yield line.encode() if line.endswith("\n") else line.encode() + b"\n"
        else:
            skipped.add(_short(line), place)


def _is_object(line: str) -> bool:
    return _flaw(line) is None


def _flaw(line: str) -> str | None:
    """What keeps a line from being an object that can be read: "" if it is none at all, None if nothing does."""
    try:
        found = json.loads(line, object_pairs_hook=_different)
        _check_letters(found, line)
    except _TwiceError as error:
        return str(error)
    except UnicodeEncodeError:
        return "half of a letter"
    except (ValueError, RecursionError):
        return ""
    return None if isinstance(found, dict) else ""


class _TwiceError(Exception):
    """A name has two values, of which one would be lost."""


def _different(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _TwiceError(f"{next(name for name in names if names.count(name) > 1)!r} twice")
    return found


def _check_letters(found: Any, text: str) -> None:
    """Refuse half of a pair that makes one letter, which no text can hold, with a UnicodeEncodeError."""
    if "\\u" in text:
        json.dumps(found, ensure_ascii=False).encode()


def _short(line: str) -> str:
    line = line.strip()
    return line if len(line) <= 80 else line[:77] + "..."


def _records(source: Source) -> Iterator[bytes]:
    """The objects of a list, one per line; only what belongs to one of them is held at a time."""
    decoder = json.JSONDecoder(object_pairs_hook=_different)
    with open_text(source) as file, io.TextIOWrapper(cast(Any, file), "utf-8") as text:
        waiting, place, count = text.read(2**16).lstrip()[1:], 0, 0
        while True:
            place = cast(re.Match[str], _SPACE.match(waiting, place)).end()
            if waiting[place : place + 1] == "]":
                return
            try:
                found, place = decoder.raw_decode(waiting, place)
                count += 1
            except _TwiceError as error:
                raise UnreadableError(
                    f"record {count + 1:,} of {source.name!r} must have each name once, got {error}: rename one"
                ) from None
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
    try:
        document = json.loads(content, object_pairs_hook=_different)
    except _TwiceError as error:
        raise UnreadableError(f"{source.name!r} must have each name once, got {error}: rename one") from None
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
    try:
        _check_letters(record, line)
    except UnicodeEncodeError:
        raise UnreadableError(
            f"{what} of {source.name!r} must hold whole letters, got half of one in {_short(line)!r}: mend it"
        ) from None
    if _depth(line) > _DEEPEST:
        raise UnreadableError(f"{source.name!r} must hold plain objects, got brackets {_DEEPEST} deep and more")
    return line.encode() + b"\n"


def _depth(line: str) -> int:
    return int(_heights(line.encode()).max(initial=0)) if "[" in line or line.count("{") > 1 else 1


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
