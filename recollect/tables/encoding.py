"""Rows to numbers: how each column of a table becomes features, decided once and then kept.

Numbers are standardised, dates become seconds and then the same, categories become one feature each, and one for all
that come later. Missing numbers become the mean, with a feature that says so. Values far outside what was seen when
the encoding was made are compressed, not cut, so that drifting data stay told apart without drowning the rest.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

Kind: TypeAlias = Literal["number", "date", "category", "constant", "ignored"]
Task: TypeAlias = Literal["classification", "regression"]

MOST_CATEGORIES = 1000
MOST_ENCODED = 100  # the most frequent ones get a feature each
MOST_CLASSES = 1000
_FEW_CLASSES = 100  # an integer target with more values than this is a quantity
_FEW_TEXTS = 20
_FAR = 3.0  # in standard deviations
_LARGEST = 1e100  # squares of larger numbers may overflow
_MISSING = ("NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "?", "-")
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_CODE = r"^\s*[+-]?0\d"  # 007 is a name, not a number
_DATE = r"^\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?$"


@dataclass
class Column:
    """One column of the table and how it is encoded."""

    name: str
    kind: Kind
    mean: float = 0.0
    scale: float = 1.0
    low: float = 0.0
    high: float = 0.0
    missing: bool = False
    values: list[str] = field(default_factory=list)

    @property
    def width(self) -> int:
        """How many features it becomes."""
        match self.kind:
            case "number" | "date":
                return 1 + self.missing
            case "category":
                return len(self.values) + 1
        return 0


@dataclass
class Drift:
    """What a file holds that was not there when the encoding was made."""

    new_categories: dict[str, list[str]] = field(default_factory=dict)
    new_classes: list[str] = field(default_factory=list)
    outside: dict[str, float] = field(default_factory=dict)  # share of the values beyond the range
    missing: dict[str, int] = field(default_factory=dict)  # where there was none before

    def sentences(self) -> list[str]:
        """For people."""
        told = [f"new classes: {', '.join(self.new_classes[:10])}"] if self.new_classes else []
        for name, values in self.new_categories.items():
            told.append(f"{name}: {len(values)} new categories, such as {values[0]!r}, are encoded as 'other'")
        if self.outside:
            name, share = max(self.outside.items(), key=lambda item: item[1])
            others = f" and of {len(self.outside) - 1} other columns" if len(self.outside) > 1 else ""
            told.append(f"values of {name} ({share:.1%}){others} are outside the range of the first file")
        for name, count in self.missing.items():
            told.append(f"{name}: {count} missing, none in the first file; taken as the mean")
        return told


@dataclass
class Encoding:
    """How the columns of one kind of table become features and targets; plain data."""

    target: str
    task: Task
    columns: list[Column]
    classes: list[str]
    mean: float = 0.0  # of the target, in regression
    scale: float = 1.0

    @property
    def n_features(self) -> int:
        return sum(column.width for column in self.columns)

    def features(self, table: pa.Table, drift: Drift) -> Tensor:
        """One row of numbers per row of the table; what is new is noted."""
        out = np.zeros((table.num_rows, self.n_features), dtype=np.float32)
        start = 0
        for column in self.columns:
            if column.width:
                _encode(column, table.column(column.name), out[:, start : start + column.width], drift)
            start += column.width
        return torch.from_numpy(out)

    def targets(self, table: pa.Table, drift: Drift) -> Tensor:
        """Class numbers, or the quantity in standard deviations; a class not seen before gets the next number."""
        values = table.column(self.target)
        if missing := _count_missing(values, words=False):
            raise ValueError(
                f"the target {self.target!r} must be known in every row, got {missing} missing: remove these rows"
            )
        if self.task == "regression":
            numbers = _numbers(self.target, values)
            if not np.isfinite(numbers).all():
                raise ValueError(f"the target {self.target!r} must be finite numbers, got NaN or infinity")
            with np.errstate(over="ignore"):
                standard = torch.from_numpy(((numbers - self.mean) / self.scale).astype(np.float32))[:, None]
            if not torch.isfinite(standard).all():
                raise ValueError(f"the target {self.target!r} must stay near the first file's, got {numbers.max():g}")
            return standard
        names = _class_names(values)
        known = {name: i for i, name in enumerate(self.classes)}
        for name in dict.fromkeys(names):
            if name not in known:
                known[name] = len(known)
                self.classes.append(name)
                drift.new_classes.append(name)
        if len(self.classes) > MOST_CLASSES:
            raise ValueError(f"the target {self.target!r} must have at most {MOST_CLASSES} classes, got more")
        return torch.tensor([known[name] for name in names])


def fit_encoding(
    pieces: Iterable[pa.Table], target: str, *, task: Task | None = None, ignore: Sequence[str] = ()
) -> Encoding:
    """Look at all rows once and decide how to encode them."""
    sums: dict[str, _Summary] | None = None
    for piece in pieces:
        if sums is None:
            sums = _summaries(piece.schema, target, ignore)
        for name, summary in sums.items():
            summary.add(piece.column(name))
    if sums is None:
        raise ValueError("there must be at least one row, got none")
    goal = sums.pop(target)
    columns = [sums[name].column() if name in sums else Column(name, "ignored") for name in [*ignore, *sums]]
    if not any(column.width for column in columns):
        raise ValueError("there must be a column besides the target that varies, got none")
    task = goal.task() if task is None else task
    encoding = Encoding(target, task, columns, [])
    if goal.missing and goal.count == goal.missing:
        raise ValueError(f"the target {target!r} must hold values, got nothing but missing ones")
    if task == "regression":
        if goal.numbers is None or not goal.numbers.count:
            raise ValueError(f"the target {target!r} must hold numbers for regression: pass --task classification")
        encoding.mean, encoding.scale = goal.numbers.mean, goal.numbers.deviation or 1.0
    else:
        if len(goal.distinct) > MOST_CLASSES:
            raise ValueError(
                f"the target {target!r} must have at most {MOST_CLASSES} classes, got more: "
                "pass --task regression if it is a quantity"
            )
        encoding.classes = sorted(goal.distinct, key=_natural)
    return encoding


# What is gathered about a column while reading


@dataclass
class _Moments:
    count: int = 0
    mean: float = 0.0
    square: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    integral: bool = True

    def add(self, values: NDArray[np.float64]) -> None:
        values = values[np.isfinite(values)]
        if not len(values):
            return
        n, mean = len(values), float(values.mean())
        delta, total = mean - self.mean, self.count + n
        self.square += float(((values - mean) ** 2).sum()) + delta**2 * self.count * n / total
        self.mean += delta * n / total
        self.count = total
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        self.integral = self.integral and bool((values == np.round(values)).all())

    @property
    def deviation(self) -> float:
        return math.sqrt(self.square / self.count) if self.count else 0.0


class _Summary:
    """What must be known of a column to encode it."""

    def __init__(self, name: str, kind: pa.DataType, is_target: bool) -> None:
        self.name, self.is_target = name, is_target
        self.count = self.missing = 0
        self.is_text = _is_text(kind)
        self.is_date = pa.types.is_temporal(kind) and not pa.types.is_interval(kind)
        self.is_boolean = pa.types.is_boolean(kind)
        self.may_be: set[str] = {"number", "date"} if self.is_text else set()
        self.numbers: _Moments | None = _Moments()
        self.dates = _Moments()
        self.distinct: Counter[str] = Counter()
        if not (self.is_text or self.is_date or _is_numeric(kind) or pa.types.is_null(kind)):
            raise ValueError(
                f"a column must hold numbers, dates, categories or yes and no, got {kind} in {name!r}: "
                f"pass --ignore {name}"
            )

    def add(self, values: pa.ChunkedArray) -> None:
        self.count += len(values)
        self.missing += _count_missing(values, words=not self.is_target)
        if self.is_text:
            self._add_text(values)
        elif self.numbers is not None:
            self.numbers.add(_numbers(self.name, values))
        if self.is_target and not self.is_text and len(self.distinct) <= MOST_CLASSES:
            self.distinct.update(name for name in _class_names(values.drop_null()) if name != "nan")

    def _add_text(self, values: pa.ChunkedArray) -> None:
        texts = _texts(values).drop_null()
        if len(self.distinct) <= MOST_CATEGORIES:
            for entry in pc.value_counts(texts).to_pylist():
                self.distinct[entry["values"]] += entry["counts"]
        known = texts.filter(pc.invert(pc.is_in(texts, value_set=pa.array(_MISSING))))
        if "number" in self.may_be:
            if _all(pc.match_substring_regex(known, _NUMBER)) and not _any(pc.match_substring_regex(known, _CODE)):
                assert self.numbers is not None
                self.numbers.add(_numbers(self.name, known))
            else:
                self.may_be.discard("number")
                self.numbers = None
        if "date" in self.may_be:
            try:
                if not _all(pc.match_substring_regex(known, _DATE)):
                    raise pa.ArrowInvalid
                self.dates.add(_seconds(known))
            except pa.ArrowException:
                self.may_be.discard("date")

    def task(self) -> Task:
        if self.numbers is None or self.is_boolean or not self.numbers.count:
            return "classification"
        few = self.numbers.integral and len(self.distinct) <= _FEW_CLASSES
        return "classification" if few else "regression"

    def column(self) -> Column:
        if self.count == self.missing:
            return Column(self.name, "constant")
        if not self.is_text or "number" in self.may_be or "date" in self.may_be:
            is_date = self.is_date or (self.is_text and "number" not in self.may_be)
            moments = self.dates if self.is_text and is_date else self.numbers
            assert moments is not None
            if not moments.count or (moments.low == moments.high and not self.missing):
                return Column(self.name, "constant")
            kind: Kind = "date" if is_date else "number"
            scale = moments.deviation or 1.0
            missing = self.missing > 0
            return Column(self.name, kind, moments.mean, scale, moments.low, moments.high, missing)
        known = len(self.distinct)
        if known > MOST_CATEGORIES or (known > _FEW_TEXTS and known > self.count / 2):
            raise ValueError(
                f"a column of text must hold few different values, got more than {min(known, MOST_CATEGORIES)} "
                f"in {self.name!r}: pass --ignore {self.name}"
            )
        if known == 1 and not self.missing:
            return Column(self.name, "constant")
        values = sorted(name for name, _ in self.distinct.most_common(MOST_ENCODED))
        return Column(self.name, "category", values=values)


def _summaries(schema: pa.Schema, target: str, ignore: Sequence[str]) -> dict[str, _Summary]:
    for name in (target, *ignore):
        if name not in schema.names:
            what = "target" if name == target else "ignored column"
            raise ValueError(f"the {what} must be one of {', '.join(map(repr, schema.names))}, got {name!r}")
    if target in ignore:
        raise ValueError(f"the target must not be ignored, got {target!r} as both")
    return {f.name: _Summary(f.name, f.type, f.name == target) for f in schema if f.name not in ignore}


# How values are read


def _encode(column: Column, values: pa.ChunkedArray, out: NDArray[np.float32], drift: Drift) -> None:
    if column.kind == "category":
        texts = _texts(values)
        places = pc.index_in(texts, value_set=pa.array(column.values, pa.string()))
        missing = np.asarray(pc.is_null(texts))
        other = len(column.values)
        codes = np.asarray(pc.fill_null(places, other))
        out[np.arange(len(out)), codes] = 1
        out[missing] = 0
        new = texts.filter(pc.and_(pc.is_null(places), pc.is_valid(texts)))
        if len(new) and other < MOST_ENCODED:
            told = drift.new_categories.setdefault(column.name, [])
            told += [text for text in pc.unique(new).to_pylist() if text not in told]
        return
    try:
        numbers = _seconds(values) if column.kind == "date" else _numbers(column.name, values)
    except pa.ArrowException:
        raise ValueError(f"column {column.name!r} must hold dates as in the first file, got something else") from None
    known = np.isfinite(numbers)
    standard = np.where(known, (numbers - column.mean) / column.scale, 0.0)
    beyond = np.maximum(np.abs(standard) - _FAR, 0.0)
    out[:, 0] = np.where(beyond > 0, np.sign(standard) * (_FAR + np.log1p(beyond)), standard)
    if column.missing:
        out[:, 1] = ~known
    elif not known.all():
        drift.missing[column.name] = drift.missing.get(column.name, 0) + int((~known).sum())
    outside = float(((numbers < column.low) | (numbers > column.high)).mean())
    if outside:
        drift.outside[column.name] = max(outside, drift.outside.get(column.name, 0.0))


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_numeric(kind: pa.DataType) -> bool:
    types = pa.types
    return any((types.is_integer(kind), types.is_floating(kind), types.is_boolean(kind), types.is_decimal(kind)))


def _texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return values.cast(pa.string())


def _known_texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """With null for the words that say that a value is missing."""
    texts = _texts(values)
    return pc.if_else(pc.is_in(texts, value_set=pa.array(_MISSING)), pa.scalar(None, pa.string()), texts)


def _numbers(name: str, values: pa.ChunkedArray) -> NDArray[np.float64]:
    """As float64, with NaN for what is missing."""
    kind = values.type
    if pa.types.is_null(kind):
        return np.full(len(values), np.nan)
    if pa.types.is_temporal(kind):
        return _seconds(values)
    if _is_text(kind):
        values = pc.utf8_trim_whitespace(_known_texts(values))
    elif pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    try:
        numbers = values.cast(pa.float64(), safe=False)
    except pa.ArrowException:
        raise ValueError(f"column {name!r} must hold numbers as in the first file, got other text") from None
    found = np.asarray(pc.fill_null(numbers, math.nan), dtype=np.float64)
    if (large := found[(np.abs(found) > _LARGEST) & np.isfinite(found)]).size:
        raise ValueError(
            f"column {name!r} must hold numbers of at most {_LARGEST:g}, got {large[0]:g}: rescale it or pass --ignore"
        )
    return found


def _seconds(values: pa.ChunkedArray) -> NDArray[np.float64]:
    kind = values.type
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        numbers = values.cast(pa.int64() if kind.bit_width == 64 else pa.int32()).cast(pa.float64())
        return np.asarray(pc.fill_null(numbers, math.nan), dtype=np.float64)
    if _is_text(kind):
        texts = _known_texts(values)
        zoned = _any(pc.match_substring_regex(texts, r"(Z|[+-]\d{2}:?\d{2})$"))
        values = texts.cast(pa.timestamp("us", "UTC") if zoned else pa.timestamp("us"))
    numbers = values.cast(pa.timestamp("us")) if not pa.types.is_timestamp(values.type) else values
    micro = (
        numbers.cast(pa.timestamp("us", numbers.type.tz), safe=False).cast(pa.int64()).cast(pa.float64(), safe=False)
    )
    return np.asarray(pc.fill_null(micro, math.nan), dtype=np.float64) / 1e6


def _class_names(values: pa.ChunkedArray) -> list[str]:
    """A name for each value: 3 and 3.0 are one class."""
    if _is_text(values.type) or pa.types.is_temporal(values.type):
        return _texts(values).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_boolean(values.type):
        return ["true" if value else "false" for value in values.to_pylist()]
    numbers = _numbers("", values).tolist()
    return [f"{value:.0f}" if math.isfinite(value) and value == round(value) else repr(value) for value in numbers]


def _natural(name: str) -> tuple[int, float, str]:
    """Numbers by size, then other names."""
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name


def _count_missing(values: pa.ChunkedArray, *, words: bool = True) -> int:
    """How many are null, NaN, or one of the words for it; a class may be called by such a word."""
    missing = int(values.null_count)
    if pa.types.is_floating(values.type):
        missing += int(pc.sum(pc.is_nan(values)).as_py() or 0)
    elif words and _is_text(values.type):
        missing += int(pc.sum(pc.is_in(_texts(values), value_set=pa.array(_MISSING))).as_py() or 0)
    return missing


def _all(mask: pa.ChunkedArray) -> bool:
    return bool(pc.all(mask).as_py() in (True, None))


def _any(mask: pa.ChunkedArray) -> bool:
    return bool(pc.any(mask).as_py())
