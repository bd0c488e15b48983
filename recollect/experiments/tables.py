"""Which runs count, and tables of them beside the paper's numbers, as pure functions of results."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import hypot
from statistics import mean, stdev
from typing import Any, NamedTuple

from recollect.experiments.experiment import DEFAULT_STREAMS
from recollect.experiments.targets import DATASETS, SHOWN_MEMORIES, SIZES, PaperResult, paper_result, paper_results

Runs = list[dict[str, Any]]
"""Results of runs, as `results.Results` reads them."""
Key = tuple[str, str, str, int]  # learner, data set, memory, size

EPOCHS = 200
"""Of the paper's trainings."""

NAMES = {
    "recollect": "recollect (this library's settings)",
    "recollect-all-layers": "recollect, all layers",
    "recollect-0.1": "recollect, its first settings",
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
    "er-drawn": "Experience replay, drawn by weight",
}
"""How to call things for people."""


def counted_epochs(number: int) -> str:
    """So many epochs, in words."""
    return f"{number} epoch{'s' * (number != 1)}"


def with_epochs(name: str, number: int) -> str:
    """A name, with the number of epochs behind it where that is not the paper's."""
    return name if number == EPOCHS else f"{name}, {counted_epochs(number)}"


class Cell(NamedTuple):
    """Accuracy over seeds, in percent, and with how many epochs it was reached."""

    mean: float
    deviation: float
    seeds: int
    epochs: int = EPOCHS

    def less(self, other: "Cell") -> "Cell":
        """The difference of the means, with the root of the summed variances.

        A single seed has no variance of its own and is lent that of the other: it would seem certain otherwise.

        Example:
            >>> Cell(71.0, 0.0, 1).less(Cell(70.0, 3.0, 5)).deviation
            4.242640687119285
        """
        deviations = [(a if a.seeds > 1 else b).deviation for a, b in ((self, other), (other, self))]
        return Cell(self.mean - other.mean, hypot(*deviations), min(self.seeds, other.seeds), self.epochs)

    @property
    def runs(self) -> str:
        """How many seeds, and how many epochs if that is not the paper's number."""
        return f"{self.seeds}" if self.epochs == EPOCHS else f"{self.seeds}; {counted_epochs(self.epochs)}"

    def __str__(self) -> str:
        spread = f" ± {self.deviation:.2f}" if self.seeds > 1 else ""
        return f"{self.mean:.2f}{spread} ({self.seeds})"


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
    plain = {"epochs": EPOCHS, "rows": None, "stream": DEFAULT_STREAMS.get(result["dataset"])}
    return {**{name: result[name] for name, value in plain.items() if result[name] != value}, **result["options"]}


def counting(results: Runs) -> Runs:
    """The runs that count in tables and figures: those as in the paper."""
    return [result for result in results if not departures(result)]


def varying(results: Runs) -> Runs:
    """Runs as in the paper but for options of the memory, and perhaps fewer rows, which whoever shows them must say."""
    return [r for r in results if r["options"] and departures({**r, "rows": None}) == r["options"]]


def shortened(results: Runs) -> Runs:
    """Runs as in the paper but for fewer epochs."""
    return [r for r in results if departures(r) == {"epochs": r["epochs"]} and r["epochs"] < EPOCHS]


def by_epochs(results: Runs) -> dict[Key, dict[int, Cell]]:
    """Mean and deviation over seeds of the runs that count and of shortened ones, never mixed."""
    groups: dict[Key, dict[int, dict[int, float]]] = {}
    for r in [*counting(results), *shortened(results)]:
        of_cell = groups.setdefault((r["learner"], r["dataset"], r["memory"], r["size"]), {})
        of_cell.setdefault(r["epochs"], {})[r["seed"]] = r["final_accuracy"]
    return {key: {e: cell(v.values(), e) for e, v in sorted(of_cell.items())} for key, of_cell in groups.items()}


def summarise(results: Runs) -> dict[Key, Cell]:
    """Mean and deviation over seeds of the runs that count."""
    return {key: cells[EPOCHS] for key, cells in by_epochs(results).items() if EPOCHS in cells}


class Coverage(NamedTuple):
    """How many cells of the paper's tables were run as in the paper, or with fewer epochs only, of how many."""

    full: int
    shortened: int
    total: int

    def __str__(self) -> str:
        told = f"{self.full + self.shortened} of {self.total} cells"
        return f"{told}, {self.shortened} of them with fewer epochs" if self.shortened else told


def coverage(results: Runs) -> Coverage:
    """How much of the paper's tables was run.

    Example:
        >>> print(coverage([]))
        0 of 395 cells
    """
    ours, paper = by_epochs(results), paper_results()
    full = sum(EPOCHS in ours.get(key, {}) for key in paper)
    return Coverage(full, sum(key in ours for key in paper) - full, len(paper))


def cell(values: Iterable[float], epochs: int = EPOCHS) -> Cell:
    """Mean and deviation of some accuracies."""
    numbers = list(values)
    return Cell(mean(numbers), stdev(numbers) if len(numbers) > 1 else 0.0, len(numbers), epochs)


def epochs_run(results: Runs, learner: str, dataset: str) -> list[int]:
    """With how many epochs cells of a block were run, those first that most cells have.

    Cells of different epochs have no place side by side: whoever shows a block shows one number at a time.

    Example:
        >>> epochs_run([], "gdumb", "covertype")
        [200]
    """
    cells = [by_number for key, by_number in by_epochs(results).items() if key[:2] == (learner, dataset)]
    counts = Counter(epochs for by_number in cells for epochs in by_number)
    return sorted(counts, key=lambda epochs: (-counts[epochs], -epochs)) or [EPOCHS]


def accuracy_table(results: Runs, learner: str, dataset: str, epochs: int | None = None) -> Table:
    """One block of the paper's Tables 1 and 2: ours, then the paper's in brackets; what was not run is left empty.

    Args:
        results: all runs.
        learner: one of `LEARNERS_SHOWN`.
        dataset: of the block.
        epochs: show cells of so many alone, and only memories of which there are any. By default, of the number that
            most cells have; then all memories of the paper have a row.
    """
    ours = by_epochs(results)
    number = epochs_run(results, learner, dataset)[0] if epochs is None else epochs
    rows = []
    for memory in SHOWN_MEMORIES:
        keys = [(learner, dataset, memory, size) for size in SIZES]
        found = [ours.get(key, {}).get(number) for key in keys]
        told = [f"{cell or ''} {_bracketed(paper_result(*key))}".strip() for cell, key in zip(found, keys, strict=True)]
        if any(found) or (epochs is None and any(told)):
            rows.append((NAMES[memory], *told))
    title = with_epochs(f"{NAMES[learner]}, {NAMES[dataset]}", number)
    return Table(title, ("", *(str(size) for size in SIZES)), tuple(rows))


class Gain(NamedTuple):
    """By how much one memory is better than another, and whether that is more than the deviation."""

    difference: Cell
    verdict: str  # one of VERDICTS

    def __str__(self) -> str:
        mean, deviation = self.difference.mean, self.difference.deviation
        spread = "" if self.verdict == "unknown" else f" ± {deviation:.2f}"
        return f"{self.verdict}, {mean:+.2f}{spread} ({self.difference.runs})"


VERDICTS = ("better", "within", "worse", "unknown")
"""Beyond the deviation in either direction or not; unknown where both have a single seed."""


def gains(results: Runs, learner: str, memory: str, against: str = "reservoir") -> dict[tuple[str, int], Gain]:
    """How much better one memory is than another, by data set and size.

    Only runs of as many epochs are compared: of the numbers that both were run with, the largest at which one of them
    has several seeds, as a verdict needs a deviation; if there is none, the largest.
    """
    ours, found = by_epochs(results), {}
    for dataset in DATASETS:
        for size in SIZES:
            a, b = (ours.get((learner, dataset, name, size), {}) for name in (memory, against))
            if both := a.keys() & b.keys():
                epochs = max(both, key=lambda e: (max(a[e].seeds, b[e].seeds) > 1, e))
                one, other = a[epochs], b[epochs]
                gain = one.less(other)
                verdict = "within"
                if max(one.seeds, other.seeds) == 1:
                    verdict = "unknown"
                elif abs(gain.mean) > gain.deviation:
                    verdict = "better" if gain.mean > 0 else "worse"
                found[dataset, size] = Gain(gain, verdict)
    return found


def difference_table(results: Runs, learner: str, memory: str = "gmc", against: str = "reservoir") -> Table:
    """How much better one memory is than another, ours with a verdict on the paper's claim, then the paper's."""
    found, rows = gains(results, learner, memory, against), []
    for dataset in (name for name in DATASETS if any(key[0] == name for key in found)):
        cells = []
        for size in SIZES:
            ours = str(found[dataset, size]) if (dataset, size) in found else ""
            cells.append(f"{ours} {_paper_gain(learner, dataset, memory, against, size)}".strip() if ours else "")
        rows.append((NAMES[dataset], *cells))
    header = ("", *(str(size) for size in SIZES))
    return Table(f"{NAMES[learner]}: {NAMES[memory]} less {NAMES[against]}", header, tuple(rows))


def mixing_table(results: Runs) -> Table:
    """By how much experience replay is better where examples are drawn as often as they weigh, in as many epochs."""
    ours, gained = by_epochs(results), {}
    for learner, dataset, memory, size in ours:
        drawn, once = (ours.get((way, dataset, memory, size), {}) for way in ("er-drawn", "er"))
        for epochs in drawn.keys() & once.keys() if learner == "er" else ():
            gained[dataset, epochs, size, memory] = drawn[epochs].less(once[epochs])
    memories = [name for name in SHOWN_MEMORIES if any(key[-1] == name for key in gained)]
    rows = []
    for dataset, epochs, size in sorted(
        {key[:3] for key in gained}, key=lambda key: (DATASETS.index(key[0]), *key[1:])
    ):
        found = [gained.get((dataset, epochs, size, memory)) for memory in memories]
        told = ["" if gain is None else f"{round(gain.mean, 1) + 0:+.1f} ({gain.seeds})" for gain in found]
        rows.append((with_epochs(NAMES[dataset], epochs), str(size), *told))
    header = ("", "kept", *(NAMES[memory] for memory in memories))
    return Table("What drawing by weight gains over weights in the loss", header, tuple(rows))


def _paper_gain(learner: str, dataset: str, memory: str, against: str, size: int) -> str:
    a, b = (paper_result(learner, dataset, name, size) for name in (memory, against))
    if a is None or b is None:
        return ""
    return f"[{a.accuracy - b.accuracy:+.2f} ± {hypot(a.deviation, b.deviation):.2f}]"


def _bracketed(result: PaperResult | None) -> str:
    return "" if result is None else f"[{result.accuracy:.2f} ± {result.deviation:.2f}]"
