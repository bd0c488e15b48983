"""Draws the pictures of docs/concepts.md from real runs on points in the plane: `make pictures`."""

from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import make_moons
from torch import Tensor

import recollect as rc

FOLDER = Path(__file__).parent / "images" / "concepts"
COLORS = np.array(["#1f6fb4", "#c8553d"])
SEEDS = (0, 1, 2)
SIZES = (5, 10, 20, 50, 100)
STYLE: Any = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}

make_model = partial(rc.models.mlp, 2, 2)


def points() -> tuple[Tensor, Tensor]:
    """Two moons, of which one has four times as many points as the other."""
    inputs, targets = make_moons(1600, noise=0.18, random_state=0)
    keep = (targets == 0) | (np.arange(1600) % 4 == 0)
    return torch.tensor(inputs[keep], dtype=torch.float32), torch.tensor(targets[keep])


def random_choice(n: int, size: int, seed: int) -> rc.Coreset:
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:size]
    return rc.Coreset(rows, torch.full((size,), n / size, dtype=torch.float64), float("nan"))


def equal_weights(coreset: rc.Coreset, n: int) -> rc.Coreset:
    """The same rows, all standing for as many examples."""
    return rc.Coreset(coreset.indices, torch.full((len(coreset),), n / len(coreset), dtype=torch.float64), float("nan"))


def fresh_error(inputs: Tensor, targets: Tensor, coreset: rc.Coreset) -> float:
    return rc.matching_error(make_model, (inputs, targets), coreset, inits=4)


def by_size(axes: Axes, curves: dict[str, tuple[str, list[list[float]]]]) -> None:
    for name, (color, errors) in curves.items():
        axes.plot(SIZES, np.mean(errors, 1), color=color, marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel="examples kept")
    axes.set_xticks(SIZES, [str(size) for size in SIZES])
    axes.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5], ["2 %", "5 %", "10 %", "20 %", "50 %"])
    axes.minorticks_off()
    axes.grid(axis="y", alpha=0.25)
    axes.set_title("distance from the gradient of all,\nat initialisations not seen before")
    axes.legend(frameon=False)


def scatter(axes: Axes, inputs: Tensor, targets: Tensor, sizes: Tensor | float, alpha: float = 1.0) -> None:
    axes.scatter(inputs[:, 0], inputs[:, 1], s=sizes, c=COLORS[targets], alpha=alpha, lw=0.4, edgecolors="white")


def bare(axes: Axes, title: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_xlim(-1.6, 2.6)
    axes.set_ylim(-1.2, 1.7)
    axes.set_title(title)


def draw_kept(inputs: Tensor, targets: Tensor) -> Figure:
    """All points, and those kept with their weights."""
    figure = Figure(figsize=(7.6, 3.4), layout="constrained")
    everything, kept = figure.subplots(1, 2)
    scatter(everything, inputs, targets, 9, 0.7)
    bare(everything, f"{len(targets)} examples of two classes")
    coreset = rc.select(make_model, inputs, targets, 20, layers="all")
    scatter(kept, inputs, targets, 6, 0.12)
    scatter(kept, inputs[coreset.indices], targets[coreset.indices], 4 * coreset.weights)
    bare(kept, "20 of them, as large as their weight")
    return figure


def draw_matching(inputs: Tensor, targets: Tensor) -> Figure:
    """How well subsets of several sizes match."""
    figure = Figure(figsize=(5.0, 3.4), layout="constrained")
    chosen = [
        [rc.select(make_model, inputs, targets, size, layers="all", seed=seed) for seed in SEEDS] for size in SIZES
    ]
    drawn = [[random_choice(len(targets), size, seed) for seed in SEEDS] for size in SIZES]
    errors = [[[fresh_error(inputs, targets, c) for c in some] for some in both] for both in (drawn, chosen)]
    by_size(figure.subplots(), {"random": ("#c8553d", errors[0]), "gradient matching": ("#0b6e4f", errors[1])})
    return figure


def draw_weights(inputs: Tensor, targets: Tensor) -> Figure:
    """How well the chosen match with their weights, and with equal ones."""
    figure = Figure(figsize=(6.2, 4.2), layout="constrained")
    n = len(targets)
    fitted, equal = [], []
    for size in SIZES:
        some = [rc.select(make_model, inputs, targets, size, layers="all", seed=seed) for seed in SEEDS]
        fitted.append([fresh_error(inputs, targets, c) for c in some])
        equal.append([fresh_error(inputs, targets, equal_weights(c, n)) for c in some])
    by_size(
        figure.subplots(),
        {"the same rows, equal weights": ("#999999", equal), "with their own weights": ("#0b6e4f", fitted)},
    )
    return figure


def draw_initialisations(inputs: Tensor, targets: Tensor) -> Figure:
    """How well 20 examples match at the draws they were chosen for and at others, by the number of draws."""
    figure = Figure(figsize=(6.2, 3.8), layout="constrained")
    axes = figure.subplots()
    draws = (1, 2, 3, 5, 10, 20)
    coresets = [
        [rc.select(make_model, inputs, targets, 20, layers="all", inits=S, seed=seed) for seed in SEEDS] for S in draws
    ]
    fitted = [np.mean([c.error for c in some]) for some in coresets]
    fresh = [np.mean([fresh_error(inputs, targets, c) for c in some]) for some in coresets]
    axes.plot(draws, fresh, marker="o", color="#0b6e4f", label="at other draws")
    axes.plot(draws, fitted, marker="o", color="#999999", label="at the draws they were chosen for")
    axes.set(xscale="log", xlabel="S, initialisations matched")
    axes.set_title("distance from the gradient of all, with 20 kept")
    axes.set_ylim(0, 0.05)
    axes.set_yticks([0.0, 0.01, 0.02, 0.03, 0.04, 0.05], [f"{percent} %" for percent in range(6)])
    axes.grid(axis="y", alpha=0.25)
    axes.set_xticks(draws, [str(S) for S in draws])
    axes.minorticks_off()
    axes.legend(frameon=False)
    return figure


def main() -> None:
    """Draw all."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    inputs, targets = points()
    with matplotlib.rc_context(STYLE):
        for name, draw in (
            ("kept", draw_kept),
            ("matching", draw_matching),
            ("weights", draw_weights),
            ("initialisations", draw_initialisations),
        ):
            draw(inputs, targets).savefig(FOLDER / f"{name}.png", dpi=130)


if __name__ == "__main__":
    main()
