"""What a value of a column means: which texts say that it is missing, and which are numbers, in any of the usual forms.

A number may be written with a point or a comma, with thousands in groups, as money, as a percentage, or in brackets
when it is negative. Whether 1,234 is a thousand or about one is the *form* of a column, "point" or "comma", which is
decided by all its values, and those of the other columns where its own do not tell.
"""

import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recollect.tables.wording import option

NumberForm: TypeAlias = Literal["point", "comma"]

LARGEST = 1e100  # squares of larger numbers may overflow
_WORDS = ("na", "n/a", "n.a.", "nan", "null", "none", "nil", "missing", "<na>", "(null)", "#n/a", "#na", "#nv", "k.a.")
_SIGNS = ("", "?", "-", "--", "---", "–", "—", ".", "..", "\\N", "#VALUE!", "#DIV/0!", "#REF!", "#NAME?", "n/A", "nA")
MISSING = pa.array(
    sorted({form(w) for w in _WORDS for form in (str, str.upper, str.capitalize, str.title)} | {*_SIGNS, "NaN"})
)
"""The words and signs that say that there is no value."""

_SPACE = "[ \u00a0\u202f\u2009]"
_CURRENCY = "(?i:[€$£¥₹₽₩]|usd|eur|gbp|chf|jpy|cny|inr|sek|nok|dkk|pln|czk|huf|cad|aud|nzd|brl|mxn|zar|zł|kč|kr|fr\\.)"
_PLAIN = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_PLAIN_COMMA = _PLAIN.replace(r"\.", ",")
_UNMARKED = r"^[+-]?(?:\d+(?:[eE][+-]?\d+)?|[1-9]\d{0,2}[.,]\d{3})$"  # the mark of a plain number may be of thousands
_FIRST = rf"^(?:[\d.,+\-−(]|{_CURRENCY})"  # what a number begins with
_CODE = r"^[+-]?0\d"  # 007 is a name, not a number


def _pattern(point: str, group: str) -> str:
    grouped = "|".join(rf"[1-9]\d{{0,2}}(?:{g}\d{{3}})+" for g in (group, _SPACE, "['’]"))
    grouped += r"|[1-9]\d?(?:,\d{2})+,\d{3}" if group == "," else ""  # 12,34,567 as in India
    plain = rf"(?:\d+(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?"
    number = rf"(?:(?:{grouped})(?:{point}\d*)?|{plain})"
    money, sign, minus = rf"(?:{_CURRENCY}{_SPACE}?)", rf"(?:[+\-−]{_SPACE}?)", rf"(?:[\-−]{_SPACE}?)"
    number += rf"(?:{_SPACE}?(?:{_CURRENCY}|%))?"
    # One sign at most, on one side of the money, and brackets only in pairs: what fits can be cast.
    bracketed = rf"\((?:{minus}?{money}?|{money}{minus}){number}\)"
    return rf"^(?:(?:{sign}?{money}?|{money}{sign}){number}|{money}?{number}-|{bracketed})$"


_PATTERNS: dict[NumberForm, str] = {"point": _pattern(r"\.", ","), "comma": _pattern(",", r"\.")}


def is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_numeric(kind: pa.DataType) -> bool:
    types = pa.types
    return any((types.is_integer(kind), types.is_floating(kind), types.is_boolean(kind), types.is_decimal(kind)))


def texts_of(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return values.cast(pa.string())


def known_texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without the space around them, and with null for what says that a value is missing."""
    texts = pc.utf8_trim_whitespace(texts_of(values))
    return pc.if_else(pc.is_in(texts, value_set=MISSING), pa.scalar(None, pa.string()), texts)


def is_number(texts: pa.ChunkedArray, form: NumberForm) -> NDArray[np.bool_]:
    """Which of the texts are numbers in this form."""
    return np.asarray(pc.fill_null(pc.match_substring_regex(texts, _PATTERNS[form]), False), dtype=bool)


def has_codes(texts: pa.ChunkedArray) -> bool:
    """Whether some are digits that are no quantity, such as 007."""
    return bool(pc.any(pc.match_substring_regex(texts, _CODE)).as_py())


def unit_of(texts: pa.ChunkedArray) -> str | None:
    """What else stands beside the digits, for people."""
    if pc.any(pc.match_substring(texts, "%")).as_py():
        return "percent"
    return "money" if pc.any(pc.match_substring_regex(texts, _CURRENCY)).as_py() else None


def all_plain(texts: pa.ChunkedArray) -> bool:
    """Whether all are numbers of digits with a point at most: then there is no unit, and no date in a guessed form."""
    return _all_match(texts, _PLAIN)


def parse_numbers(texts: pa.ChunkedArray, form: NumberForm, *, plain: bool | None = None) -> NDArray[np.float64]:
    """Texts as float64, with NaN for what is missing or no number.

    Args:
        texts: without the space around them.
        form: how they are written.
        plain: whether `all_plain`, if somebody knows.

    Example:
        >>> texts = pa.chunked_array([["1.234,50 €", "-7", None, "(12,5 %)", "word"]])
        >>> parse_numbers(texts, "comma").tolist()
        [1234.5, -7.0, nan, -12.5, nan]
    """
    # The patterns for all forms take most of a millisecond to compile, which counts where columns are many.
    plain = all_plain(texts) if plain is None else plain
    if plain if form == "point" else _all_match(texts, _PLAIN_COMMA):
        return _floats(texts if form == "point" else pc.replace_substring(texts, ",", "."))
    if _all_match(texts, _PLAIN_COMMA) if form == "point" else plain:
        unmarked = pc.match_substring_regex(texts, _UNMARKED)
        if not pc.any(unmarked).as_py():
            return np.full(len(texts), math.nan)
        fitting = pc.if_else(unmarked, texts, pa.scalar(None, pa.string()))
        return _floats(pc.replace_substring(fitting, "," if form == "point" else ".", ""))
    if not pc.any(pc.match_substring_regex(texts, _FIRST)).as_py():
        return np.full(len(texts), math.nan)
    texts = pc.if_else(pa.chunked_array([is_number(texts, form)]), texts, pa.scalar(None, pa.string()))
    texts = pc.replace_substring(texts, "−", "-")
    texts = pc.replace_substring_regex(texts, rf"{_SPACE}|['’%]|{_CURRENCY}", "")
    texts = pc.replace_substring_regex(texts, r"^\((.*)\)$|^([^-].*)-$", r"-\1\2")
    texts = pc.replace_substring(texts, "," if form == "point" else ".", "")
    texts = pc.replace_substring(texts, ",", ".") if form == "comma" else texts
    return _floats(pc.replace_substring_regex(texts, r"^--", "-"))


def _all_match(texts: pa.ChunkedArray, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(texts, pattern)).as_py() in (True, None)


def _floats(texts: pa.ChunkedArray) -> NDArray[np.float64]:
    found = np.asarray(pc.fill_null(texts.cast(pa.float64(), safe=False), math.nan), dtype=np.float64)
    return np.where(np.abs(found) <= LARGEST, found, math.nan)


def numbers_of(name: str, values: pa.ChunkedArray, form: NumberForm = "point") -> NDArray[np.float64]:
    """The values of any column of numbers as float64, with NaN for what is missing or no number."""
    kind = values.type
    if pa.types.is_null(kind):
        return np.full(len(values), np.nan)
    if is_text(kind):
        found = parse_numbers(known_texts(values), form)
    else:
        values = values.cast(pa.int8()) if pa.types.is_boolean(kind) else values
        found = np.asarray(pc.fill_null(values.cast(pa.float64(), safe=False), math.nan), dtype=np.float64)
    if (large := found[(np.abs(found) > LARGEST) & np.isfinite(found)]).size:
        raise ValueError(
            f"column {name!r} must hold numbers of at most {LARGEST:g}, got {large[0]:g}: rescale it or "
            f"pass {option('ignore', name)}"
        )
    return found


def class_names(values: pa.ChunkedArray) -> list[Any]:
    """A name for each value: 3 and 3.0 are one class."""
    if is_text(values.type) or pa.types.is_temporal(values.type):
        return texts_of(values).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_boolean(values.type):
        return [None if value is None else "true" if value else "false" for value in values.to_pylist()]
    if pa.types.is_integer(values.type) or pa.types.is_decimal(values.type):  # of more digits than a float has
        return ["nan" if value is None else _digits(value) for value in values.to_pylist()]
    numbers = numbers_of("", values).tolist()
    return [f"{value:.0f}" if math.isfinite(value) and value == round(value) else repr(value) for value in numbers]


def _digits(value: int | Decimal) -> str:
    text = f"{value:f}" if isinstance(value, Decimal) else str(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def look_alikes(names: Iterable[str]) -> list[list[str]]:
    """Names that people may take for one another: the same number, or the same letters.

    Example:
        >>> look_alikes(["0", "1", "Yes", "0.0", "yes"])
        [['0', '0.0'], ['Yes', 'yes']]
    """
    groups: dict[str | float, list[str]] = {}
    for name in names:
        groups.setdefault(_looks(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _looks(name: str) -> str | float:
    if re.fullmatch(r"[+-]?\d{1,40}", name):
        return int(name)
    return float(name) if re.fullmatch(_PLAIN, name) else " ".join(name.casefold().split())


def missing_mask(values: pa.ChunkedArray, *, words: bool = True) -> NDArray[np.bool_]:
    """Which values are missing."""
    if is_text(values.type):
        texts = known_texts(values) if words else pc.utf8_trim_whitespace(texts_of(values))
        found = pc.is_null(texts) if words else pc.or_(pc.is_null(texts), pc.fill_null(pc.equal(texts, ""), True))
        return np.asarray(found, dtype=bool)
    missing = np.asarray(pc.is_null(values), dtype=bool)
    if pa.types.is_floating(values.type):
        missing = missing | np.asarray(pc.fill_null(pc.is_nan(values), True), dtype=bool)
    return missing
