"""Looking at all rows once, to describe the columns and to decide how they are encoded."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from recollect.tables.account import Account
from recollect.tables.encoding import Encoding, missing_target
from recollect.tables.kinds import MOST_CLASSES, Column, Task
from recollect.tables.summaries import KINDS, Read, Summary
from recollect.tables.values import NumberForm, look_alikes
from recollect.tables.wording import option
from recollect.terminal import counted

_NAMES = 20  # listed at most, in a sentence


def fit_encoding(
    pieces: Iterable[pa.Table],
    target: str,
    *,
    task: Task | None = None,
    ignore: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    decimal: str | None = None,
    drop_missing_target: bool = False,
) -> Encoding:
    """Look at all rows once and decide how to encode them."""
    kinds = {**dict.fromkeys(ignore, "ignored"), **(kinds or {})}
    found = examine(pieces, target, task=task, kinds=kinds, decimal=decimal)
    return found.encoding(drop_missing_target=drop_missing_target)


@dataclass
class Examined:
    """What looking at all rows came to.

    Attributes:
        summaries: what was gathered, by column.
        reads: what each column is.
        target: the column to be predicted, if one was named.
        asked: the task that was asked for, if one was; `task` is that, or what the target suggests.
    """

    summaries: dict[str, Summary]
    reads: dict[str, Read]
    target: str | None
    asked: Task | None

    @property
    def rows(self) -> int:
        return next(iter(self.summaries.values())).count

    @property
    def task(self) -> Task:
        if self.asked is not None or self.target is None:
            return self.asked or "classification"
        return self.summaries[self.target].task(self.reads[self.target])

    def account(self, files: Mapping[str, str] | None = None) -> Account:
        """For people; `files` says how each was read."""
        described = []
        for name, summary in self.summaries.items():
            read = self.reads[name]
            features = 0 if name == self.target else summary.column(read).width
            note = "" if name != self.target else self._about_target(summary, read)
            described.append(summary.described(read, features, note))
        return Account(dict(files or {}), self.rows, self.task, described)

    def _about_target(self, summary: Summary, read: Read) -> str:
        if self.task == "regression":
            return ", ".join(["a quantity", *([read.why] if read.why else [])])
        known = [name for name in summary.distinct if name.strip()]
        alike = [f"{' and '.join(map(repr, group))} look alike, and are told apart" for group in look_alikes(known)[:3]]
        return ", ".join([counted(len(known), "class", "classes"), *alike])

    def encoding(self, *, drop_missing_target: bool = False) -> Encoding:
        """How the columns become features and targets; a target that cannot be learned is refused."""
        if self.target is None:
            raise ValueError(f"there must be a target, the column to be predicted, got none: pass {option('target')}")
        goal, read, task = self.summaries[self.target], self.reads[self.target], self.task
        columns = [s.column(self.reads[name]) for name, s in self.summaries.items() if name != self.target]
        self._check_columns(columns)
        self._check_target(goal, read)
        encoding = Encoding(self.target, task, columns, [])
        missing = goal.missing
        if task == "regression":
            if read.moments is None or not read.moments.count:
                raise ValueError(
                    f"the target {self.target!r} must hold numbers for regression: "
                    f"pass {option('task', 'classification')}"
                )
            encoding.mean, encoding.scale = read.moments.mean, read.moments.deviation or 1.0
            encoding.form, encoding.dated = read.form, read.kind == "date"
            encoding.whole = read.moments.integral
            missing = goal.count - (goal.readable if goal.is_text else goal.count - goal.missing) + read.strays
        else:
            encoding.classes = sorted((name for name in goal.distinct if name.strip()), key=_natural)
        if missing and not drop_missing_target:
            raise ValueError(missing_target(self.target, missing))
        return encoding

    def _check_columns(self, columns: list[Column]) -> None:
        if any(column.width for column in columns):
            return
        aside = [column.name for column in columns if column.kind == "ignored"]
        answer = f": pass {option('kinds', aside[0])} to take one in that was set aside" if aside else ""
        raise ValueError(f"there must be a column besides the target that varies, got none{answer}")

    def _check_target(self, goal: Summary, read: Read) -> None:
        name, such = goal.name, f", such as {goal.examples[0]!r}" if goal.examples else ""
        if goal.count == goal.missing:
            raise ValueError(f"the target {name!r} must hold values, got nothing but missing ones")
        if read.kind == "date" and goal.wanted is None:
            raise ValueError(
                f"the target {name!r} must be classes or a quantity, got dates{such}: choose another column, "
                f"or pass {option('kinds', name, 'category')} or {option('kinds', name, 'date')}"
            )
        if self.task == "regression":
            if read.kind == "ignored":
                raise ValueError(
                    f"the target {name!r} must hold numbers that can be told apart as floats, got larger ones{such}: "
                    f"choose another column, or pass {option('kinds', name, 'category')}"
                )
            return
        if self.asked is None and (quantity := goal.mixed_quantity()) is not None:
            others = goal.readable - quantity.fitting
            raise ValueError(
                f"the target {name!r} must be classes or a quantity, got {counted(quantity.fitting, 'number')} and "
                f"{counted(others, 'value')} such as {quantity.stray!r}: "
                f"pass {option('kinds', name, 'number')} to take these as missing, "
                f"or {option('kinds', name, 'category')}"
            )
        distinct = len(goal.distinct)
        if distinct > MOST_CLASSES:
            raise ValueError(
                f"the target {name!r} must have at most {MOST_CLASSES} classes, got more: "
                f"pass {option('task', 'regression')} if it is a quantity"
            )
        if distinct > 20 and distinct > goal.count / 2 and goal.wanted is None and goal.is_text:
            raise ValueError(
                f"the target {name!r} must be classes that come again, got {distinct} different ones in "
                f"{goal.count} rows{such}: choose another column, or pass {option('kinds', name, 'category')}"
            )


def examine(
    pieces: Iterable[pa.Table],
    target: str | None,
    *,
    task: Task | None = None,
    kinds: Mapping[str, str] | None = None,
    decimal: str | None = None,
) -> Examined:
    """Look at all rows once.

    Args:
        pieces: the rows.
        target: the column to be predicted; None to describe the columns alone.
        task: "classification" or "regression"; decided by the target's values if None.
        kinds: what columns are, one of `KINDS` by name, where somebody said so.
        decimal: "." or ","; decided by the values if None.
    """
    summaries: dict[str, Summary] | None = None
    for piece in pieces:
        if summaries is None:
            summaries = begin(piece, target, kinds or {})
        else:
            for name, summary in summaries.items():
                summary.add(piece.column(name))
    if summaries is None:
        raise ValueError("there must be at least one row, got none")
    return conclude(summaries, target, task=task, decimal=decimal)


def begin(piece: pa.Table, target: str | None, kinds: Mapping[str, str]) -> dict[str, Summary]:
    """What the first rows say about each column; whoever comes after them adds to it."""
    summaries = _summaries(piece.schema, target, kinds)
    for name, summary in summaries.items():
        summary.add(piece.column(name))
    return summaries


def conclude(
    summaries: dict[str, Summary], target: str | None, *, task: Task | None = None, decimal: str | None = None
) -> Examined:
    """What to make of what all rows say."""
    shown: set[NumberForm] = {form for s in summaries.values() if (form := s.evidence()) is not None}
    mark: NumberForm | None = None
    if decimal is not None:
        mark = "comma" if decimal == "," else "point"
    elif len(shown) == 1:
        [mark] = shown
    reads = {name: s.read(mark) for name, s in summaries.items()}
    if not any(s.column(reads[name]).width for name, s in summaries.items() if name != target):
        # Better than nothing: what looks like an identifier may be all there is.
        reads = {name: s.read(mark, ids=False) for name, s in summaries.items()}
    return Examined(summaries, reads, target, task)


def _summaries(schema: pa.Schema, target: str | None, kinds: Mapping[str, str]) -> dict[str, Summary]:
    for name in (*([] if target is None else [target]), *kinds):
        if name not in schema.names:
            what = (
                "target"
                if name == target
                else "ignored column"
                if kinds[name] == "ignored"
                else f"column of {option('kinds')}"
            )
            unnamed = all(_natural(other)[0] == 0 for other in schema.names)
            hint = ": the first line must hold the names of the columns" if unnamed else ""
            raise ValueError(f"the {what} must be one of {_listed(schema.names, name)}, got {name!r}{hint}")
    for name, kind in kinds.items():
        if kind not in KINDS:
            raise ValueError(f"a column can be taken as {', '.join(KINDS)}, got {kind!r} for {name!r}")
    if target is not None and kinds.get(target) == "ignored":
        raise ValueError(f"the target must not be ignored, got {target!r} as both")
    return {f.name: Summary(f.name, f.type, f.name == target, kinds.get(f.name)) for f in schema}


def _listed(names: list[str], wanted: str) -> str:
    """The names there are: the nearest ones, if there are many."""
    if len(names) <= _NAMES:
        return ", ".join(map(repr, names))
    near = difflib.get_close_matches(wanted, names, 5, 0.4) or names[:5]
    return f"the {len(names)} columns such as {', '.join(map(repr, near))}"


def _natural(name: str) -> tuple[int, float, str]:
    """Numbers by size, then other names."""
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name
