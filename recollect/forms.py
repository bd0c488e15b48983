"""Plain data from outside, turned into the dataclass that it must fit, or refused in one sentence.

The annotations of the dataclass are the form: nothing else is said about it anywhere.
"""

import math
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

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
        return cast(T, _read(kind, data, ""))
    except _MisfitError as error:
        wanted, place, got = error.args
        at = f" at {place}" if place else ""
        raise ValueError(f"{what} must hold {wanted}{at}, got {_short(got)}: it is damaged") from None
    except ValueError as error:
        raise ValueError(f"{what} must hold what was saved, but {error}: it is damaged") from None


class _MisfitError(Exception):
    """What was wanted, where, and what came."""


def _read(kind: Any, data: Any, place: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return data
    if is_dataclass(kind):
        return _read_fields(kind, data, place)
    if origin in (Union, UnionType):
        if data is None and NoneType in arguments:
            return None
        [kind] = [argument for argument in arguments if argument is not NoneType]
        return _read(kind, data, place)
    if origin is Literal:
        return _fitting(data, isinstance(data, str) and data in arguments, f"one of {', '.join(arguments)}", place)
    if origin in (list, tuple):
        _fitting(data, isinstance(data, list | tuple), "a list", place)
        return origin(_read(arguments[0], value, f"{place}[{i}]") for i, value in enumerate(data))
    if origin is dict:
        _fitting(data, isinstance(data, dict), "an object", place)
        return {
            _read(str, key, place): _read(arguments[1], value, f"{place}[{_short(key)}]") for key, value in data.items()
        }
    return _read_plain(kind, data, place)


def _read_plain(kind: Any, data: Any, place: str) -> Any:
    number = isinstance(data, int | float) and not isinstance(data, bool)
    if kind is str:
        return _fitting(data, isinstance(data, str) and _is_text(data), "text", place)
    if kind is bool:
        return _fitting(data, isinstance(data, bool), "true or false", place)
    if kind is int:
        return _fitting(data, number and isinstance(data, int) and abs(data) <= _MOST, "a whole number", place)
    if kind is float:
        fits = number and (abs(data) <= _MOST if isinstance(data, int) else math.isfinite(data))
        return float(_fitting(data, fits, "a finite number", place))
    raise TypeError(f"no form is known for {kind}")


def _read_fields(kind: Any, data: Any, place: str) -> Any:
    _fitting(data, isinstance(data, dict), "an object", place)
    hints = _hints(kind)
    names = [field.name for field in fields(kind)]
    for name in (*names, *data):
        if name not in data or name not in names:
            raise _MisfitError(f"the names {', '.join(names)}", place, list(data))
    return kind(**{name: _read(hints[name], data[name], f"{place}.{name}".lstrip(".")) for name in names})


_hints = cache(get_type_hints)


def _fitting(data: Any, fits: bool, wanted: str, place: str) -> Any:
    if not fits:
        raise _MisfitError(wanted, place, data)
    return data


def _is_text(data: str) -> bool:
    """Half of a pair of surrogates is no text: it cannot be written anywhere."""
    return not any("\ud800" <= character <= "\udfff" for character in data)


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else text[:57] + "..."
