"""Plain data from outside, turned into the dataclass that it must fit, or refused in one sentence.

The annotations of the dataclass are the form: nothing else is said about it anywhere.
"""

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

_MOST = 2**53  # whole numbers up to here survive every reader of JSON


def parse(kind: type[T], data: Any, what: str) -> T:
    """An instance of a dataclass, from what `json` read.

    Args:
        kind: a dataclass of texts, numbers, yes and no, lists, tuples, dicts by text, and other such dataclasses.
        data: what was read.
        what: the file, for who must be told that it is damaged.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Point:
        ...     x: float
        ...     names: list[str]
        >>> parse(Point, {"x": 1, "names": ["a"]}, "it")
        Point(x=1.0, names=['a'])
        >>> parse(Point, {"x": 1, "names": ["a", 2]}, "it")
        Traceback (most recent call last):
        ...
        ValueError: it must hold text at names[1], got 2: it is damaged
    """
    try:
        return cast(T, _reader(cast(Any, kind))(data))
    except _MisfitError as error:
        at = f" at {''.join(reversed(error.place)).lstrip('.')}" if error.place else ""
        raise ValueError(f"{what} must hold {error.wanted}{at}, got {_short(error.got)}: it is damaged") from None
    except ValueError as error:
        raise ValueError(f"{what} must hold what was saved, but {error}: it is damaged") from None


Reader: TypeAlias = Callable[[Any], Any]


class _MisfitError(Exception):
    """What was wanted and what came; where is added on the way out."""

    def __init__(self, wanted: str, got: Any) -> None:
        super().__init__(wanted)
        self.wanted, self.got = wanted, got
        self.place: list[str] = []


@cache
def _reader(kind: Any) -> Reader:
    """A function that takes what was read to the form of `kind`; made once for each."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _fields_reader(kind)
    if origin in (Union, UnionType):
        [inner] = [_reader(argument) for argument in arguments if argument is not NoneType]
        return lambda data: None if data is None else inner(data)
    if origin is Literal:
        return _plain(lambda data: isinstance(data, str) and data in arguments, f"one of {', '.join(arguments)}")
    if origin in (list, tuple):
        is_list, inner = _plain(lambda data: isinstance(data, list | tuple), "a list"), _reader(arguments[0])
        return lambda data: origin(_inside(inner, value, f"[{i}]") for i, value in enumerate(is_list(data)))
    if origin is dict:
        key_of, inner = _reader(str), _reader(arguments[1])
        return lambda data: {
            key_of(key): _inside(inner, value, f"[{_short(key)}]") for key, value in _object(data).items()
        }
    return _PLAIN[kind]


def _fields_reader(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind)}
    later = {field.name for field in fields(kind) if field.metadata.get("later")}  # documents before have none

    def read(data: Any) -> Any:
        if _object(data).keys() | later != readers.keys():
            raise _MisfitError(f"the names {', '.join(readers)}", list(data))
        return kind(**{name: _inside(readers[name], data[name], f".{name}") for name in readers if name in data})

    return read


def _inside(reader: Reader, data: Any, place: str) -> Any:
    try:
        return reader(data)
    except _MisfitError as error:
        error.place.append(place)
        raise


def _plain(fits: Callable[[Any], bool], wanted: str) -> Reader:
    def read(data: Any) -> Any:
        if not fits(data):
            raise _MisfitError(wanted, data)
        return data

    return read


def _is_text(data: Any) -> bool:
    """Half of a pair of surrogates is no text: it cannot be written anywhere."""
    return isinstance(data, str) and (data.isascii() or not any("\ud800" <= c <= "\udfff" for c in data))


def _is_finite(data: Any) -> bool:
    return (isinstance(data, float) and math.isfinite(data)) or _is_whole(data)


def _is_whole(data: Any) -> bool:
    return isinstance(data, int) and not isinstance(data, bool) and abs(data) <= _MOST


_finite = _plain(_is_finite, "a finite number")
_object = _plain(lambda data: isinstance(data, dict), "an object")
_PLAIN: dict[Any, Reader] = {
    Any: lambda data: data,
    str: _plain(_is_text, "text"),
    bool: _plain(lambda data: isinstance(data, bool), "true or false"),
    int: _plain(_is_whole, "a whole number"),
    float: lambda data: float(_finite(data)),
}


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else text[:57] + "..."
