"""Texts that are dates, in the usual forms, as seconds.

    iso      2024-12-31, 2024-12-31T23:59:59.5+01:00, 2024/12/31 23:59:59,5+01, 20241231T235959Z
    dmy      31.12.2024, 31/12/2024 23:59, 31-12-24
    mdy      12/31/2024 11:59 PM
    named    31 Dec 2024, December 31, 2024, Tue, 31 Dec 2024 23:59:59 GMT
    compact  20241231, which is a number to anybody who was not told

Whether 01/02/2024 is in January or in February is decided by all values of the column; where they do not tell, slashes
mean that the month comes first, and anything else that the day does.
"""

import re
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

DateForm: TypeAlias = Literal["iso", "dmy", "mdy", "named", "compact"]

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_YEAR, _MONTH, _DAY = r"(?P<y>\d{4}|\d{2})", r"(?P<m>\d{1,2})", r"(?P<d>\d{1,2})"
_NAME = rf"(?P<m>{'|'.join(_MONTHS)})[a-z]*\.?"
_ZONE = r"(?P<z>Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?"
_TIME = r"(?:[ T,]+(?P<H>\d{1,2}):(?P<M>\d{2})(?::(?P<S>\d{2}(?:[.,]\d+)?))?[ ]?(?P<p>[AaPp][Mm])?[ ]?" + _ZONE + ")?$"
_DIGITS = r"^(?P<y>\d{4})(?P<m>\d{2})(?P<d>\d{2})"
_CLOCK = r"T(?P<H>\d{2}):?(?P<M>\d{2})(?::?(?P<S>\d{2}(?:[.,]\d+)?))?(?P<p>)" + _ZONE + "$"
_WEEKDAY = r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,? )?"
_NO_YEAR_FIRST = rf"(?:{_DAY}[. -]+{_NAME}[. ,-]+{_YEAR})"
_PATTERNS: dict[DateForm, tuple[str, ...]] = {
    "iso": (rf"^(?P<y>\d{{4}})[-/.]{_MONTH}[-/.]{_DAY}{_TIME}", _DIGITS + _CLOCK),
    "dmy": (rf"^{_DAY}[./-]{_MONTH}[./-]{_YEAR}{_TIME}",),
    "mdy": (rf"^{_MONTH}[/-]{_DAY}[/-]{_YEAR}{_TIME}",),
    "named": (
        rf"^(?i){_WEEKDAY}{_NO_YEAR_FIRST}{_TIME}",
        rf"^(?i){_WEEKDAY}{_NAME}[. -]+{_DAY}(?:st|nd|rd|th)?[ ,]+{_YEAR}{_TIME}",
    ),
    "compact": (_DIGITS + _TIME,),
}
GUESSED: tuple[DateForm, ...] = ("iso", "dmy", "mdy", "named")
"""Forms that are recognised without being asked for, the likeliest first."""

_SIGN = rf"(?i)[-/.]\d{{1,2}}[-/.]\d|\dT\d|{'|'.join(_MONTHS)}"  # in every date of these forms


def likely_forms(texts: pa.ChunkedArray, forms: tuple[DateForm, ...]) -> list[DateForm]:
    """Those that the first of the texts look like: a quick answer before all are read."""
    some = texts.slice(0, 200)

    def found(pattern: str) -> bool:
        return bool(pc.any(pc.match_substring_regex(some, pattern)).as_py())

    if "compact" not in forms and not found(_SIGN):
        return []
    return [form for form in forms if any(found(_unnamed(pattern)) for pattern in _PATTERNS[form])]


def parse_dates(texts: pa.ChunkedArray, form: DateForm) -> NDArray[np.float64]:
    """Seconds since 1970, with NaN for what is missing or no date.

    Example:
        >>> texts = pa.chunked_array([["31.12.1970", "1.1.1970 00:01", "32.1.1970", None]])
        >>> parse_dates(texts, "dmy").tolist()
        [31449600.0, 60.0, nan, nan]
    """
    found = np.full(len(texts), np.nan)
    for pattern in _PATTERNS[form]:
        parts = pc.extract_regex(texts, pattern)
        parts = parts.combine_chunks() if isinstance(parts, pa.ChunkedArray) else parts
        if isinstance(parts, pa.ChunkedArray):  # of no chunks
            continue
        seconds = _seconds(parts)
        found = np.where(np.isnan(found), seconds, found)
    return found


def is_ambiguous(texts: pa.ChunkedArray) -> bool:
    """Whether slashes stand between numbers, so that the month may come first."""
    return bool(pc.any(pc.match_substring(texts, "/")).as_py())


def _unnamed(pattern: str) -> str:
    return re.sub(r"\?P<\w>", "?:", pattern)


def _seconds(parts: pa.StructArray) -> NDArray[np.float64]:
    known = np.asarray(pc.is_valid(parts), dtype=bool)

    def number(name: str) -> NDArray[np.float64]:
        values = pc.struct_field(parts, name)
        values = pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values)
        values = pc.replace_substring(values, ",", ".") if name == "S" else values
        return np.asarray(pc.fill_null(values.cast(pa.float64()), 0.0), dtype=np.float64)

    def text(name: str) -> list[str] | None:
        """None if there is nothing, which is usual and quick to tell."""
        lower = pc.fill_null(pc.utf8_lower(pc.struct_field(parts, name)), "")
        return lower.to_pylist() if pc.any(pc.not_equal(lower, "")).as_py() else None

    year, day = number("y"), number("d")
    year = np.where(year < 69, year + 2000, np.where(year < 100, year + 1900, year))
    months = pc.utf8_lower(pc.struct_field(parts, "m"))
    for i, name in enumerate(_MONTHS, 1):
        months = pc.replace_substring(months, name, str(i))
    month = np.asarray(pc.fill_null(months.cast(pa.float64()), 0.0), dtype=np.float64)
    fits = known & (month >= 1) & (month <= 12) & (day >= 1)
    first = np.where(fits, (year - 1970) * 12 + month - 1, 0).astype(np.int64).astype("M8[M]")
    days = first.astype("M8[D]") + np.where(fits, day - 1, 0).astype(np.int64)
    fits &= days.astype("M8[M]") == first
    hour, minute, second = number("H"), number("M"), number("S")
    if halves := text("p"):
        half = np.array(halves)
        hour = np.where(half == "pm", hour % 12 + 12, np.where(half == "am", hour % 12, hour))
    fits &= (hour < 25) & (minute < 60) & (second < 61)
    offset = np.array([_offset(zone) for zone in zones]) if (zones := text("z")) else 0.0
    seconds = days.astype(np.int64) * 86400.0 + hour * 3600 + minute * 60 + second - offset
    return np.where(fits, seconds, np.nan)


def _offset(zone: str) -> float:
    if not zone or zone[0] not in "+-":
        return 0.0
    digits = zone[1:].replace(":", "")
    return (1 if zone[0] == "+" else -1) * (int(digits[:2]) * 3600.0 + int(digits[2:] or 0) * 60.0)


def typed_seconds(values: pa.ChunkedArray) -> NDArray[np.float64]:
    """The same for columns that hold dates, times or durations."""
    kind = values.type
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        numbers = values.cast(pa.int64() if kind.bit_width == 64 else pa.int32()).cast(pa.float64())
        return np.asarray(pc.fill_null(numbers, np.nan), dtype=np.float64)
    stamps = values if pa.types.is_timestamp(kind) else values.cast(pa.timestamp("us"))
    micro = stamps.cast(pa.timestamp("us", stamps.type.tz), safe=False).cast(pa.int64()).cast(pa.float64(), safe=False)
    return np.asarray(pc.fill_null(micro, np.nan), dtype=np.float64) / 1e6
