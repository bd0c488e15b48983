"""A column of a table, and how it becomes features: plain data that is decided once and kept."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["number", "date", "category", "constant", "ignored"]
Task: TypeAlias = Literal["classification", "regression"]

MOST_CATEGORIES = 1000
MOST_ENCODED = 100  # the most frequent ones get a feature each
MOST_CLASSES = 1000


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
    form: str = ""  # of numbers and dates that are text
    strays: bool = False  # whether some values are neither, and count as missing
    values: list[str] = field(default_factory=list)
    whole: bool | None = field(default=None, metadata={"later": True})  # of numbers: whether all were whole

    @property
    def width(self) -> int:
        """How many features it becomes."""
        match self.kind:
            case "number" | "date":
                return 1 + self.missing
            case "category":
                return len(self.values) + 1
        return 0
