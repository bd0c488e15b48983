"""What is gathered about a column while its rows pass by once, and what is made of it at the end.

A column of text may be numbers, dates or categories. Each possibility is followed, with what it would come to, until
enough values speak against it; a few stray values do not, and count as missing.
"""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recollect.tables.account import Described
from recollect.tables.dates import GUESSED, DateForm, is_ambiguous, likely_forms, parse_dates, typed_seconds
from recollect.tables.guesses import Guess, Moments, may_hold
from recollect.tables.kinds import MOST_CATEGORIES, MOST_CLASSES, MOST_ENCODED, Column, Kind, Task
from recollect.tables.values import (
    NumberForm,
    all_plain,
    class_names,
    has_codes,
    is_numeric,
    is_text,
    known_texts,
    missing_mask,
    numbers_of,
    parse_numbers,
    texts_of,
    unit_of,
)
from recollect.tables.wording import option
from recollect.terminal import counted

_SAID: dict[str, tuple[DateForm, ...]] = {"date-dmy": ("dmy",), "date-mdy": ("mdy",)}

KINDS = ("number", "date", "date-dmy", "date-mdy", "category", "ignored")
"""What a column can be said to be."""

_FEW_CLASSES = 100  # a whole number with more values than this is a quantity
_FEW_TEXTS = 20
_TOLD_APART = 2.0**53  # from here on, whole numbers next to one another are the same float
_EXAMPLES = 3  # that are shown
_ROW_NUMBERS = 20  # so many rows, counted from 0 or 1, are no coincidence
_ID = re.compile(
    r"(?i:(^|[\s_.\-])(id|ids|uuid|guid|rowid|hash|key|index|idx)$)|[a-z](Id|ID|Uuid|UUID)$|^(?i:unnamed: ?\d+|index|)$"
)


class Summary:
    """What must be known of a column to describe and to encode it.

    Args:
        name: of the column.
        kind: its type in the table.
        is_target: whether it is what is to be predicted.
        wanted: what somebody said that it is, one of `KINDS`.
    """

    def __init__(self, name: str, kind: pa.DataType, is_target: bool, wanted: str | None) -> None:
        self.name, self.type, self.is_target, self.wanted = name, kind, is_target, wanted
        self.is_text = is_text(kind)
        self.is_date = pa.types.is_temporal(kind) and not pa.types.is_interval(kind)
        self.is_boolean = pa.types.is_boolean(kind)
        self.is_readable = self.is_text or self.is_date or is_numeric(kind) or pa.types.is_null(kind)
        self.count = self.missing = 0
        self.typed = Moments()
        self.numbers: dict[NumberForm, Guess] = {form: Guess(form) for form in ("point", "comma")}
        self.dates: dict[DateForm, Guess] | None = None
        self.readable = 0  # texts that are no word for a missing value
        self.codes = self.differs = self.slashes = False
        self.start: float | None = 0.0  # where it counts rows from, unless it does not
        self._ids = True
        self.unit: str | None = None
        self.distinct: Counter[str] = Counter()
        self.examples: list[str] = []
        if not self.is_readable and is_target:
            raise ValueError(f"the target {name!r} must hold classes or numbers, got {kind}: choose another column")
        if not self.is_readable and wanted not in (None, "ignored"):
            raise ValueError(f"column {name!r} must hold numbers, dates or text to be a {wanted}, got {kind}")

    # While rows pass by

    def add(self, values: pa.ChunkedArray) -> None:
        """Look at some more rows."""
        self.fold(self.look(values))

    def look(self, values: pa.ChunkedArray, *, later: bool = False) -> "Glimpse":
        """What some rows say, without what is of no more use after those that were folded in so far.

        Somebody else may look at each of several parts of the rows, as long as they are folded in, in their order.

        Args:
            values: the rows.
            later: whether there are rows in between that have not been folded in yet.
        """
        found = Glimpse(len(values))
        if len(self.examples) < _EXAMPLES:
            found.examples = _examples(values)
        texts = known_texts(values) if self.is_text else None
        if texts is not None and not self.is_target:
            found.missing = texts.null_count
        elif self.is_readable:
            found.missing = int(missing_mask(values, words=not self.is_target).sum())
        else:
            found.missing = values.null_count
        if self._is_looked_at and texts is not None:
            self._look_at_text(values, texts, found, later)
        elif self._is_looked_at:
            numbers = typed_seconds(values) if self.is_date else numbers_of(self.name, values)
            found.typed = Moments.of(numbers)
            found.run = _run(numbers) if self.start is not None else None
            if (self.is_target or self.wanted == "category") and len(self.distinct) <= MOST_CLASSES:
                found.distinct = Counter(n for n in class_names(values.drop_null()) if n != "nan")
            elif self.typed.integral and found.typed.integral and len(self.distinct) <= MOST_CATEGORIES:
                if pa.types.is_integer(self.type) or pa.types.is_decimal(
                    self.type
                ):  # may have more digits than a float
                    found.distinct = Counter(class_names(values.unique().drop_null()))
                else:
                    found.distinct = Counter(np.unique(numbers[np.isfinite(numbers)]).astype(str).tolist())
        return found

    def _look_at_text(self, values: pa.ChunkedArray, texts: pa.ChunkedArray, found: "Glimpse", later: bool) -> None:
        # Each question to all texts takes some time, however few they are, which counts where columns are many.
        plain = all_plain(texts)
        if len(self.distinct) <= MOST_CATEGORIES:
            if self.is_target:  # such words may be the names of classes
                named = pc.utf8_trim_whitespace(texts_of(values))
            else:
                named = texts_of(values).filter(pc.is_valid(texts)) if texts.null_count else texts_of(values)
            counts = pc.value_counts(named.drop_null())
            names, times = (counts.field(what).to_pylist() for what in ("values", "counts"))
            found.distinct = Counter(dict(zip(names, times, strict=True)))
        found.readable = len(texts) - texts.null_count
        found.codes = not self.codes and has_codes(texts)
        found.unit = self.unit or (None if plain else unit_of(texts.slice(0, 1000)))
        read = {form: parse_numbers(texts, form, plain=plain) for form in self.numbers}
        if len(read) == 2 and not self.differs:
            point, comma = read.values()
            found.differs = bool((np.isfinite(point) & np.isfinite(comma) & (point != comma)).any())
        found.numbers = {form: Guess.of(form, texts, numbers) for form, numbers in read.items()}
        found.run = _run(read["point"]) if "point" in read and self.start is not None else None
        forms: Iterable[DateForm] = self.dates or ()
        if self.dates is None and found.readable:
            forms = self._date_forms()
            found.may_be = [] if plain and "compact" not in forms else likely_forms(texts, forms)
            forms = forms if later else found.may_be  # others may have been decided on in between
        found.dates = {form: Guess.of(form, texts, parse_dates(texts, form)) for form in forms}
        found.slashes = bool(found.dates) and not self.slashes and is_ambiguous(texts)

    @property
    def _is_looked_at(self) -> bool:
        """What nobody looks at may hold anything."""
        return self.wanted != "ignored" and self.is_readable

    def _date_forms(self) -> tuple[DateForm, ...]:
        forms: tuple[DateForm, ...] = (*GUESSED, "compact") if self.wanted == "date" else GUESSED
        return _SAID.get(self.wanted or "", forms)

    def fold(self, found: "Glimpse") -> None:
        """Add what the rows that come next say."""
        new = [text for text in found.examples if text not in self.examples]
        self.examples += new[: _EXAMPLES - len(self.examples)]
        if self._is_looked_at and self.is_text:
            self._fold_text(found)
        elif self._is_looked_at:
            self.typed.add(found.typed)
            self._count(found)
            named = self.is_target or self.wanted == "category"
            if len(self.distinct) <= (MOST_CLASSES if named else MOST_CATEGORIES) and (named or self.typed.integral):
                self.distinct.update(found.distinct)
        self.count += found.count
        self.missing += found.missing

    def _count(self, found: "Glimpse") -> None:
        """Whether they go on as 0, 1, 2, ... or 1, 2, 3, ..."""
        if self.start is not None and found.count:
            first = found.run if found.run is not None else math.nan
            goes_on = first == self.start + self.count if self.count else first in (0, 1)
            self.start = first - self.count if goes_on else None

    def _fold_text(self, found: "Glimpse") -> None:
        if len(self.distinct) <= MOST_CATEGORIES:
            self.distinct.update(found.distinct)
        self.readable += found.readable
        self.codes = self.codes or found.codes
        self.unit = self.unit or found.unit
        self.differs = self.differs or (len(self.numbers) == 2 and found.differs)
        if "point" in self.numbers:
            self._count(found)
        else:
            self.start = None
        for form, number in self.numbers.items():
            number.add(found.numbers[form])
        self.numbers = {form: guess for form, guess in self.numbers.items() if may_hold(guess, self.readable)}
        if self.dates is None and self.readable:
            self.dates = {form: Guess(form) for form in found.may_be}
        for date_form, date in (self.dates or {}).items():
            date.add(found.dates.get(date_form, Guess(date_form)))  # none if there was no text
        if self.dates:
            self.dates = {form: guess for form, guess in self.dates.items() if may_hold(guess, self.readable)}
            self.slashes = self.slashes or found.slashes

    # At the end

    def evidence(self) -> NumberForm | None:
        """The decimal mark that this column shows beyond doubt."""
        if self.codes or not self.numbers:
            return None
        fitting = {form: guess.fitting for form, guess in self.numbers.items()}
        form = max(fitting, key=lambda form: fitting[form])
        clear = all(fitting[form] > fitting[other] for other in fitting if other != form)
        return form if clear and self.numbers[form].holds(self.readable) else None

    def number(self, decimal: NumberForm | None) -> Guess | None:
        """How it is read as numbers, if it can be."""
        asked = self.wanted == "number"
        if self.codes and not asked:
            return None
        holding = {form: guess for form, guess in self.numbers.items() if guess.fitting and asked}
        holding = holding or {form: g for form, g in self.numbers.items() if g.holds(self.readable)}
        best = max((guess.fitting for guess in holding.values()), default=0)
        holding = {form: guess for form, guess in holding.items() if guess.fitting == best}
        return holding.get(decimal or "point") or next(iter(holding.values()), None)

    def date(self) -> Guess | None:
        """How it is read as dates, if it can be."""
        asked = (self.wanted or "").startswith("date")
        holding = [g for g in (self.dates or {}).values() if g.holds(self.readable) or (asked and g.fitting)]
        best = max((guess.fitting for guess in holding), default=0)
        forms = {guess.form: guess for guess in holding if guess.fitting == best}
        if self.slashes and "mdy" in forms and "dmy" in forms:
            return forms["mdy"]
        return next(iter(forms.values()), None)

    def read(self, decimal: NumberForm | None, *, ids: bool = True) -> "Read":
        """What it is, decided; whole numbers that look like identifiers are set aside if `ids` says so."""
        self._ids = ids and self.wanted is None and not self.is_target
        if not self.is_readable:
            return Read("ignored", why=f"{_short_type(self.type)}: set aside")
        if self.count == self.missing:
            return Read("constant", why="no values")
        if self.wanted == "ignored":
            return Read("ignored", why="set aside as asked")
        if self.is_text:
            return self._read_text(decimal)
        if self.wanted == "category":
            return Read("category", why="taken as categories as asked")
        kind: Kind = "date" if self.is_date else "number"
        infinite = 0 if self.is_target else self.count - self.missing - self.typed.count
        if self.count == self.missing + infinite:
            return Read("constant", strays=infinite, why="no values")
        if one := self._one_value(self.typed, infinite):
            return one
        if kind == "number" and self._ids and (why := self._is_id(self.typed)):
            return Read("ignored", self.typed, why=why)
        return Read(kind, self.typed, strays=infinite, why=f"{infinite:,} infinite, taken as missing" * bool(infinite))

    def _one_value(self, moments: Moments, strays: int) -> "Read | None":
        """If all numbers are one; large ones may be so as floats alone."""
        if moments.low == moments.high and abs(moments.low) >= _TOLD_APART and len(self.distinct) > 1:
            return Read("ignored", moments, why="too large to be told apart as numbers: set aside")
        if moments.low == moments.high and not self.missing and not strays:
            return Read("constant", moments, why="one value")
        return None

    def _read_text(self, decimal: NumberForm | None) -> "Read":
        number, date = self.number(decimal), self.date()
        if self.wanted == "number" and number is None:
            raise ValueError(f"column {self.name!r} must hold numbers, got text such as {self._example()!r}")
        if (self.wanted or "").startswith("date") and date is None:
            raise ValueError(f"column {self.name!r} must hold dates, got text such as {self._example()!r}")
        if self.wanted == "category":
            return Read("category", why="taken as categories as asked")
        if number is not None and not (self.wanted or "").startswith("date"):
            shown = self.differs or self.evidence() == "comma"
            why = [f"decimal {number.form}"] if shown and (number.form == "comma" or self.evidence() is None) else []
            return self._guessed("number", number, [*why, *([self.unit] if self.unit else [])])
        if date is not None:
            why = {"dmy": ["day first"], "mdy": ["month first"]}.get(date.form, [])
            both = [g for g in (self.dates or {}).values() if g.form in ("dmy", "mdy") and g.fitting == date.fitting]
            if len(both) == 2 and self.slashes and self.wanted is None:
                why = [f"month first by default: {option('kinds', self.name, 'date-dmy')} otherwise"]
            return self._guessed("date", date, why)
        known = len(self.distinct)
        if known == 1 and not self.missing:
            return Read("constant", why="one value")
        nearly_all = known > MOST_CATEGORIES or (known > _FEW_TEXTS and known > self.readable / 2)
        what, mixed = self._mixed()
        if self.is_target or not (nearly_all or (known == self.readable and known >= 8)):
            advice = f", taken as categories: {option('kinds', self.name, what)} takes the others as missing"
            return Read("category", why=f"{mixed}{advice}" if mixed and not self.is_target else "")
        words = np.mean([text.count(" ") + 1 for text in list(self.distinct)[:1000]])
        why_aside = "free text" if words >= 2.5 else "nearly every value differs" if known > self.readable / 2 else ""
        return Read(
            "ignored", why=f"{mixed or why_aside or f'more than {MOST_CATEGORIES:,} different texts'}: set aside"
        )

    def _mixed(self) -> tuple[Kind, str]:
        """Numbers or dates with too much else among them: which, and how many, for people; "" if they are none such."""
        dates = [g for g in (self.dates or {}).values() if self.readable / 2 < g.fitting < self.readable]
        quantity = self.mixed_quantity()
        guess = quantity or max(dates, key=lambda date: date.fitting, default=None)
        kind: Kind = "date" if quantity is None else "number"
        if guess is None or self.wanted is not None:
            return kind, ""
        others, such = counted(self.readable - guess.fitting, "other"), (guess.stray or "")[:24]
        return kind, f"{counted(guess.fitting, kind)} and {others} such as {such!r}"

    def _guessed(self, kind: Kind, guess: Guess, why: list[str]) -> "Read":
        strays = self.readable - guess.fitting
        if strays > 0:
            such = guess.stray or ""
            why = [*why, f"{strays:,} that {'is' if strays == 1 else 'are'} none, such as {such!r}, taken as missing"]
        moments = guess.moments
        if one := self._one_value(moments, strays):
            return one
        if kind == "number" and self._ids and (told := self._is_id(moments)):
            return Read("ignored", moments, why=told)
        return Read(kind, moments, guess.form, max(strays, 0), ", ".join(why))

    def _is_id(self, moments: Moments) -> str | None:
        """Why whole numbers are taken for mere identifiers; None if they may mean something."""
        if self.start is not None and self.count >= _ROW_NUMBERS:
            return "row numbers: set aside"
        many = len(self.distinct) > _FEW_CLASSES or len(self.distinct) > max(self.count / 2, _FEW_TEXTS)
        if moments.integral and many and _ID.search(self.name):
            return "an identifier: set aside"
        return None

    def _example(self) -> str:
        return self.examples[0] if self.examples else ""

    def task(self, read: "Read") -> Task:
        """What kind of prediction it is the target of."""
        if self.wanted == "category" or read.moments is None or self.is_boolean or not read.moments.count:
            return "classification"
        if self.wanted == "date":
            return "regression"
        few = read.moments.integral and len(self.distinct) <= _FEW_CLASSES and self.unit is None
        few = few and not (len(self.distinct) > _FEW_TEXTS and len(self.distinct) > self.count / 2)
        return "classification" if few else "regression"

    def mixed_quantity(self) -> Guess | None:
        """Numbers that would be a quantity if there were not too much else among them; None if there are none such."""
        if not self.is_text or self.codes or self.wanted is not None or not self.numbers:
            return None
        guess = max(self.numbers.values(), key=lambda guess: guess.fitting)
        if not self.readable / 2 < guess.fitting < self.readable or guess.holds(self.readable):
            return None
        return guess if self.task(Read("number", guess.moments)) == "regression" else None

    def column(self, read: "Read") -> Column:
        """How it is encoded."""
        if read.kind in ("number", "date"):
            m, missing = read.moments, self.missing > 0 or read.strays > 0
            assert m is not None
            scale = m.deviation or 1.0
            strays, whole = read.strays > 0, m.integral if read.kind == "number" else None
            return Column(self.name, read.kind, m.mean, scale, m.low, m.high, missing, read.form, strays, whole=whole)
        if read.kind == "category":
            values = sorted(name for name, _ in self.distinct.most_common(MOST_ENCODED))
            return Column(self.name, "category", values=values)
        return Column(self.name, read.kind)

    def described(self, read: "Read", features: int, note: str = "") -> Described:
        """For people."""
        distinct = len(self.distinct) if len(self.distinct) <= MOST_CATEGORIES and self.distinct else None
        missing = self.missing + read.strays
        kind = {"constant": "nothing"}.get(read.kind, read.kind)
        return Described(
            self.name,
            "target" if self.is_target else kind,
            self.count - missing,
            missing,
            None if read.kind == "number" and not read.moments_are_whole else distinct,
            self.examples,
            features,
            note or read.why,
        )


@dataclass
class Glimpse:
    """What some rows of a column say by themselves.

    Attributes:
        count: how many there are.
        missing: how many hold nothing.
        examples: the first few different ones.
        typed: of numbers and dates that are no text.
        run: where they begin, if each is one more than the one before.
        distinct: how often each text or class comes.
        readable: texts that are no word for a missing value.
        codes: whether some are digits that are no quantity.
        unit: what stands beside the digits.
        differs: whether some are other numbers with another decimal mark.
        numbers: what they would be as numbers, by decimal mark.
        may_be: the forms of dates that the first of them look like.
        dates: what they would be as dates, by form.
        slashes: whether it may be that the month comes first.
    """

    count: int
    missing: int = 0
    examples: list[str] = field(default_factory=list)
    typed: Moments = field(default_factory=Moments)
    run: float | None = None
    distinct: Counter[str] = field(default_factory=Counter)
    readable: int = 0
    codes: bool = False
    unit: str | None = None
    differs: bool = False
    numbers: dict[NumberForm, Guess] = field(default_factory=dict)
    may_be: list[DateForm] = field(default_factory=list)
    dates: dict[DateForm, Guess] = field(default_factory=dict)
    slashes: bool = False


def _examples(values: pa.ChunkedArray) -> list[str]:
    """The first few different ones, some more than are shown, as others may have come before."""
    found: list[str] = []
    for value in values.slice(0, 100):
        text = ""
        if value.is_valid:
            with contextlib.suppress(OverflowError, ValueError):  # times that Python has no place for
                text = str(value.as_py())
        text = text if len(text) <= 24 else text[:21] + "..."
        if text and text not in found:
            found.append(text)
        if len(found) == 2 * _EXAMPLES:
            break
    return found


def _run(numbers: NDArray[np.float64]) -> float | None:
    """The first of them, if each is one more than the one before."""
    return float(numbers[0]) if len(numbers) and (numbers == numbers[0] + np.arange(len(numbers))).all() else None


@dataclass
class Read:
    """What a column was read as."""

    kind: Kind
    moments: Moments | None = None
    form: str = ""
    strays: int = 0
    why: str = ""

    @property
    def moments_are_whole(self) -> bool:
        return self.moments is not None and self.moments.integral


def _short_type(kind: pa.DataType) -> str:
    return "lists or objects" if pa.types.is_nested(kind) else str(kind)
