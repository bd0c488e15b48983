"""What a memory of table rows is asked to do."""

import re
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from recollect.candidates import SHORTLIST
from recollect.checks import check_count, check_seed
from recollect.classes import check_classes
from recollect.memories import ClassBalanced, Clustering, GradientMatching, Memory, Reservoir, SlidingWindow
from recollect.tables.kinds import MOST_CLASSES, Task
from recollect.tables.reading import Reading
from recollect.tables.summaries import KINDS
from recollect.tables.wording import option

TABLE_MEMORIES: dict[str, type[Memory]] = {
    "recollect": GradientMatching,
    "clustering": Clustering,
    "reservoir": Reservoir,
    "class-balanced": ClassBalanced,
    "sliding-window": SlidingWindow,
}
_INITS, _DIM, _HIDDEN = 10, 1000, 128  # the library's settings, and the last layer's inputs in the paper's network
_BASE_BYTES = 700_000_000  # the interpreter with its libraries, and what is being read
ROW_BYTES = 4096
"""For a row itself, with its features; wider rows are taken in fewer at a time."""

_LEAST_ROWS = 500
_COPIES = 12  # of a block's rows at most, while others than gradient matching choose


@dataclass(frozen=True)
class Settings:
    """The options of a store; they are fixed once it has taken in a file.

    Attributes:
        target: the column to be predicted.
        size: how many rows are kept at most.
        memory: "recollect" (gradient matching), "clustering", "reservoir", "class-balanced" or "sliding-window". "auto"
            is "recollect".
        task: "classification" or "regression"; decided by the target's values if None.
        ignore: columns that are kept but not looked at.
        classes: how many classes there may be; by default twice as many as in the first file, at least 16.
        model: where the user's own network comes from, as "module:function"; the paper's MLP if None.
        seed: the same seed and files give the same memory.
        memory_limit: in bytes; as many rows are taken in at a time as fit.
        kinds: what columns are, by name, if they are read wrongly: one of `KINDS`.
        weight_name: what the column of weights is called; "weight", or another name if there is one, by default.
        class_weight: None, or "balanced" to let all classes count the same.
        min_per_class: how many rows of each class are kept at least.
        reading: how files are read, if they are recognised wrongly.
    """

    target: str
    size: int
    memory: str = "auto"
    task: Task | None = None
    ignore: tuple[str, ...] = ()
    classes: int | None = None
    model: str | None = None
    seed: int = 0
    memory_limit: int = 4 * 10**9
    kinds: dict[str, str] = field(default_factory=dict)
    weight_name: str | None = None
    class_weight: Literal["balanced"] | None = None
    min_per_class: int = 0
    reading: Reading = field(default_factory=Reading)

    def __post_init__(self) -> None:
        matched = self.class_weight or self.min_per_class or self.model
        if self.memory == "auto":
            object.__setattr__(self, "memory", "recollect")
        check_name("target", self.target)
        for name in (*self.ignore, *self.kinds):
            check_name("columns", name)
        check_count("size", self.size)
        check_seed(self.seed)
        if self.memory not in TABLE_MEMORIES:
            raise ValueError(f"memory must be one of auto, {', '.join(TABLE_MEMORIES)}, got {self.memory!r}")
        if self.task not in (None, "classification", "regression"):
            raise ValueError(f"task must be classification or regression, got {self.task!r}")
        if self.classes is not None and self.classes < 2:
            raise ValueError(f"classes must be at least 2, got {self.classes}")
        for name, kind in self.kinds.items():
            if kind not in KINDS:
                raise ValueError(f"a column can be taken as {', '.join(KINDS)}, got {kind!r} for {name!r}")
        if self.class_weight not in (None, "balanced"):  # factors by class would be by its place, which nobody sees
            raise ValueError(f"class weights of a table must be 'balanced' or left out, got {self.class_weight!r}")
        check_classes(self.class_weight, self.min_per_class)
        if self.memory != "recollect" and matched:
            raise ValueError(
                "class weights, places by class and a network of one's own need gradient matching, "
                f"got the memory {self.memory!r}: pass {option('memory', 'recollect')}"
            )
        if self.weight_name == "":
            raise ValueError("the column of weights must have a name, got an empty one")
        self.block_rows(self.task, self.classes or 2)  # says so if the limit is too low, whatever the first file has

    def check_room(self) -> None:
        """Refuse room that would never be used; a store that was made with it is opened all the same."""
        if (self.classes or 0) > MOST_CLASSES:
            raise ValueError(
                f"classes must be at most {MOST_CLASSES}, got {self.classes}: "
                f"pass fewer, or leave out {option('classes')}"
            )

    def block_rows(self, task: Task | None, outputs: int) -> int:
        """How many rows are taken in at a time.

        All of them are summed up, which needs no place for each, but those that may be chosen are embedded: of classes
        as the two factors of a last layer, otherwise as so many numbers.

        Args:
            task: as the target's values are; if nobody knows yet, the one that needs less.
            outputs: of the network.
        """
        matches = self.memory == "recollect"
        factors = _HIDDEN + 1 + outputs
        plain = task == "regression" or self.model is not None or factors > _DIM
        numbers = _INITS * (_DIM if plain else factors)
        chosen = matches * (self.size * numbers * 28 + 40 * self.size**2)  # what choosing keeps of the chosen
        candidates = matches * SHORTLIST * self.size * numbers * 4.5
        rows = int((self.memory_limit - _BASE_BYTES - chosen - candidates) / ROW_BYTES)
        if rows < _LEAST_ROWS:
            least = (_BASE_BYTES + chosen + candidates + _LEAST_ROWS * ROW_BYTES) / 1e9
            how, others = (" by gradient matching", f", or {option('memory', 'clustering')}") if matches else ("", "")
            raise ValueError(
                f"keeping {self.size} rows{how} needs a memory limit of at least {least + 0.05:.1f}GB, "
                f"got {self.memory_limit / 1e9:.1f}GB: "
                f"pass a larger {option('memory_limit')} or a smaller {option('size')}{others}"
            )
        return rows if matches else max(rows // _COPIES, 10_000)

    def as_data(self) -> dict[str, Any]:
        return {**asdict(self), "ignore": list(self.ignore)}


def check_name(what: str, name: object) -> None:
    """Refuse numbers and the like: a column that is called 1 in a frame is called "1" here."""
    if not isinstance(name, str):
        raise ValueError(f"{what} must be named by text, got {name!r}: pass {str(name)!r}")


def memory_once(memory: str, *needs_gradients: object) -> str:
    """What chooses from a table once: of "auto" k-means, unless something is asked for that needs gradients."""
    return "clustering" if memory == "auto" and not any(needs_gradients) else memory


def parse_size(size: float | str) -> tuple[int, float | None]:
    """How many rows to keep, and the share of all that this is, if that was said; then their number is not yet known.

    Args:
        size: a whole number, or a fraction of all up to 1; as text, a percentage as well.

    Example:
        >>> parse_size(100), parse_size("1%"), parse_size(0.05)
        ((100, None), (1, 0.01), (1, 0.05))
    """
    number: object = size
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(?:(\d+)|(\d*\.?\d+)\s*(%?))\s*", size)
        if match is not None:
            number = int(match[1]) if match[1] else float(match[2]) / (100 if match[3] else 1)
    if isinstance(number, float) and 0 < number <= 1:
        return 1, number
    if isinstance(number, float | str):
        raise ValueError(f"size must be a whole number, or a part of all rows such as 1% or 0.01, got {size!r}")
    return check_count("size", number), None  # type: ignore[arg-type]


def parse_bytes(text: str) -> int:
    """A number of bytes as people write it.

    Example:
        >>> parse_bytes("1.5GB"), parse_bytes("512 MiB")
        (1500000000, 536870912)
    """
    match = re.fullmatch(r"\s*(\d+\.?\d*)\s*([kmgt]?)(i?)b?\s*", text.lower())
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"a memory limit must be written like 4GB or 500MiB, got {text!r}")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** ("kmgt".find(match[2]) + 1 if match[2] else 0))
