"""A first look: small memories of a stream of handwritten digits."""

from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from recollect import datasets, models, streams
from recollect.batch import Batch
from recollect.experiments.stacking import train_together
from recollect.files import replacing
from recollect.learners import GDumb
from recollect.memories import Clustering, GradientMatching, Herding, Memory, Reservoir
from recollect.progress import progress_bar

SIZES = (20, 50, 100, 200)
SEEDS = (0, 1, 2)
SHOWN_SIZE = 50

_COLORS = {
    "gradient matching": "#0b6e4f",
    "k-means per class": "#00a0b0",
    "herding": "#6a51a3",
    "reservoir": "#c8553d",
}
_MARKERS = ("o", "s", "D", "X")  # as not everybody can tell the colours apart


@dataclass(frozen=True)
class DemoResult:
    """Accuracies in percent by memory and size, one per seed, and the kept examples to show."""

    accuracies: dict[tuple[str, int], list[float]]
    kept: dict[str, Batch]
    n_train: int


def run_demo() -> DemoResult:
    """Fill memories from a class-incremental stream, train on each alone, test on all classes."""
    dataset = datasets.load("digits")
    stream = streams.class_incremental(dataset)
    make_model = partial(models.mlp, 64, dataset.n_classes)
    learners: list[tuple[str, int, GDumb]] = []
    with progress_bar("learning digits", 2 * len(_COLORS) * len(SIZES) * len(SEEDS)) as bar:
        for size, seed in product(SIZES, SEEDS):
            memories: dict[str, Memory] = {
                "gradient matching": GradientMatching(make_model, size, seed=seed),
                "k-means per class": Clustering(size, seed=seed),
                "herding": Herding(size, seed=seed),
                "reservoir": Reservoir(size, seed=seed),
            }
            for name, memory in memories.items():
                for inputs, targets in stream.batches:
                    memory.update(inputs, targets)
                learners.append((name, size, GDumb(make_model, memory, seed=seed)))
                bar.advance()
        accuracies: dict[tuple[str, int], list[float]] = {}
        for size in SIZES:  # all networks of one size at once
            some = [(name, learner) for name, other, learner in learners if other == size]
            tasks = [task for _, learner in some if (task := learner.pending()) is not None]
            train_together(tasks, some[0][1].training)
            for (name, learner), task in zip(some, tasks, strict=True):
                learner.accept(task.model)
                right = learner.predict(stream.test.inputs).argmax(1) == stream.test.targets
                accuracies.setdefault((name, size), []).append(100 * float(right.float().mean()))
                bar.advance()
    kept = {name: learner.memory.batch for name, size, learner in reversed(learners) if size == SHOWN_SIZE}
    return DemoResult(accuracies, kept, len(dataset.train.targets))


def print_demo(result: DemoResult, console: Console) -> None:
    """The accuracies as a table."""
    table = Table(title="Test accuracy on all ten digits, in percent")
    table.add_column("kept", justify="right")
    for name in _COLORS:
        table.add_column(name, justify="right")
    for size in SIZES:
        accuracies = [result.accuracies[name, size] for name in _COLORS]
        cells = [f"{mean(values):.1f} ± {stdev(values):.1f}" for values in accuracies]
        table.add_row(str(size), *cells)
    console.print(
        f"{result.n_train} digits arrive two classes at a time; a memory keeps a few; "
        "a fresh network is trained on the memory alone."
    )
    console.print(table)


def draw_demo(result: DemoResult, path: Path) -> None:
    """The kept digits and accuracy against size, as one picture."""
    with matplotlib.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(12.5, 5.4), layout="constrained")
        digits, curves = figure.subplots(1, 2, width_ratios=[1.15, 1])
        _draw_digits(digits, result.kept["gradient matching"])
        _draw_curves(curves, result)
        with replacing(path) as file:
            figure.savefig(file, format=path.suffix[1:], dpi=150)


def _draw_digits(axes: Axes, batch: Batch) -> None:
    """One row per class, heaviest first; the darker the frame, the more digits an example stands for."""
    assert not isinstance(batch.inputs, dict | tuple)
    images, targets, weights = batch.inputs[:, 0].numpy(), batch.targets.numpy(), batch.weights.numpy()
    columns = int(np.bincount(targets).max())
    for digit in range(10):
        rows = np.flatnonzero(targets == digit)
        for column, row in enumerate(rows[np.argsort(-weights[rows])]):
            x, y = 1.16 * column, 9 - digit
            shade = float(weights[row] / weights.max())
            axes.add_patch(
                matplotlib.patches.Rectangle((x, y * 1.16), 1.1, 1.1, color=matplotlib.colormaps["Greens"](shade))
            )
            axes.imshow(
                1 - images[row], cmap="gray", zorder=2, extent=(x + 0.08, x + 1.02, y * 1.16 + 0.08, y * 1.16 + 1.02)
            )
    axes.set_xlim(-0.1, 1.16 * columns + 0.1)
    axes.set_ylim(-0.1, 11.7)
    axes.set_axis_off()
    axes.set_title(f"The {len(batch)} digits kept by gradient matching\n(greener: stands for more of the stream)")


def _draw_curves(axes: Axes, result: DemoResult) -> None:
    for (name, color), marker in zip(_COLORS.items(), _MARKERS, strict=True):
        values = np.array([result.accuracies[name, size] for size in SIZES])
        middle, spread = values.mean(1), values.std(1, ddof=1)
        axes.plot(SIZES, middle, color=color, marker=marker, ms=7, lw=2.2, label=name)
        axes.fill_between(SIZES, middle - spread, middle + spread, color=color, alpha=0.18, lw=0)
    axes.legend(frameon=False, loc="lower right")
    axes.set_xscale("log")
    axes.set_xticks(SIZES, [str(size) for size in SIZES])
    axes.minorticks_off()
    axes.set_xlabel(f"examples kept, of {result.n_train}")
    axes.set_ylabel("test accuracy, all ten digits [%]")
    axes.grid(axis="y", alpha=0.25)
    axes.set_title(f"Trained from scratch on the memory alone\n(mean and deviation over {len(SEEDS)} seeds)")
