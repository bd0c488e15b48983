"""The paper's tables and figures as data: which experiments each of them needs, and the paper's own numbers."""

import csv
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib import resources
from itertools import product
from typing import Any, NamedTuple

from recollect.experiments.experiment import DEFAULT_STREAMS, Experiment

SIZES = (200, 500, 1000, 2000, 5000)
DATASETS = tuple(name for name in DEFAULT_STREAMS if name != "digits")
SHOWN_MEMORIES = (
    "recollect",
    "recollect-all-layers",
    "recollect-0.1",
    "clustering",
    "gmc",
    "gmc-last-layer",
    "gmc-local",
    "reservoir",
    "class-balanced",
    "sliding-window",
    "gss",
)

COMPARED = ("recollect", "recollect-all-layers", "recollect-0.1", "clustering", "gmc", "gmc-last-layer")
"""What is compared with a reservoir, as the paper does."""

COMPARISONS = (
    *((memory, "reservoir") for memory in COMPARED),
    ("recollect", "clustering"),  # the baseline that is hard to beat
    ("recollect-all-layers", "clustering"),
    ("recollect", "gmc"),  # the paper's settings
    ("recollect", "gmc-last-layer"),
)
"""What is compared with what."""

RUN_BY_DEFAULT = tuple(name for name in SHOWN_MEMORIES if not name.startswith("recollect-"))
"""What is shown if there are runs of it, such as from before, is not run unless asked for."""

VARIED = {"datasets": ("walking-activity", "covertype"), "sizes": (200, 1000), "seeds": range(3)}
"""Where settings are varied; the paper did so on Fashion-MNIST at 1000, which takes an hour for each."""

SENSITIVITY: dict[str, dict[str, list[dict[str, Any]]]] = {
    "gmc": {
        "inits": [{"inits": S, "regularization": 0.5 / S} for S in (1, 2, 3, 5, 10, 20)],
        "dim": [{"dim": d} for d in (50, 100, 250, 500, 1000, 2000)],
        "regularization": [{"regularization": value} for value in (0.0005, 0.005, 0.05, 0.5, 5.0)],
    },
    "recollect": {
        "inits": [{"inits": S} for S in (1, 2, 3, 5, 10, 20)],
        "dim": [{"dim": d} for d in (50, 100, 250, 500, 1000, 2000)],
        "regularization": [{"regularization": value} for value in (0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0)],
    },
}
"""What is varied, one at a time, around the settings of each; the paper's lambda is over S, as in `PAPER`, and this
library's relative to the embeddings' mean squared norm."""

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
    text = resources.files("recollect.experiments").joinpath("paper_tables.csv").read_text("utf-8")
    return {
        (row["learner"], row["dataset"], row["memory"], int(row["size"])): PaperResult(
            float(row["accuracy"]), float(row["std"])
        )
        for row in csv.DictReader(text.splitlines())
    }


LEARNERS_SHOWN = ("gdumb", "er", "er-drawn")
"""Of the tables: the paper's two, and the second once more, as its examples may also be mixed."""


def paper_result(learner: str, dataset: str, memory: str, size: int) -> PaperResult | None:
    """What the paper has to compare with; it does not say how experience replay mixes examples.

    Example:
        >>> paper_result("er-drawn", "covertype", "gmc", 200) == paper_result("er", "covertype", "gmc", 200)
        True
    """
    return paper_results().get(("er" if learner == "er-drawn" else learner, dataset, memory, size))


def grid(
    learner: str,
    changes: Iterable[dict[str, Any]] = ({},),
    *,
    datasets: Iterable[str] = DATASETS,
    memories: Iterable[str] = RUN_BY_DEFAULT,
    sizes: Iterable[int] = SIZES,
    seeds: Iterable[int] = range(5),
    epochs: int = 200,
    rows: int | None = None,
    every_task: bool = False,
) -> list[Experiment]:
    """Everything with everything: all memories at all sizes on all data sets, with each change of their settings."""
    return [
        Experiment(
            *(learner, dataset, memory, size, seed, epochs),
            rows=rows,
            every_task=every_task,
            options=tuple(sorted(change.items())),
        )
        for dataset, seed, memory, change, size in product(datasets, seeds, memories, changes, sizes)
    ]


def sensitivity(*, memories: Iterable[str] = ("gmc", "recollect"), **narrowed: Any) -> list[Experiment]:
    """Every setting of `SENSITIVITY`."""
    made: list[Experiment] = []
    for memory in (name for name in memories if name in SENSITIVITY):
        changes = [change for some in SENSITIVITY[memory].values() for change in some]
        made += grid("gdumb", changes, memories=(memory,), **{**VARIED, **narrowed})
    return made


_variations = partial(grid, "gdumb", memories=("gmc",), **VARIED)  # type: ignore[arg-type]

TARGETS: dict[str, Callable[..., list[Experiment]]] = {
    "table-gdumb": partial(grid, "gdumb"),  # and Figure 1
    "table-er": partial(grid, "er"),  # and Figure 2
    "table-er-drawn": partial(grid, "er-drawn"),
    "tables": lambda **narrowed: [*grid("gdumb", **narrowed), *grid("er", **narrowed)],
    "figure-sensitivity": sensitivity,
    "figure-initialisation": partial(
        _variations,
        [{"init": i, "init_scale": scale} for i in ("kaiming_uniform", "kaiming_normal") for scale in INIT_SCALES],
    ),
    "figure-regularisation": partial(
        _variations,
        [{"center": center, "regularization": value} for center in ("uniform", "zero") for value in REGULARISATIONS],
    ),
    "figure-per-task": partial(grid, "gdumb", sizes=(500,), every_task=True),
    "figure-per-task-er": partial(grid, "er", sizes=(500,), every_task=True),
    "figure-class-frequencies": lambda **_: [],
}
"""What can be reproduced: Tables 1 and 2, the second mixed in two ways; Figures 3, 4, 8, 6, 7 and 5, of data."""
