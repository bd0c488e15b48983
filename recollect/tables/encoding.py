"""Rows to numbers: how each column of a table becomes features, decided once and then kept.

Numbers are standardised, dates become seconds and then the same, categories become one feature each, and one for all
that come later. Missing numbers become the mean, with a feature that says so. Values far outside what was seen when
the encoding was made are compressed, not cut, so that drifting data stay told apart without drowning the rest.
"""

from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from recollect.tables.dates import DateForm, parse_dates, typed_seconds
from recollect.tables.kinds import MOST_CLASSES, MOST_ENCODED, Column, Task
from recollect.tables.values import (
    NumberForm,
    class_names,
    is_text,
    known_texts,
    missing_mask,
    numbers_of,
    texts_of,
)
from recollect.terminal import counted

_FAR = 3.0  # in standard deviations
_OTHERS = 0.5  # the share of values that may be no numbers, in a later file


@dataclass
class Drift:
    """What a file holds that was not there when the encoding was made."""

    new_categories: dict[str, list[str]] = field(default_factory=dict)
    new_classes: list[str] = field(default_factory=list)
    outside: dict[str, float] = field(default_factory=dict)  # share of the values beyond the range
    missing: dict[str, int] = field(default_factory=dict)  # where there was none before
    strays: dict[str, int] = field(default_factory=dict)  # values that are no numbers, or no dates

    def sentences(self) -> list[str]:
        """For people."""
        told = [f"new classes: {', '.join(self.new_classes[:10])}"] if self.new_classes else []
        for name, values in self.new_categories.items():
            what = counted(len(values), "new category", "new categories")
            verb = "is" if len(values) == 1 else "are"
            told.append(f"{name}: {what}, such as {values[0]!r}, {verb} encoded as 'other'")
        if self.outside:
            name, share = max(self.outside.items(), key=lambda item: item[1])
            others = f" and of {counted(len(self.outside) - 1, 'other column')}" if len(self.outside) > 1 else ""
            told.append(f"values of {name} ({share:.1%}){others} are outside the range of the first file")
        for name, count in self.missing.items():
            told.append(f"{name}: {count:,} missing, none in the first file; taken as the mean")
        for name, count in self.strays.items():
            told.append(f"{name}: {counted(count, 'value')} not as in the first file; taken as missing")
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
    form: str = ""  # of the target, if it is numbers or dates that are text
    dated: bool = False  # whether the target is dates that are taken as numbers

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

    def unlabelled(self, table: pa.Table) -> NDArray[np.bool_]:
        """Which rows have no target."""
        values = table.column(self.target)
        if self.task == "regression":
            return ~np.isfinite(self._quantity(values)) & ~_infinite(values)
        return missing_mask(values, words=False)

    def targets(self, table: pa.Table, drift: Drift) -> Tensor:
        """Class numbers, or the quantity in standard deviations; a class not seen before gets the next number."""
        values = table.column(self.target)
        if missing := int(self.unlabelled(table).sum()):
            raise ValueError(missing_target(self.target, missing))
        if self.task == "regression":
            numbers = self._quantity(values)
            if not np.isfinite(numbers).all():
                raise ValueError(f"the target {self.target!r} must be finite numbers, got infinity: remove these rows")
            with np.errstate(over="ignore"):
                standard = torch.from_numpy(((numbers - self.mean) / self.scale).astype(np.float32))[:, None]
            if not torch.isfinite(standard).all():
                raise ValueError(f"the target {self.target!r} must stay near the first file's, got {numbers.max():g}")
            return standard
        names = class_names(values)
        known = {name: i for i, name in enumerate(self.classes)}
        for name in dict.fromkeys(names):
            if name not in known:
                known[name] = len(known)
                self.classes.append(name)
                drift.new_classes.append(name)
        if len(self.classes) > MOST_CLASSES:
            raise ValueError(f"the target {self.target!r} must have at most {MOST_CLASSES} classes, got more")
        return torch.tensor([known[name] for name in names])

    def _quantity(self, values: pa.ChunkedArray) -> NDArray[np.float64]:
        if self.dated:
            return parse_seconds(values, self.form)
        return numbers_of(self.target, values, cast(NumberForm, self.form or "point"))


def missing_target(name: str, count: int) -> str:
    """The sentence for who has rows without a label."""
    return (
        f"the target {name!r} must be known in every row, got {count:,} missing: "
        "pass --drop-missing-target to leave these rows out"
    )


def parse_seconds(values: pa.ChunkedArray, form: str) -> NDArray[np.float64]:
    """The values of any column of dates as seconds, with NaN for what is missing or no date."""
    if not is_text(values.type):
        return typed_seconds(values)
    return parse_dates(known_texts(values), cast(DateForm, form or "iso"))


def _infinite(values: pa.ChunkedArray) -> NDArray[np.bool_]:
    if not pa.types.is_floating(values.type):
        return np.zeros(len(values), dtype=bool)
    return np.asarray(pc.fill_null(pc.is_inf(values), False), dtype=bool)


def _encode(column: Column, values: pa.ChunkedArray, out: NDArray[np.float32], drift: Drift) -> None:
    if column.kind == "category":
        _encode_category(column, values, out, drift)
        return
    try:
        if column.kind == "date":
            numbers = parse_seconds(values, column.form)
        else:
            numbers = numbers_of(column.name, values, cast(NumberForm, column.form or "point"))
    except pa.ArrowException:
        raise ValueError(
            f"column {column.name!r} must hold {column.kind}s as in the first file, got {values.type}: {_ANSWER}"
        ) from None
    known = np.isfinite(numbers)
    if is_text(values.type) and not known.all():
        _note_strays(column, values, known, drift)
    standard = np.where(known, (numbers - column.mean) / column.scale, 0.0)
    beyond = np.maximum(np.abs(standard) - _FAR, 0.0)
    out[:, 0] = np.where(beyond > 0, np.sign(standard) * (_FAR + np.log1p(beyond)), standard)
    if column.missing:
        out[:, 1] = ~known
    elif not known.all():
        strays = drift.strays.get(column.name, 0)
        if missing := drift.missing.get(column.name, 0) + int((~known).sum()) - strays:
            drift.missing[column.name] = missing
    outside = float(((numbers < column.low) | (numbers > column.high)).mean())
    if outside:
        drift.outside[column.name] = max(outside, drift.outside.get(column.name, 0.0))


_ANSWER = "mend it, or pass --ignore with its name to take it as missing in this file"


def _note_strays(column: Column, values: pa.ChunkedArray, known: NDArray[np.bool_], drift: Drift) -> None:
    """Values that are neither numbers nor words for missing ones: a few are missing, many are another column."""
    strays = pc.and_(pc.is_valid(known_texts(values)), pa.chunked_array([~known]))
    count = int(pc.sum(strays).as_py() or 0)
    if count > max(1, _OTHERS * len(values)):
        such = values.filter(strays)[0].as_py()
        raise ValueError(
            f"column {column.name!r} must hold {column.kind}s as in the first file, got {such[:60]!r} "
            f"and {counted(count - 1, 'other')} that {'is' if count == 2 else 'are'} none: {_ANSWER}"
        )
    if count and not column.strays:
        drift.strays[column.name] = drift.strays.get(column.name, 0) + count


def _encode_category(column: Column, values: pa.ChunkedArray, out: NDArray[np.float32], drift: Drift) -> None:
    texts = texts_of(values) if is_text(values.type) else pa.chunked_array([pa.array(_names(values), pa.string())])
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


def _names(values: pa.ChunkedArray) -> list[str | None]:
    return [None if name == "nan" else name for name in class_names(values)]
