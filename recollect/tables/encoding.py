"""Rows to numbers: how each column of a table becomes features, decided once and then kept.

Numbers are standardised, dates become seconds and then the same, categories become one feature each, and one for all
that come later. Missing numbers become the mean, with a feature that says so. Values far outside what was seen when
the encoding was made are compressed, not cut, so that drifting data stay told apart without drowning the rest.
"""

from collections.abc import Iterable, Sequence
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
    look_alikes,
    missing_mask,
    numbers_of,
    texts_of,
)
from recollect.tables.wording import option
from recollect.terminal import counted

_FAR = 3.0  # in standard deviations
_OTHERS = 0.5  # the share of values that may be no numbers, in a later file


@dataclass(frozen=True)
class Noted:
    """What some values of a column hold that may not have been there when the encoding was made.

    Attributes:
        unknown: how many are missing, or no numbers or dates.
        strays: how many of these are texts that say something else.
        stray: the first of them.
        outside: how many are beyond the range.
        new: categories that were not there, each once.
    """

    unknown: int = 0
    strays: int = 0
    stray: str = ""
    outside: int = 0
    new: tuple[str, ...] = ()

    def plus(self, later: "Noted") -> "Noted":
        """Of these values and those that come after them."""
        return Noted(
            self.unknown + later.unknown,
            self.strays + later.strays,
            self.stray or later.stray,
            self.outside + later.outside,
            tuple(dict.fromkeys([*self.new, *later.new])),
        )


@dataclass
class Drift:
    """What a file holds that was not there when the encoding was made."""

    new_categories: dict[str, list[str]] = field(default_factory=dict)
    new_classes: list[str] = field(default_factory=list)
    alike: list[list[str]] = field(default_factory=list)  # classes, new ones and such that may be the same
    outside: dict[str, float] = field(default_factory=dict)  # share of the values beyond the range
    missing: dict[str, int] = field(default_factory=dict)  # where there was none before
    strays: dict[str, int] = field(default_factory=dict)  # values that are no numbers, or no dates

    def note(self, column: Column, noted: Noted, rows: int) -> None:
        """Take note of what `rows` rows hold; refused if so many values do not fit that it must be another column."""
        name = column.name
        if noted.strays > max(1, _OTHERS * rows):
            others = f"{counted(noted.strays - 1, 'other')} that {'is' if noted.strays == 2 else 'are'} none"
            raise ValueError(_another(column, f"{noted.stray[:60]!r} and {others}"))
        strays = 0 if column.strays else noted.strays
        if strays:
            self.strays[name] = self.strays.get(name, 0) + strays
        if not column.missing and noted.unknown > strays:
            self.missing[name] = self.missing.get(name, 0) + noted.unknown - strays
        if noted.outside:
            self.outside[name] = max(noted.outside / rows, self.outside.get(name, 0.0))
        if noted.new:
            told = self.new_categories.setdefault(name, [])
            told += [text for text in noted.new if text not in told]

    def sentences(self) -> list[str]:
        """For people."""
        told = [f"new classes: {', '.join(self.new_classes[:10])}"] if self.new_classes else []
        told += [f"classes {' and '.join(map(repr, group))} look alike, and are told apart" for group in self.alike[:3]]
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
    whole: bool | None = field(default=None, metadata={"later": True})  # whether all of a quantity were whole numbers

    @property
    def names(self) -> list[str]:
        """Of all columns."""
        return [*(column.name for column in self.columns), self.target]

    @property
    def n_features(self) -> int:
        return sum(column.width for column in self.columns)

    @property
    def number_forms(self) -> dict[str, NumberForm]:
        """How numbers are written, by column, where they are text."""
        forms = {column.name: column.form for column in self.columns if column.kind == "number" and column.form}
        if self.task == "regression" and self.form and not self.dated:
            forms[self.target] = self.form
        return cast(dict[str, NumberForm], forms)

    def features(self, table: pa.Table, drift: Drift) -> Tensor:
        """One row of numbers per row of the table; what is new is noted."""
        features, noted = self.encoded(table)
        for column, found in zip(self.columns, noted, strict=True):
            drift.note(column, found, table.num_rows)
        return features

    def encoded(self, table: pa.Table) -> tuple[Tensor, list[Noted]]:
        """The same, and for each column what there is to note."""
        out = np.zeros((table.num_rows, self.n_features), dtype=np.float32)
        start, noted = 0, []
        for column in self.columns:
            values, stop = table.column(column.name), start + column.width
            noted.append(_encode(column, values, out[:, start:stop]) if column.width else Noted())
            start = stop
        return torch.from_numpy(out), noted

    def unlabelled(self, table: pa.Table) -> NDArray[np.bool_]:
        """Which rows have no target."""
        values = table.column(self.target)
        if self.task == "regression":
            return ~np.isfinite(self._quantity(values)) & ~_infinite(values)
        return missing_mask(values, words=False)

    def targets(self, table: pa.Table, drift: Drift) -> Tensor:
        """Class numbers, or the quantity in standard deviations; a class not seen before gets the next number."""
        if missing := int(self.unlabelled(table).sum()):
            raise ValueError(missing_target(self.target, missing))
        labels, names = self.labels(table)
        self.admit(names, drift)
        return numbered(labels, names, self.classes)

    def labels(self, table: pa.Table) -> tuple[Tensor, list[str]]:
        """The quantity in standard deviations; or numbers of names, and the names, in the order in which they come."""
        values = table.column(self.target)
        if self.task == "regression":
            numbers = self._quantity(values)
            if not np.isfinite(numbers).all():
                raise ValueError(f"the target {self.target!r} must be finite numbers, got infinity: remove these rows")
            with np.errstate(over="ignore"):
                standard = ((numbers - self.mean) / self.scale).astype(np.float32)
            if (far := ~np.isfinite(standard)).any():
                such = numbers[int(far.argmax())]
                raise ValueError(f"the target {self.target!r} must stay near the first file's, got {such:g}")
            return torch.from_numpy(standard)[:, None], []
        # Blanks around a name are not of it, unless a store that was made before has them.
        known = set(self.classes)
        names = [name if name in known else name.strip() for name in class_names(values)]
        places = {name: i for i, name in enumerate(dict.fromkeys(names))}
        return torch.tensor([places[name] for name in names], dtype=torch.long), list(places)

    def admit(self, names: Iterable[str], drift: Drift) -> None:
        """Give the next numbers to classes that were not seen before."""
        known = set(self.classes)
        for name in names:
            if name not in known:
                known.add(name)
                self.classes.append(name)
                drift.new_classes.append(name)
        if drift.new_classes:
            drift.alike = [group for group in look_alikes(self.classes) if not set(drift.new_classes).isdisjoint(group)]
        if len(self.classes) > MOST_CLASSES:
            raise ValueError(f"the target {self.target!r} must have at most {MOST_CLASSES} classes, got more")

    def _quantity(self, values: pa.ChunkedArray) -> NDArray[np.float64]:
        if self.dated:
            return parse_seconds(values, self.form)
        return numbers_of(self.target, values, cast(NumberForm, self.form or "point"))


def numbered(labels: Tensor, names: Sequence[str], classes: Sequence[str]) -> Tensor:
    """Numbers of names as numbers of classes, -1 for what is none of them; quantities as they are."""
    if not names:
        return labels
    places = {name: i for i, name in enumerate(classes)}
    return torch.tensor([places.get(name, -1) for name in names])[labels]


def missing_target(name: str, count: int) -> str:
    """The sentence for who has rows without a label."""
    return (
        f"the target {name!r} must be known in every row, got {count:,} missing: "
        f"pass {option('drop_missing_target', True)} to leave these rows out"
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


def _encode(column: Column, values: pa.ChunkedArray, out: NDArray[np.float32]) -> Noted:
    if column.kind == "category":
        return _encode_category(column, values, out)
    try:
        if column.kind == "date":
            numbers = parse_seconds(values, column.form)
        else:
            numbers = numbers_of(column.name, values, cast(NumberForm, column.form or "point"))
    except pa.ArrowException:
        raise ValueError(_another(column, values.type)) from None
    known = np.isfinite(numbers)
    standard = np.where(known, (numbers - column.mean) / column.scale, 0.0)
    beyond = np.maximum(np.abs(standard) - _FAR, 0.0)
    out[:, 0] = np.where(beyond > 0, np.sign(standard) * (_FAR + np.log1p(beyond)), standard)
    if column.missing:
        out[:, 1] = ~known
    strays, stray = _strays(values, known) if is_text(values.type) and not known.all() else (0, "")
    outside = int(((numbers < column.low) | (numbers > column.high)).sum())
    return Noted(int((~known).sum()), strays, stray, outside)


def _another(column: Column, got: object) -> str:
    """The sentence for a column that holds something else than it did."""
    return (
        f"column {column.name!r} must hold {column.kind}s as in the first file, got {got}: "
        f"mend it, or pass {option('ignore', column.name)} to take it as missing in this file"
    )


def _strays(values: pa.ChunkedArray, known: NDArray[np.bool_]) -> tuple[int, str]:
    """How many values are neither numbers nor words for missing ones, and the first of them."""
    strays = pc.and_(pc.is_valid(known_texts(values)), pa.chunked_array([~known]))
    count = int(pc.sum(strays).as_py() or 0)
    return count, values.filter(strays)[0].as_py() if count else ""


def _encode_category(column: Column, values: pa.ChunkedArray, out: NDArray[np.float32]) -> Noted:
    texts = texts_of(values) if is_text(values.type) else pa.chunked_array([pa.array(_names(values), pa.string())])
    places = pc.index_in(texts, value_set=pa.array(column.values, pa.string()))
    unknown = pc.is_null(known_texts(texts))  # unless a store that was made before has a feature for such a word
    missing = np.asarray(pc.and_(pc.is_null(places), unknown))
    other = len(column.values)
    codes = np.asarray(pc.fill_null(places, other))
    out[np.arange(len(out)), codes] = 1
    out[missing] = 0
    if other >= MOST_ENCODED:
        return Noted()
    new = texts.filter(pc.and_(pc.is_null(places), pc.invert(unknown)))
    return Noted(new=tuple(pc.unique(new).to_pylist()))


def _names(values: pa.ChunkedArray) -> list[str | None]:
    return [None if name == "nan" else name for name in class_names(values)]
