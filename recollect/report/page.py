"""Results to one HTML page that needs no network: tables, curves to hover and filter, pictures of what was kept."""

import base64
import io
import json
from collections import Counter
from collections.abc import Callable
from importlib import resources
from itertools import product
from statistics import mean
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure
from numpy.typing import NDArray

from recollect import datasets
from recollect.datasets import Dataset
from recollect.experiments.experiment import DEFAULT_STREAMS, STREAMS
from recollect.experiments.figures import COLORS, MAIN, class_frequencies
from recollect.experiments.tables import (
    EPOCHS,
    NAMES,
    VERDICTS,
    Runs,
    Table,
    accuracy_table,
    by_epochs,
    counted_epochs,
    counting,
    coverage,
    departures,
    difference_table,
    epochs_run,
    gains,
    shortened,
)
from recollect.experiments.targets import COMPARISONS, DATASETS, LEARNERS_SHOWN, SHOWN_MEMORIES, SIZES, paper_result

LoadDataset = Callable[[str], Dataset | None]
PICTURED = ("mnist", "fashion-mnist", "digits")


def build_page(results: Runs, load: LoadDataset | None = None) -> str:
    """The page as text; every name that came from outside is escaped.

    Args:
        results: what a store holds.
        load: finds a data set by name, or None where it is not here; pictures of it are then left out.
    """
    load = _load_if_here if load is None else load
    template = resources.files("recollect.report").joinpath("page.html.j2").read_text("utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    learners = learners_of(results)
    own = [NAMES[memory] for memory in MAIN]
    return environment.from_string(template).render(
        names=NAMES,
        n_results=len(results),
        learners=learners,
        tables={name: tables_by_dataset(results, name) for name in learners},
        all_verdicts=VERDICTS,
        verdicts=[(name, *found) for name in learners for found in verdicts(results, name) if found[0] in own],
        memory_of={NAMES[memory]: memory for memory in COLORS},
        coverage=coverage(results),
        differences={name: difference_tables(results, name) for name in learners},
        curves=_as_script(_curves(results)),
        galleries=_galleries(results, load),
        frequencies=_frequencies(load),
        costs=cost_table(results),
        others=other_settings(results),
        versions=sorted({", ".join(f"{k} {v}" for k, v in sorted(r.get("versions", {}).items())) for r in results}),
        hours=sum(float(r.get("seconds", 0)) for r in results) / 3600,
    )


def _load_if_here(name: str) -> Dataset | None:
    return datasets.load(name) if name == "digits" or datasets.find(name) is not None else None


def learners_of(results: Runs) -> list[str]:
    """Those of the paper's tables of which there are results."""
    known = {learner for learner, *_ in by_epochs(results)}
    return [name for name in LEARNERS_SHOWN if name in known]


def accuracy_tables(results: Runs, learner: str) -> list[Table]:
    """One for each data set of which there are results; further ones for those of other numbers of epochs."""
    return [table for _, table in tables_by_dataset(results, learner)]


def tables_by_dataset(results: Runs, learner: str) -> list[tuple[str, Table]]:
    """The same, each with the name of its data set."""
    made = []
    known = {key[:2] for key in by_epochs(results)}
    for dataset in (name for name in DATASETS if (learner, name) in known):
        made.append((dataset, accuracy_table(results, learner, dataset)))
        others = epochs_run(results, learner, dataset)[1:]
        made += [(dataset, accuracy_table(results, learner, dataset, epochs)) for epochs in others]
    return made


def verdicts(results: Runs, learner: str) -> list[tuple[str, str, Counter[str]]]:
    """How often one memory is better or worse than another that it is compared with, by more than the deviation."""
    found = ((pair, gains(results, learner, *pair).values()) for pair in COMPARISONS)
    return [(NAMES[a], NAMES[b], Counter(gain.verdict for gain in some)) for (a, b), some in found if some]


def difference_tables(results: Runs, learner: str) -> list[Table]:
    """One for each two memories that are compared and were both run."""
    made = [difference_table(results, learner, *pair) for pair in COMPARISONS]
    return [table for table in made if table.rows]


def _curves(results: Runs) -> dict[str, Any]:
    """What the script draws: points by learner, data set and memory, of one number of epochs each, and the paper's."""
    cells = by_epochs(results)
    number = {part: epochs_run(results, *part)[0] for part in {key[:2] for key in cells}}
    found = {key: by_number.get(number[key[:2]]) for key, by_number in sorted(cells.items())}
    points = [
        {"learner": key[0], "dataset": key[1], "memory": key[2], "size": key[3], "mean": cell.mean,
         "deviation": cell.deviation, "seeds": cell.seeds,
         "epochs": "" if cell.epochs == EPOCHS else counted_epochs(cell.epochs)}
        for key, cell in found.items()
        if key[1] in DATASETS and cell is not None
    ]  # fmt: skip
    shown = [part for part in sorted(number) if part[1] in DATASETS]
    paper = [
        {"learner": k[0], "dataset": k[1], "memory": memory, "size": size, "mean": v.accuracy, "deviation": v.deviation}
        for k in shown
        for memory, size in product(SHOWN_MEMORIES, SIZES)
        if (v := paper_result(*k, memory, size)) is not None
    ]
    return {
        "points": points,
        "paper": paper,
        "names": NAMES,
        "colors": COLORS,
        "datasets": list(DATASETS),
        "main": list(MAIN),
    }


def _as_script(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _galleries(results: Runs, load: LoadDataset) -> list[dict[str, Any]]:
    """Pictures of what memories kept, one per data set and memory, of the first seed that says which."""
    galleries: list[dict[str, Any]] = []
    for name in PICTURED:
        found: dict[str, dict[str, Any]] = {}
        for r in counting(results):
            if r["dataset"] == name and r.get("kept_ids"):
                found.setdefault(r["memory"], r)
        dataset = load(name) if found else None
        if dataset is None:
            continue
        stream = STREAMS[DEFAULT_STREAMS[name]](dataset)
        images = np.concatenate([batch.inputs.numpy() for batch in stream.batches])
        labels = np.concatenate([batch.targets.numpy() for batch in stream.batches])
        for memory in (
            m for m in ("recollect", "recollect-all-layers", "gmc", "gmc-last-layer", "reservoir") if m in found
        ):
            r = found[memory]
            ids = np.array(r["kept_ids"])
            if ids.max() >= len(images):
                continue  # of another version of the data
            order = np.lexsort((-np.array(r["kept_weights"]), labels[ids]))
            galleries.append(
                {
                    "dataset": name,
                    "memory": memory,
                    "count": len(ids),
                    "picture": _contact_sheet(images[ids[order], 0], labels[ids[order]]),
                }
            )
    return galleries


def _contact_sheet(images: NDArray[np.float32], labels: NDArray[np.int64]) -> str:
    """One row of pictures per class, as a data address."""
    classes = np.unique(labels)
    columns = int(np.bincount(labels).max())
    height, width = images.shape[1] + 2, images.shape[2] + 2
    sheet = np.full((len(classes) * height, columns * width), np.nan)
    for row, label in enumerate(classes):
        for column, image in enumerate(images[labels == label]):
            top, left = row * height + 1, column * width + 1
            sheet[top : top + height - 2, left : left + width - 2] = 1 - image
    figure = Figure(figsize=(sheet.shape[1] / 60, sheet.shape[0] / 60), frameon=False)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.imshow(sheet, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    return _data_address(figure, dpi=120)


def _frequencies(load: LoadDataset) -> str | None:
    dataset = load("covertype")
    return None if dataset is None else _data_address(class_frequencies(dataset), dpi=110)


def _data_address(figure: Figure, dpi: int) -> str:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi, transparent=True)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def cost_table(results: Runs) -> Table:
    """How long choosing took and how well the kept match, by data set, memory and size: means over seeds.

    Gradients of a batch are computed once for all sizes, and counted with the first.
    """
    groups: dict[tuple[str, str], dict[int, list[dict[str, Any]]]] = {}
    for r in counting(results):
        if r["learner"] == "gdumb" and r.get("seconds_of"):
            groups.setdefault((r["dataset"], r["memory"]), {}).setdefault(r["size"], []).append(r)
    sizes = sorted({size for by_size in groups.values() for size in by_size})
    rows = []
    for (dataset, memory), by_size in sorted(groups.items()):
        cells = [_cost(by_size.get(size, [])) for size in sizes]
        rows.append((NAMES.get(dataset, dataset), NAMES.get(memory, memory), *cells))
    return Table("What choosing costs, and how well the kept match", ("", "", *map(str, sizes)), tuple(rows))


def _cost(found: list[dict[str, Any]]) -> str:
    if not found:
        return ""
    seconds = mean(r["seconds_of"].get("choose", 0.0) + r["seconds_of"]["observe"] for r in found)
    errors = [r["fitted_error"] for r in found if r.get("fitted_error") is not None]
    return f"{seconds:.0f} s" + (f", {mean(errors):.4f}" if errors else "")


def other_settings(results: Runs) -> list[str]:
    """Runs that are not in the tables, because they were made with other settings: which, and how many."""
    groups: dict[str, list[str]] = {}
    for r in results:
        changed = departures(r)
        if changed and not shortened([r]):
            where = ", ".join(str(NAMES.get(r[name], r[name])) for name in ("learner", "dataset", "memory"))
            values = " with ".join(
                f"{value:.3g}" if isinstance(value, float) else str(value) for value in changed.values()
            )
            groups.setdefault(f"{where}: {' with '.join(changed)}", []).append(values)
    return [
        f"{where} = {', '.join(dict.fromkeys(values))} ({len(values)} run{'s' * (len(values) > 1)})"
        for where, values in sorted(groups.items())
    ]
