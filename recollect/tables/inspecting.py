"""What a store has seen and keeps, as plain data, as tables for a terminal and as a page."""

import base64
import io
from importlib import resources
from typing import Any

import matplotlib
import numpy as np
from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure
from rich.table import Table

from recollect.tables.store import Store
from recollect.terminal import cell

_INK = "#1f6fb4"
_MANY = 30  # classes or files shown in a plot at most


def inspection(store: Store) -> dict[str, Any]:
    """Counts by class and by file, weights, matching error over time, and what drifted."""
    about: dict[str, Any] = {"store": str(store.folder), "settings": store.settings.as_data(), "seen": 0, "kept": 0}
    if not store.number():
        return {**about, "task": None, "classes": [], "files": [], "weights": []}
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
        more = {name: getattr(entry, name) for name in ("hash", "time", "error", "seconds", "rows_per_second", "drift")}
        files.append({**_counts(entry.name, entry.rows, weights[mine]), **more})
    about |= {"seen": held.memory.seen, "kept": len(batch), "task": held.encoding.task}
    return {**about, "classes": classes, "files": files, "weights": weights.tolist()}


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
    template = resources.files("recollect.tables").joinpath("inspect.html.j2").read_text()
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(found=found, plots=_plots(found))


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
    for title, entries in (("By class", found["classes"]), ("By file", found["files"])):
        if entries:
            plots.append((f"{title}: share of the rows seen, and of the weight kept", _shares(entries[:_MANY])))
    errors = [entry["error"] for entry in found["files"] if entry["error"] is not None]
    if errors:
        figure, axes = _figure()
        axes.plot(range(1, len(errors) + 1), errors, color=_INK, marker="o", ms=4)
        axes.set(xlabel="files taken", ylabel="matching error")
        axes.set_ylim(bottom=0)
        plots.append(("Matching error over time", _address(figure)))
    if found["weights"]:
        figure, axes = _figure()
        axes.hist(found["weights"], bins=40, color=_INK)
        axes.set(xlabel="weight", ylabel="rows")
        plots.append(("Weights of the kept rows", _address(figure)))
    return plots


def _shares(entries: list[dict[str, Any]]) -> str:
    figure, axes = _figure()
    places = np.arange(len(entries))
    for i, (key, color, label) in enumerate((("seen", "#9aa5a0", "seen"), ("weight", _INK, "weight kept"))):
        values = np.array([float(entry[key]) for entry in entries])
        axes.bar(places + 0.4 * i - 0.2, values / max(values.sum(), 1e-12), width=0.4, color=color, label=label)
    # A dollar sign would start a formula.
    names = [entry["name"][:14].replace("$", "\\$").replace("\n", " ") for entry in entries]
    axes.set_xticks(places, names, rotation=60 if len(names) > 6 else 0)
    axes.set_ylabel("share")
    axes.legend(frameon=False)
    return _address(figure)


def _figure() -> tuple[Figure, Any]:
    with matplotlib.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(5.6, 3.4), layout="constrained")
        return figure, figure.subplots()


def _address(figure: Figure) -> str:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130, facecolor="white")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
