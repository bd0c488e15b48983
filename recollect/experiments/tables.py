"""Which runs count, and tables of them beside the paper's numbers, as pure functions of results."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, NamedTuple

from recollect.experiments.experiment import DEFAULT_STREAMS
from recollect.experiments.targets import DATASETS, SIZES, TABLE_MEMORIES, PaperResult, paper_results

Results = list[dict[str, Any]]
Key = tuple[str, str, str, int]  # learner, data set, memory, size

NAMES = {
    "recollect": "recollect (this library's settings)",
    "clustering": "Clustering (k-means per class)",
    "gmc": "GMC",
    "gmc-last-layer": "GMC, last layer",
    "gmc-local": "GMC, local",
    "reservoir": "Reservoir",
    "class-balanced": "Class-balanced",
    "sliding-window": "Sliding window",
    "gss": "GSS",
    "covertype": "Covertype",
    "ldpa": "LDPA",
    "walking-activity": "Walking Activity",
    "mnist": "MNIST, rotated",
    "fashion-mnist": "Fashion-MNIST, by classes",
    "cifar-10": "CIFAR-10, by classes",
    "gdumb": "GDumb",
    "er": "Experience replay",
}
"""How to call things for people."""


class Cell(NamedTuple):
    """Accuracy over seeds, in percent."""

    mean: float
    deviation: float
    seeds: int

    def less(self, other: "Cell") -> "Cell":
        """The difference of the means, with the root of the summed variances."""
        spread = (self.deviation**2 + other.deviation**2) ** 0.5
        return Cell(self.mean - other.mean, spread, min(self.seeds, other.seeds))

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.deviation:.2f} ({self.seeds})" if self.seeds > 1 else f"{self.mean:.2f} (1)"


@dataclass(frozen=True)
class Table:
    """Text in rows and columns, and how to write it down.

    Example:
        >>> print(Table("T", ("a", "b"), (("x", "1"),)).markdown())
        | a | b |
        |---|---|
        | x | 1 |
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """For a page."""
        lines = [self.header, *self.rows]
        written = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
        return "\n".join([written[0], "|" + "---|" * len(self.header), *written[1:]])


def departures(result: dict[str, Any]) -> dict[str, Any]:
    """What a run did otherwise than the paper: other epochs, fewer rows, another stream, options of the memory.

    A run counts as one of the paper's experiments if there is nothing of the kind. Whether it was also tested along the
    way makes no difference: it ends with the same model.

    Example:
        >>> departures({"dataset": "mnist", "stream": "rotated", "epochs": 3, "rows": None, "options": {"dim": 50}})
        {'epochs': 3, 'dim': 50}
    """
    plain = {"epochs": 200, "rows": None, "stream": DEFAULT_STREAMS.get(result["dataset"])}
    return {**{name: result[name] for name, value in plain.items() if result[name] != value}, **result["options"]}


def counting(results: Results) -> Results:
    """The runs that count in tables and figures: those as in the paper."""
    return [result for result in results if not departures(result)]


def varying(results: Results) -> Results:
    """Runs as in the paper but for options of the memory."""
    return [result for result in results if result["options"] and departures(result) == result["options"]]


def summarise(results: Results) -> dict[Key, Cell]:
    """Mean and deviation over seeds of the runs that count."""
    groups: dict[Key, dict[int, float]] = {}
    for r in counting(results):
        groups.setdefault((r["learner"], r["dataset"], r["memory"], r["size"]), {})[r["seed"]] = r["final_accuracy"]
    return {key: cell(by_seed.values()) for key, by_seed in groups.items()}


def cell(values: Iterable[float]) -> Cell:
    """Mean and deviation of some accuracies."""
    numbers = list(values)
    return Cell(mean(numbers), stdev(numbers) if len(numbers) > 1 else 0.0, len(numbers))


def accuracy_table(results: Results, learner: str, dataset: str) -> Table:
    """One block of the paper's Tables 1 and 2: ours, then the paper's in brackets; what was not run is left empty."""
    ours, paper = summarise(results), paper_results()
    rows = []
    for memory in TABLE_MEMORIES:
        cells = []
        for size in SIZES:
            key = (learner, dataset, memory, size)
            cells.append(" ".join([str(ours.get(key, "")), _bracketed(paper.get(key))]).strip())
        rows.append((NAMES[memory], *cells))
    header = ("", *(str(size) for size in SIZES))
    return Table(f"{NAMES[learner]}, {NAMES[dataset]}", header, tuple(rows))


def difference_table(results: Results, learner: str, memory: str = "gmc", against: str = "reservoir") -> Table:
    """How much better one memory is than another, ours and the paper's, with a verdict on the paper's claim."""
    ours, paper = summarise(results), paper_results()
    rows = []
    for dataset in DATASETS:
        for size in SIZES:
            a, b = ours.get((learner, dataset, memory, size)), ours.get((learner, dataset, against, size))
            if a is None or b is None:
                continue
            gain, spread, seeds = a.less(b)
            theirs = _paper_gain(paper, learner, dataset, memory, against, size)
            told = f"{gain:+.2f} ± {spread:.2f}"
            verdict = "better" if gain > spread else "worse" if gain < -spread else "within the deviation"
            if max(a.seeds, b.seeds) == 1:
                told, verdict = f"{gain:+.2f}", "deviation unknown"
            rows.append((NAMES[dataset], str(size), told, theirs, verdict, str(seeds)))
    header = ("", "size", "ours", "the paper's", "", "seeds")
    return Table(f"{NAMES[learner]}: {NAMES[memory]} less {NAMES[against]}", header, tuple(rows))


def _paper_gain(paper: dict[Key, PaperResult], learner: str, dataset: str, memory: str, against: str, size: int) -> str:
    a, b = paper.get((learner, dataset, memory, size)), paper.get((learner, dataset, against, size))
    if a is None or b is None:
        return ""
    return f"{a.accuracy - b.accuracy:+.2f} ± {(a.deviation**2 + b.deviation**2) ** 0.5:.2f}"


def _bracketed(result: PaperResult | None) -> str:
    return "" if result is None else f"[{result.accuracy:.2f} ± {result.deviation:.2f}]"
