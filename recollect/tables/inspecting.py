"""What a store has seen and keeps, as plain data, as tables for a terminal and as a page."""

import base64
import io
from importlib import resources
from typing import Any

import matplotlib
import numpy as np
from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from recollect.tables.account import Account, Described
from recollect.tables.store import Store
from recollect.terminal import cell, printable

_INK = "#1f6fb4"
_LOST = "#b3261e"
_MANY = 24  # classes that have a bar of their own at most
_NAMED = 8  # files whose bars have names at most
_MOST_BARS = 60


def inspection(store: Store) -> dict[str, Any]:
    """Counts by class and by file, weights, matching error over time, and what drifted."""
    about: dict[str, Any] = {"store": str(store.folder), "settings": store.settings.as_data(), "seen": 0, "kept": 0}
    if not store.number():
        return {**about, "task": None, "classes": [], "files": [], "weights": [], "columns": [], "notes": []}
    held, taken = store.read()
    batch = held.memory.batch
    weights, ids = batch.weights.double().numpy(), batch.ids.numpy()
    seen: dict[str, int] = {}
    for entry in taken:
        for name, count in entry.class_counts.items():
            seen[name] = seen.get(name, 0) + count
    classes = []
    for label, name in enumerate(held.encoding.classes):
        mine = batch.targets.numpy() == label
        classes.append(_counts(name, seen.get(name, 0), weights[mine]))
    files = []
    for entry in taken:
        mine = (ids >= entry.first) & (ids < entry.first + entry.rows)
        more = {name: getattr(entry, name) for name in _OF_A_FILE}
        files.append({**_counts(entry.name, entry.rows, weights[mine]), **more})
    about |= {"seen": held.memory.seen, "kept": len(batch), "task": held.encoding.task}
    columns = held.account.as_data()["columns"]
    return {
        **about,
        "classes": classes,
        "files": files,
        "weights": weights.tolist(),
        "columns": columns,
        "notes": [*held.account.notes(), *_lost(held.lost())],
    }


_OF_A_FILE = ("hash", "time", "error", "seconds", "rows_per_second", "drift", "read_as", "skipped", "unlabelled")


def _lost(classes: list[str]) -> list[str]:
    return [f"no row is kept of the class {name!r}" for name in classes]


def terminal_tables(found: dict[str, Any]) -> list[Table]:
    """The same for a terminal."""
    settings = found["settings"]
    title = f"{found['kept']} of {found['seen']:,} rows kept"
    about = Table(title=title, show_header=False)
    about.add_column()
    about.add_column(overflow="fold")
    for name in ("store", "task"):
        about.add_row(name, cell(found[name] or "not known yet"))
    for name in ("target", "size", "memory", "seed"):
        about.add_row(name, cell(settings[name]))
    if found["weights"]:
        low, middle, high = np.quantile(found["weights"], [0, 0.5, 1])
        about.add_row("weights", f"{low:.2f} to {high:.2f}, median {middle:.2f}, sum {sum(found['weights']):,.0f}")
    tables = [about]
    if found["columns"]:
        tables.append(Account({}, 0, found["task"], [Described(**c) for c in found["columns"]]).table())
    if found["classes"]:
        table = _counted("class")
        for entry in found["classes"]:
            table.add_row(*_cells(entry))
        tables.append(table)
    if found["files"]:
        table = _counted("file")
        table.add_column("matching error", justify="right")
        table.add_column("what is new", overflow="fold")
        for entry in found["files"]:
            error = "" if entry["error"] is None else f"{entry['error']:.4f}"
            table.add_row(*_cells(entry), error, cell("; ".join(entry["drift"])))
        tables.append(table)
    return tables


def page(found: dict[str, Any]) -> str:
    """The same as one page with plots that needs no network; whatever came from outside is escaped."""
    template = resources.files("recollect.tables").joinpath("inspect.html.j2").read_text("utf-8")
    environment = Environment(
        autoescape=True,
        finalize=lambda value: printable(value) if isinstance(value, str) else value,  # or a name could turn a line
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.from_string(template).render(
        found=found, plots=_plots(found), lost=[entry["name"] for entry in found["classes"] if not entry["kept"]]
    )


def _counts(name: str, seen: int, weights: Any) -> dict[str, Any]:
    return {"name": name, "seen": seen, "kept": len(weights), "weight": float(weights.sum())}


def _counted(what: str) -> Table:
    table = Table()
    table.add_column(what, overflow="fold")
    for name in ("seen", "kept", "weight"):
        table.add_column(name, justify="right")
    return table


def _cells(entry: dict[str, Any]) -> list[str]:
    return [cell(entry["name"]), f"{entry['seen']:,}", str(entry["kept"]), f"{entry['weight']:,.0f}"]


def _plots(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Titles and pictures as data addresses."""
    plots: list[tuple[str, str]] = []
    if found["classes"]:
        plots.append(("By class: share of the rows seen, and of the weight kept", _by_class(found["classes"])))
    if found["files"]:
        plots.append(("By file, in the order of arrival: the same shares", _by_file(found["files"])))
    errors = [(i, entry["error"]) for i, entry in enumerate(found["files"], 1) if entry["error"] is not None]
    if errors:
        figure, axes = _figure()
        axes.plot(*zip(*errors, strict=True), color=_INK, marker="o" if len(errors) <= _MANY else "", ms=4)
        axes.set(xlabel="files taken", ylabel="matching error")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        plots.append(("Matching error after each file", _address(figure)))
    if found["weights"]:
        figure, axes = _figure()
        axes.hist(found["weights"], bins=min(40, max(5, len(found["weights"]) // 4)), color=_INK)
        axes.set(xlabel="weight: how many rows a kept row stands for", ylabel="kept rows")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        plots.append(("Weights of the kept rows", _address(figure)))
    return plots


def _by_class(entries: list[dict[str, Any]]) -> str:
    """The most frequent classes, the others together; a class that has lost all its rows is marked."""
    largest = sorted(entries, key=lambda entry: -entry["seen"])
    shown = largest if len(largest) <= _MANY else largest[: _MANY - 1]
    names = shortened([entry["name"] for entry in shown])
    names = [f"{name} (none kept)" if not entry["kept"] else name for name, entry in zip(names, shown, strict=True)]
    if len(shown) < len(largest):
        shown = [*shown, _together(largest[len(shown) :])]
        names.append(f"{len(largest) - len(names)} others")
    return _shares(shown, entries, names, "class")


def _by_file(entries: list[dict[str, Any]]) -> str:
    """A bar for each file by its name; where they are many, by its number, several files to a bar if need be."""
    if len(entries) <= _NAMED:
        return _shares(entries, entries, shortened([entry["name"] for entry in entries]), "file")
    per_bar = -(-len(entries) // _MOST_BARS)
    starts = np.arange(0, len(entries), per_bar)
    bars = [_together(entries[start : start + per_bar]) for start in starts]
    figure, axes = _figure()
    for i, (values, color, label) in enumerate(_percent(bars, entries)):
        axes.bar(
            starts + (per_bar + 1) / 2 + per_bar * (0.4 * i - 0.2),
            values,
            width=0.4 * per_bar,
            color=color,
            label=label,
        )
    axes.set(xlabel="file" if per_bar == 1 else f"file, {per_bar} to a bar", ylabel="share [%]")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    return _address(figure)


def _percent(entries: list[dict[str, Any]], everything: list[dict[str, Any]]) -> list[tuple[list[float], str, str]]:
    """What part of all rows seen and of all weight kept each entry has, with a colour and a label."""
    found = []
    for key, color, label in (("seen", "#9aa5a0", "seen"), ("weight", _INK, "weight kept")):
        total = max(sum(float(entry[key]) for entry in everything), 1e-12)
        found.append(([100 * float(entry[key]) / total for entry in entries], color, label))
    return found


def _together(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: sum(entry[name] for entry in entries) for name in ("seen", "kept", "weight")}


def shortened(names: list[str], length: int = 22) -> list[str]:
    """Names short enough for an axis that can still be told apart: what they share is left out first.

    Example:
        >>> shortened(["deliveries-of-the-north-2024-01-01.parquet", "deliveries-of-the-north-2024-01-02.parquet"])
        ['…01', '…02']
        >>> shortened(["a", "b"])
        ['a', 'b']
    """
    if len(names) < 2 or max(map(len, names)) <= length:
        return [name if len(name) <= length else f"{name[: length - 1]}…" for name in names]
    start = _shared(names)
    while start and names[0][start - 1].isalnum():  # whole words only
        start -= 1
    end = _shared([name[start:][::-1] for name in names])
    cut = [name[start : len(name) - end] or name[start:] for name in names]
    short = [f"{'…' * (start > 0)}{name}" for name in cut]
    return [name if len(name) <= length else f"{name[: length // 2]}…{name[-(length // 2 - 1) :]}" for name in short]


def _shared(names: list[str]) -> int:
    """How many first letters all names have in common."""
    return next(
        (i for i, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), min(map(len, names))
    )


def _shares(entries: list[dict[str, Any]], everything: list[dict[str, Any]], names: list[str], what: str) -> str:
    """Two bars for each entry: its part of all rows seen, and of all weight kept."""
    figure, axes = _figure(height=max(3.4, 1.0 + 0.26 * len(entries)))
    places = np.arange(len(entries))
    for i, (values, color, label) in enumerate(_percent(entries, everything)):
        axes.barh(places + 0.4 * i - 0.2, values, height=0.4, color=color, label=label)
    # A dollar sign would start a formula.
    axes.set_yticks(places, [name.replace("$", "\\$").replace("\n", " ") for name in names])
    for text, entry in zip(axes.get_yticklabels(), entries, strict=True):
        text.set_color(_LOST if what == "class" and not entry["kept"] else "black")
    axes.invert_yaxis()
    axes.set_xlabel("share [%]")
    axes.set_ylabel(what)
    axes.legend(frameon=False)
    return _address(figure)


def _figure(height: float = 3.4) -> tuple[Figure, Any]:
    with matplotlib.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(5.6, height), layout="constrained")
        return figure, figure.subplots()


def _address(figure: Figure) -> str:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130, facecolor="white")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
