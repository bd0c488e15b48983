"""An account of what was read: for each column what it is, how many values it has, and what is made of it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from recollect.tables.kinds import Task
from recollect.tables.wording import option
from recollect.terminal import cell, counted


@dataclass(frozen=True)
class Described:
    """One column of an `Account`.

    Attributes:
        name: its name.
        kind: number, date, category, target or ignored; empty if it has at most one value.
        values: how many rows have a value.
        missing: how many do not.
        distinct: how many different values there are, if that is known.
        examples: the first few values.
        features: how many numbers it becomes.
        note: what is unusual about it.
    """

    name: str
    kind: str
    values: int
    missing: int
    distinct: int | None
    examples: list[str]
    features: int
    note: str


@dataclass(frozen=True)
class Account:
    """What `columns` returns: how files and their columns were read. `account["name"]` is one column.

    Attributes:
        files: how each file was read, by its name, in the order in which they came.
        rows: how many there are.
        task: classification or regression.
        columns: in the order of the table.
    """

    files: dict[str, str]
    rows: int
    task: Task
    columns: list[Described]

    @property
    def features(self) -> int:
        return sum(column.features for column in self.columns)

    @property
    def aside(self) -> list[Described]:
        """The columns that are kept but not used for choosing."""
        return [column for column in self.columns if column.kind == "ignored"]

    def __getitem__(self, name: str) -> Described:
        return next(column for column in self.columns if column.name == name)

    def as_data(self) -> dict[str, Any]:
        return {**asdict(self), "features": self.features}

    def notes(self) -> Iterator[str]:
        """What is unusual about the files, in a line each."""
        for how, names in _grouped(self.files).items():
            if how not in PLAIN:
                yield f"{_listed(names)}: read as {how}"
        notes = {c.name: c.note for c in self.columns if c.kind in ("number", "date", "category") and c.note}
        notes = {name: note for name, note in notes.items() if not note.endswith("as asked")}
        notes |= {c.name: c.note for c in self.columns if c.kind == "target" and "," in c.note}
        for note, names in _grouped(notes).items():
            yield f"{_listed(names)}: {note}"
        looked_at = [c for c in self.columns if c.kind in ("number", "date", "category")]
        if missing := [f"{c.name} {c.missing:,}" for c in looked_at if c.missing]:
            yield f"missing values: {_listed(missing)}"
        if aside := [f"{c.name} ({c.note.removesuffix(': set aside')})" for c in self.aside]:
            yield f"not looked at: {_listed(aside)}; {option('kinds', 'NAME')} takes a column in"

    def table(self) -> Table:
        """For a terminal."""
        about = [counted(self.features, "feature"), self.task]
        title = ", ".join([counted(self.rows, "row"), *about] if self.rows else about)
        table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
        for name, side in _HEADINGS.items():
            folds = name in ("column", "such as, and what to know")
            table.add_column(name, justify=side, overflow="fold", no_wrap=not folds)  # type: ignore[arg-type]
        for column in self.columns:
            counts = [column.values, column.missing, column.distinct, column.features]
            examples = [", ".join(column.examples[:2]), column.note]
            numbers = [f"{count:,}" if count else "" for count in counts]
            told = "\n".join(cell(text) for text in examples if text)
            table.add_row(cell(column.name), column.kind, *numbers, told)
        return table


def _grouped(notes: dict[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, note in notes.items():
        groups.setdefault(note, []).append(name)
    return groups


def _listed(names: list[str], most: int = 6) -> str:
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"


PLAIN = ("csv with commas", "parquet", "arrow", "ndjson", "npz", "json", "csv with tabs")
"""Ways of reading that surprise nobody."""

_HEADINGS = {
    "column": "left",
    "read as": "left",
    "values": "right",
    "missing": "right",
    "different": "right",
    "features": "right",
    "such as, and what to know": "left",
}
