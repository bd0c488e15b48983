"""The paper's tables and figures as data: which experiments each of them needs, and the paper's own numbers."""

import csv
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib import resources
from typing import Any, NamedTuple

from recollect.experiments.experiment import DEFAULT_STREAMS, Experiment

SIZES = (200, 500, 1000, 2000, 5000)
DATASETS = tuple(name for name in DEFAULT_STREAMS if name != "digits")
TABLE_MEMORIES = (
    "recollect",
    "gmc",
    "gmc-last-layer",
    "gmc-local",
    "reservoir",
    "class-balanced",
    "sliding-window",
    "gss",
)

SENSITIVITY: dict[str, list[dict[str, Any]]] = {
    "inits": [{"inits": S, "regularization": 0.5 / S} for S in (1, 2, 3, 5, 10, 20)],
    "dim": [{"dim": d} for d in (50, 100, 250, 500, 1000, 2000)],
    "regularization": [{"regularization": value} for value in (0.0005, 0.005, 0.05, 0.5, 5.0)],
}
"""What is varied, one at a time, around the paper's settings; lambda is the paper's over S, as in `PAPER`."""

INIT_SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
REGULARISATIONS = (0.005, 0.05, 0.5, 5.0)


class PaperResult(NamedTuple):
    """One cell of the paper's tables: mean accuracy and deviation in percent."""

    accuracy: float
    deviation: float


@cache
def paper_results() -> dict[tuple[str, str, str, int], PaperResult]:
    """The paper's Tables 1 and 2, by learner, data set, memory and size.

    Example:
        >>> paper_results()["gdumb", "covertype", "gmc", 200]
        PaperResult(accuracy=66.07, deviation=0.22)
    """
    text = resources.files("recollect.experiments").joinpath("paper_tables.csv").read_text()
    return {
        (row["learner"], row["dataset"], row["memory"], int(row["size"])): PaperResult(
            float(row["accuracy"]), float(row["std"])
        )
        for row in csv.DictReader(text.splitlines())
    }


def table(
    learner: str,
    *,
    datasets: Iterable[str] = DATASETS,
    memories: Iterable[str] = TABLE_MEMORIES,
    sizes: Iterable[int] = SIZES,
    seeds: Iterable[int] = (0, 1, 2, 3, 4),
) -> list[Experiment]:
    """All memories at all sizes on all data sets (Tables 1 and 2, Figures 1 and 2)."""
    return [
        Experiment(learner, dataset, memory, size, seed)
        for dataset in datasets
        for seed in seeds
        for memory in memories
        for size in sizes
    ]


def per_task(
    *,
    datasets: Iterable[str] = DATASETS,
    memories: Iterable[str] = TABLE_MEMORIES,
    sizes: Iterable[int] = (500,),
    seeds: Iterable[int] = (0, 1, 2, 3, 4),
) -> list[Experiment]:
    """GDumb tested after every batch of the stream, at one size (Figure 6)."""
    return [
        Experiment("gdumb", dataset, memory, size, seed, every_task=True)
        for dataset in datasets
        for seed in seeds
        for memory in memories
        for size in sizes
    ]


def _variations(
    options: Iterable[dict[str, Any]],
    *,
    datasets: Iterable[str] = ("fashion-mnist",),
    memories: Iterable[str] = ("gmc",),
    sizes: Iterable[int] = (1000,),
    seeds: Iterable[int] = (0, 1, 2, 3, 4),
) -> list[Experiment]:
    """GDumb with other settings of the memory, by default on Fashion-MNIST at size 1000, as in the paper."""
    changes = list(options)
    return [
        Experiment("gdumb", dataset, memory, size, seed, options=tuple(sorted(change.items())))
        for dataset in datasets
        for seed in seeds
        for memory in memories
        for change in changes
        for size in sizes
    ]


sensitivity = partial(_variations, [options for some in SENSITIVITY.values() for options in some])
initialisation = partial(
    _variations,
    [{"init": init, "init_scale": scale} for init in ("kaiming_uniform", "kaiming_normal") for scale in INIT_SCALES],
)
regularisation = partial(
    _variations,
    [{"center": center, "regularization": value} for center in ("uniform", "zero") for value in REGULARISATIONS],
)

TARGETS: dict[str, Callable[..., list[Experiment]]] = {
    "table-gdumb": partial(table, "gdumb"),
    "table-er": partial(table, "er"),
    "figure-sensitivity": sensitivity,
    "figure-initialisation": initialisation,
    "figure-regularisation": regularisation,
    "figure-per-task": per_task,
    "figure-class-frequencies": lambda **_: [],
}
"""What can be reproduced. The last needs no runs: it shows the data."""
