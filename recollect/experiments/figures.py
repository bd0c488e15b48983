"""Figures as pure functions of results: means with one standard deviation, as in the paper."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from recollect.datasets import Dataset
from recollect.experiments.tables import (
    EPOCHS,
    NAMES,
    Cell,
    Runs,
    by_epochs,
    cell,
    counting,
    epochs_run,
    gains,
    shortened,
    varying,
    with_epochs,
)
from recollect.experiments.targets import COMPARED, DATASETS, SENSITIVITY, SIZES, paper_result
from recollect.files import replacing
from recollect.streams import sorted_by_feature

COLORS = {
    "recollect": "#0b6e4f",
    "recollect-all-layers": "#4c956c",
    "recollect-0.1": "#78a881",
    "clustering": "#00a0b0",
    "gmc": "#1f6fb4",
    "gmc-last-layer": "#6a51a3",
    "gmc-local": "#a65628",
    "reservoir": "#c8553d",
    "class-balanced": "#8c8c00",
    "sliding-window": "#999999",
    "gss": "#d18f00",
}
MARKERS = {
    "recollect": "o",
    "recollect-all-layers": "P",
    "recollect-0.1": "p",
    "clustering": "s",
    "gmc": "^",
    "gmc-last-layer": "D",
    "gmc-local": "v",
    "reservoir": "X",
    "class-balanced": "*",
    "sliding-window": "<",
    "gss": ">",
}
"""The shapes of points: to the colour-blind some of the colours are the same."""
MAIN = ("recollect", "clustering", "gmc", "gmc-last-layer", "reservoir")
"""What is shown at first on the page, and decides what part of the scale a figure shows."""
DEFAULTS = {
    "recollect": {"inits": 10, "dim": 1000, "regularization": 0.001},
    "gmc": {"inits": 10, "dim": 1000, "regularization": 0.05},
}
"""What varies in the figure of settings, as it is where nothing is said."""
Place: TypeAlias = tuple[str, int, int | None]
"""A data set, a memory size, and of how many rows it is, if not of all."""

POINT = 5
_STYLE: Any = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "recollect"}


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as PNG and SVG; the same figure is the same file."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    options: list[dict[str, Any]] = [{"dpi": 130}, {"metadata": {"Date": None}}]
    for path, some in zip(paths, options, strict=True):
        with replacing(path) as file, matplotlib.rc_context({"svg.hashsalt": stem.name}):
            figure.savefig(file, format=path.suffix[1:], **some)
    return paths


def accuracy_against_size(results: Runs, learner: str) -> Figure:
    """Final accuracy by memory size on each data set (Figures 1 and 2); the paper's means are dotted.

    A panel shows cells of one number of epochs, that of most, and says so where it is not the paper's. It reaches down
    to the lowest of `MAIN`: curves that stay below are left out, as the others would be squeezed into one line.
    """
    ours = by_epochs(results)
    with matplotlib.rc_context(_STYLE):
        figure, panels = _panels([name for name in DATASETS if any(key[:2] == (learner, name) for key in ours)])
        sizes = [size for size in SIZES if any((key[0], key[3]) == (learner, size) for key in ours)]
        for dataset, axes in panels.items():
            epochs = epochs_run(results, learner, dataset)[0]
            curves = {
                memory: {
                    s: cells[epochs] for s in SIZES if epochs in (cells := ours.get((learner, dataset, memory, s), {}))
                }
                for memory in COLORS
            }
            bottom = _lowest(curves)
            for memory, found in curves.items():
                if not any(c.mean >= bottom for c in found.values()):
                    continue
                _curves(axes, found, memory)
                theirs = [(s, p.accuracy) for s in found if (p := paper_result(learner, dataset, memory, s))]
                axes.plot(*zip(*theirs, strict=True), color=COLORS[memory], lw=1.3, ls=":") if theirs else None
            axes.set_ylim(bottom=bottom)
            _log_sizes(axes, sizes)
            axes.set_title(with_epochs(NAMES[dataset], epochs))
        _common_legend(figure, panels)
        figure.supylabel("final test accuracy [%]")
    return figure


def gain_over_reservoir(results: Runs, learner: str) -> Figure:
    """How much better gradient matching is than a reservoir, by memory size; the paper's means are dotted."""
    found = {memory: gains(results, learner, memory) for memory in COMPARED}
    sizes = [size for size in SIZES if any(size == key[1] for some in found.values() for key in some)]
    with matplotlib.rc_context(_STYLE):
        present = {dataset for some in found.values() for dataset, _ in some}
        figure, panels = _panels([name for name in DATASETS if name in present])
        for dataset, axes in panels.items():
            for memory, some in found.items():
                cells = {size: gain.difference for (name, size), gain in some.items() if name == dataset}
                _curves(axes, cells, memory)
                pairs = {s: [paper_result(learner, dataset, name, s) for name in (memory, "reservoir")] for s in sizes}
                theirs = [(s, a.accuracy - b.accuracy) for s, (a, b) in pairs.items() if a and b]
                if theirs and cells:
                    axes.plot(*zip(*theirs, strict=True), color=COLORS[memory], lw=1.3, ls=":")
            axes.axhline(0, color="black", lw=1)
            _log_sizes(axes, sizes)
            axes.set_title(NAMES[dataset])
        _common_legend(figure, panels)
        figure.supylabel("accuracy above Reservoir [percentage points]")
    return figure


def sensitivity(results: Runs) -> Figure:
    """GDumb while S, d and lambda vary (Figure 3): a row for each data set and size that was run."""
    labels = {
        "inits": "S, initialisations",
        "dim": "d, numbers per initialisation",
        "regularization": "lambda (recollect: relative; GMC: over S)",
    }
    places = _places(results, lambda r: r["options"] in [c for some in _tried(r).values() for c in some])
    with matplotlib.rc_context({**_STYLE, "font.size": 12, "xtick.labelsize": 10}):
        figure = Figure(figsize=(12, 3.3 * max(1, len(places)) + 0.5), layout="constrained")
        rows = figure.subplots(max(1, len(places)), len(labels), sharey="row", squeeze=False)
        for i, row in enumerate(rows):
            for axes, (name, label) in zip(row, labels.items(), strict=True):
                for place, (memory, varied) in product(places[i : i + 1], SENSITIVITY.items()):
                    tried = varied[name]
                    cells = _by_option(results, place, memory, lambda o, n=name, t=tried: o[n] if o in t else None)
                    if cells:
                        _curve(axes, cells, COLORS[memory], NAMES[memory], MARKERS[memory])
                        _ring(axes, cells, DEFAULTS[memory][name], COLORS[memory])
                _varied_axes(axes, label)
            if places:
                next(axes for axes in row if axes.get_visible()).set_title(_title(places[i]), loc="left")
        _common_legend(figure, dict(enumerate(rows.flatten())))
        figure.supylabel("final test accuracy [%]")
    return figure


def initialisation(results: Runs) -> Figure:
    """GDumb with other initialisation distributions (Figure 4)."""
    return _two_curves(results, "init", ("kaiming_uniform", "kaiming_normal"), "init_scale", "scale of the draws")


def regularisation(results: Runs) -> Figure:
    """Weights pulled towards the best equal weight or towards zero (Figure 8)."""
    return _two_curves(results, "center", ("uniform", "zero"), "regularization", "lambda / S")


def per_task(results: Runs, learner: str = "gdumb", size: int = 500) -> Figure:
    """Accuracy on the whole test part after each batch of the stream (Figures 6 and 7).

    A panel shows runs of one number of epochs, that of most runs, and says so where it is not the paper's.
    """
    whole = [*counting(results), *shortened(results)]
    runs = [r for r in whole if r["every_task"] and r["size"] == size and r["learner"] == learner]
    with matplotlib.rc_context(_STYLE):
        figure, panels = _panels([name for name in DATASETS if any(r["dataset"] == name for r in runs)])
        for dataset, axes in panels.items():
            counts = Counter(r["epochs"] for r in runs if r["dataset"] == dataset)
            epochs = max(counts, key=lambda e: (counts[e], e))
            for memory in COLORS:
                key = (dataset, memory, epochs)
                found = [r["accuracies"] for r in runs if (r["dataset"], r["memory"], r["epochs"]) == key]
                if found:
                    by_task = {t: cell(values) for t, values in enumerate(zip(*found, strict=True), 1)}
                    _curve(axes, by_task, COLORS[memory], NAMES[memory], MARKERS[memory])
            axes.set_title(with_epochs(NAMES[dataset], epochs))
            axes.set_xlabel("batches seen")
            axes.grid(axis="y", alpha=0.25)
        _common_legend(figure, panels)
        figure.supylabel(f"test accuracy with {size} kept [%]")
    return figure


def class_frequencies(dataset: Dataset, name: str = "covertype") -> Figure:
    """How often each class occurs in the batches of the sorted stream (Figure 5)."""
    stream = sorted_by_feature(dataset)
    counts = np.array([np.bincount(b.targets.numpy(), minlength=dataset.n_classes) for b in stream.batches])
    shares = counts / counts.sum(1, keepdims=True)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7, 3.6), layout="constrained")
        axes = figure.subplots()
        bottom = np.zeros(len(shares))
        for label, share in enumerate(shares.T):
            color = matplotlib.colormaps["tab20"](label % 20)
            axes.bar(range(1, len(shares) + 1), share, bottom=bottom, color=color, label=str(label), width=0.85)
            bottom += share
        axes.set_xticks(range(1, len(shares) + 1))
        axes.set_xlabel("batch of the stream")
        axes.set_ylabel("share of each class")
        axes.set_title(NAMES[name])
        axes.legend(title="class", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def _panels(names: list[str]) -> tuple[Figure, dict[str, Axes]]:
    """One panel per data set, at most three in a row; four are two by two."""
    columns = 2 if len(names) == 4 else max(1, min(3, len(names)))
    rows = max(1, -(-len(names) // columns))
    figure = Figure(figsize=(4 * columns, 3.2 * rows + 0.8), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in grid[len(names) :]:
        axes.set_visible(False)
    return figure, dict(zip(names, grid, strict=False))


def _title(place: Place) -> str:
    dataset, size, rows = place
    return f"{NAMES[dataset]}, {size} kept" + ("" if rows is None else f" of {rows:,} rows")


def _tried(result: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return SENSITIVITY.get(result["memory"], {})


def _places(results: Runs, wanted: Callable[[dict[str, Any]], bool]) -> list[Place]:
    """Where GDumb was run with varied settings of the wanted kind, in the order of the tables."""
    found = {_place(r) for r in varying(results) if r["learner"] == "gdumb" and wanted(r) and r["dataset"] in DATASETS}
    return sorted(found, key=lambda p: (DATASETS.index(p[0]), p[2] or 0, p[1]))


def _place(result: dict[str, Any]) -> Place:
    return result["dataset"], result["size"], result["rows"]


def _two_curves(results: Runs, name: str, values: tuple[str, str], varied: str, label: str) -> Figure:
    """A panel for each data set and size at which the paper's matching was run with both options set."""
    places = _places(results, lambda r: r["memory"] == "gmc" and set(r["options"]) == {name, varied})
    with matplotlib.rc_context(_STYLE):
        figure, panels = _panels([_title(place) for place in places])
        for place, (title, axes) in zip(places, panels.items(), strict=True):
            for value, like in zip(values, ("gmc", "gss"), strict=True):
                cells = _by_option(
                    results,
                    place,
                    "gmc",
                    lambda o, value=value: o[varied] if set(o) == {name, varied} and o[name] == value else None,
                )
                if cells:
                    _curve(axes, cells, COLORS[like], value.replace("_", " "), MARKERS[like])
            _varied_axes(axes, label)
            axes.set_title(title)
        _common_legend(figure, panels)
        figure.supylabel("final test accuracy [%]")
    return figure


def _varied_axes(axes: Axes, label: str) -> None:
    """Ticks at the values that were tried, as people write them: at one per decade if they are too many to be read."""
    axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.grid(axis="y", alpha=0.25)
    values = sorted({float(x) for line in axes.get_lines() for x in np.asarray(line.get_xdata())})
    if len(values) > 8:
        decades = range(math.floor(math.log10(values[0])), math.ceil(math.log10(values[-1])) + 1)
        values = [10.0**k for k in decades if values[0] <= 1.001 * 10.0**k <= 1.002 * values[-1]]
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
    axes.set_visible(bool(axes.get_lines()))  # of what was not run there is nothing to see


def _by_option(results: Runs, place: Place, memory: str, value_of: Any) -> dict[float, Cell]:
    """Cells of GDumb at a data set and size by what was varied."""
    groups: dict[float, list[float]] = {}
    for r in varying(results):
        if (r["learner"], _place(r), r["memory"]) == ("gdumb", place, memory):
            value = value_of(r["options"])
            if value is not None:
                groups.setdefault(value, []).append(r["final_accuracy"])
    return {value: cell(groups[value]) for value in sorted(groups)}


def _curves(axes: Axes, cells: dict[int, Cell], memory: str) -> None:
    """One curve for each number of epochs; those that are not the paper's are dashed, with hollow points."""
    for epochs in sorted({c.epochs for c in cells.values()}, reverse=True):
        some = {size: c for size, c in cells.items() if c.epochs == epochs}
        _curve(axes, some, COLORS[memory], NAMES[memory], MARKERS[memory], hollow=epochs != EPOCHS)


def _curve(axes: Axes, cells: dict[Any, Cell], color: str, label: str, marker: str, *, hollow: bool = False) -> None:
    x = list(cells)
    middle = np.array([c.mean for c in cells.values()])
    spread = np.array([c.deviation if c.seeds > 1 else np.nan for c in cells.values()])  # of one seed nothing is known
    look: dict[str, Any] = {"ls": "--", "mfc": "white"} if hollow else {}
    axes.plot(x, middle, color=color, marker=marker, ms=POINT, lw=1.8, label=label, **look)
    axes.fill_between(x, middle - spread, middle + spread, color=color, alpha=0.15, lw=0)


def _ring(axes: Axes, cells: dict[float, Cell], default: float, color: str) -> None:
    """A ring around the point of a default, wherever it was run."""
    for value, found in cells.items():
        if value == default:
            axes.plot([value], [found.mean], color=color, marker="o", ms=12, mfc="none", ls="None")


_LOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    "--": (f"fewer than {EPOCHS} epochs", {"marker": "o", "mfc": "white", "lw": 1.8}),
    ":": ("the paper's means", {"lw": 1.3}),
    "None": ("the default", {"marker": "o", "ms": 12, "mfc": "none"}),
}
"""What lines that are not solid stand for, whatever their colour."""


def _common_legend(figure: Figure, panels: Mapping[Any, Axes]) -> None:
    """One legend for all panels, below them, or beside a single one: a name for each curve, then for each look."""
    lines = [line for axes in panels.values() for line in axes.get_lines()]
    named = {str(line.get_label()): line for line in lines if not str(line.get_label()).startswith("_")}
    ranks = {NAMES[memory]: rank for rank, memory in enumerate(COLORS)}
    names = sorted(named, key=lambda name: ranks.get(name, len(ranks)))
    handles = [
        Line2D([], [], color=named[name].get_color(), marker=named[name].get_marker(), ms=POINT, lw=1.8, label=name)
        for name in names
    ]
    looks = {line.get_linestyle() for line in lines}
    handles += [
        Line2D([], [], color="gray", ls=ls, label=told, **{"ms": POINT, **how})
        for ls, (told, how) in _LOOKS.items()
        if ls in looks
    ]
    if handles:
        beside = len(panels) == 1  # a single panel has no room below for names
        if beside:
            figure.set_figwidth(figure.get_figwidth() + 3)
        place: Any = "outside right center" if beside else "outside lower center"
        figure.legend(handles=handles, loc=place, ncols=1 if beside else 4, frameon=False)


def _lowest(curves: dict[str, dict[int, Cell]]) -> float:
    """Where a panel of accuracies begins: a little below the lowest of `MAIN`, or of all if none of these was run."""
    main = [c for memory in MAIN for c in curves.get(memory, {}).values()]
    shown = main or [c for some in curves.values() for c in some.values()]
    low, high = min(c.mean - c.deviation for c in shown), max(c.mean + c.deviation for c in shown)
    return low - 0.15 * max(high - low, 5.0)


def _log_sizes(axes: Axes, sizes: list[int]) -> None:
    """Those that were run, with the same room on both sides."""
    axes.set_xscale("log")
    axes.set_xlim(0.85 * sizes[0], sizes[-1] / 0.85)
    axes.set_xlabel("examples kept")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.grid(axis="y", alpha=0.25)
