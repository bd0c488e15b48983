"""Results to a Markdown page with figures beside it: docs/reproduction.md is made by this."""

from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from recollect import datasets
from recollect.experiments import figures
from recollect.experiments.tables import (
    EPOCHS,
    NAMES,
    VERDICTS,
    Runs,
    by_epochs,
    counting,
    coverage,
    mixing_table,
    shortened,
    summarise,
    varying,
)
from recollect.experiments.targets import DATASETS, SIZES, paper_results
from recollect.report.page import accuracy_tables, cost_table, difference_tables, learners_of, other_settings, verdicts

FREQUENCIES = "Class frequencies along the sorted Covertype stream"
CAPTIONS = {
    "sensitivity": "Test accuracy of GDumb while one setting varies and the others keep their defaults, which are "
    "ringed. Each row has its own scale.",
    "initialisation": "GDumb by the paper's settings, with draws by another rule and at another scale.",
    "regularisation": "GDumb by the paper's settings, while lambda varies.",
}
"""What figures show, where their titles do not say enough."""


def write_document(results: Runs, path: Path) -> str:
    """The page as text; its figures are saved as PNG and SVG in the folder images/<name of the page> beside it."""
    template = resources.files("recollect.report").joinpath("document.md.j2").read_text("utf-8")
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)  # Markdown: not escaped
    folder = path.parent / "images" / path.stem
    learners = learners_of(results)
    pictures = {}
    for name, title, figure in _figures(results, learners):
        png, _ = figures.save(figure, folder / name)
        pictures[name] = (title, png.relative_to(path.parent).as_posix())
    return environment.from_string(template).render(
        names=NAMES,
        learners=learners,
        tables={learner: accuracy_tables(results, learner) for learner in learners},
        differences={learner: difference_tables(results, learner) for learner in learners},
        all_verdicts=VERDICTS,
        epochs=EPOCHS,
        verdicts={learner: verdicts(results, learner) for learner in learners},
        levels=_levels(results),
        pictures=pictures,
        captions=CAPTIONS,
        frequencies=FREQUENCIES,
        costs=cost_table(results),
        mixing=mixing_table(results),
        others=other_settings(results),
        coverage=coverage(results),
        missing=_missing(results),
        hours=_hours(results),
        n_results=len(results),
    )


def _levels(results: Runs) -> list[str]:
    """By how much the level of accuracy differs from the paper's, told by Reservoir."""
    ours, paper = summarise(results), paper_results()
    told = []
    for learner in ("gdumb", "er"):
        for dataset in DATASETS:
            keys = [(learner, dataset, "reservoir", size) for size in SIZES]
            shifts = [f"{ours[key].mean - paper[key].accuracy:+.1f}" for key in keys if key in ours and key in paper]
            if shifts:
                told.append(f"{NAMES[learner]}, {NAMES[dataset]} {', '.join(shifts)}")
    return told


def _figures(results: Runs, learners: list[str]) -> list[tuple[str, str, Any]]:
    made = []
    for name in learners:
        title = f"{NAMES[name]}: accuracy against memory size"
        made.append((f"accuracy-{name}", title, figures.accuracy_against_size(results, name)))
        if not difference_tables(results, name):
            continue  # nothing to compare yet
        title = f"{NAMES[name]}: gradient matching less Reservoir"
        made.append((f"gain-{name}", title, figures.gain_over_reservoir(results, name)))
    changed = {name for r in varying(results) for name in r["options"]}
    if changed & {"inits", "dim"}:
        made.append(("sensitivity", "Sensitivity to S, d and lambda", figures.sensitivity(results)))
    if "init" in changed:
        made.append(("initialisation", "Other initialisations", figures.initialisation(results)))
    if "center" in changed:
        made.append(("regularisation", "Pulled towards equal weights or zero", figures.regularisation(results)))
    for name, file in (("gdumb", "per-task"), ("er", "per-task-er")):
        if any(r["every_task"] and r["learner"] == name for r in [*counting(results), *shortened(results)]):
            made.append((file, f"{NAMES[name]}: after each batch of the stream", figures.per_task(results, name)))
    if datasets.find("covertype") is not None:
        frequencies = figures.class_frequencies(datasets.load("covertype"))
        made.append(("class-frequencies", FREQUENCIES, frequencies))
    return made


def _missing(results: Runs) -> list[str]:
    """Cells of the paper's tables that were not run, by learner and data set."""
    ours, told = by_epochs(results), []
    for learner in ("gdumb", "er"):
        for dataset in DATASETS:
            cells = [key for key in paper_results() if key[:2] == (learner, dataset)]
            left = [key for key in cells if key not in ours]
            if left:
                told.append(f"{NAMES[learner]}, {NAMES[dataset]}: {len(left)} of {len(cells)} cells")
    return told


def _hours(results: Runs) -> list[tuple[str, str, int, float]]:
    """How many runs each part has, and how long they took, in hours of one process."""
    parts: dict[tuple[str, str], list[float]] = {}
    for r in results:
        parts.setdefault((r["learner"], r["dataset"]), []).append(r.get("seconds", 0.0))
    return [
        (NAMES.get(learner, learner), NAMES.get(dataset, dataset), len(seconds), sum(seconds) / 3600)
        for (learner, dataset), seconds in sorted(parts.items())
    ]
