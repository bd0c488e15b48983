"""What others choose, once, beside gradient matching and k-means per class; the test part is never looked at.

The rows, networks and rows held out are those of `covering.py`: each chooses 200 of 8,000 rows, the paper's network is
trained on them with the weights that it gives, and accuracy is that on rows held out. Tools that know nothing of
classes choose within each class, as many of each as its share. Seconds are of the processor, of the first set that a
process chooses from: idle threads of jax count in those after it.

- apricot, facility location: of the inputs; a row weighs as many rows as it is nearest to.
- coreax, kernel herding: of the inputs, by a Gaussian kernel as wide as the median distance; all rows weigh the same.
- CORDS, GradMatch: its matching pursuit, with lambda 0.5, of last-layer gradients at one untrained model.
- CRAIG, as in CORDS: facility location by apricot of the same gradients, within each class.

Results are appended to `results/peers.jsonl`; what is there is not repeated.

`python benchmarks/peers.py SET [...] [--seeds 0 1 2] [--sizes 200] [--epochs 200]`, after `make .venv/peers`
`python benchmarks/peers.py --table`
"""

import argparse
import logging
from collections.abc import Callable
from itertools import product
from statistics import mean, stdev
from typing import Any

import covering
import numpy as np
import torch
from covering import SETS, Chosen, Problem
from measure import peer
from torch import Tensor

import recollect as rc

covering.RESULTS = covering.RESULTS.with_name("peers.jsonl")


def needed(name: str) -> Any:
    """A module of somebody else's; the benchmark ends with what to do if it is not there."""
    found = peer(name)
    if isinstance(found, str):
        raise SystemExit(f"{name} must be installed: {found}; run make .venv/peers")
    return found


def by_class(choose: Callable[[Tensor, int], tuple[Any, Any]], E: Tensor, problem: Problem, size: int) -> Chosen:
    """What a function of vectors and a number of places chooses within each class, which has its share of places."""
    counts = problem.targets.bincount()
    shares = size * counts / counts.sum()
    places = shares.floor().long()
    for label in (shares - places).argsort(descending=True)[: size - int(places.sum())]:
        places[label] += 1  # largest remainders
    rows, weights = [], []
    for label in (places > 0).nonzero().flatten():
        mine = (problem.targets == label).nonzero().flatten()
        indices, some = choose(E[mine], int(places[label]))
        rows.append(mine[torch.tensor(np.asarray(indices).tolist())])
        weights.append(torch.tensor(np.asarray(some).tolist()).double())
    found, order = torch.cat(rows).sort()
    return found, torch.cat(weights)[order]


def features(problem: Problem) -> Tensor:
    return problem.inputs.flatten(1)


def facility_location(E: Tensor, places: int) -> tuple[Any, Any]:
    distances = torch.cdist(E, E).square()
    similarity = (distances.max() - distances).double().numpy()
    selection = needed("apricot").FacilityLocationSelection(places, metric="precomputed", optimizer="lazy")
    chosen = selection.fit(similarity).ranking
    nearest = distances[chosen].argmin(0)
    return chosen, nearest.bincount(minlength=len(chosen))


def kernel_herding(E: Tensor, places: int) -> tuple[Any, Any]:
    coreax, kernels, solvers = needed("coreax"), needed("coreax.kernels"), needed("coreax.solvers")
    median = float(torch.pdist(E[:1000]).median()) if len(E) > 1 else 1.0
    solver = solvers.KernelHerding(places, kernels.SquaredExponentialKernel(length_scale=median or 1.0))
    coreset, _ = solver.reduce(coreax.Data(E.numpy()))
    return coreset.unweighted_indices, np.full(places, len(E) / places)


def grad_match(problem: Problem, size: int, parts: list[Tensor]) -> Chosen:
    G = problem.rows("last 1 100000")
    solver = needed("cords.selectionstrategies.helpers.omp_solvers").OrthogonalMP_REG_Parallel_V1
    weights = solver(G.T, G.sum(0), nnz=size, positive=True, lam=0.5, tol=1e-100)  # as its configurations do
    found = torch.as_tensor(weights).flatten().double()
    rows = found.nonzero().flatten()
    return rows, found[rows]


covering.RULES = {
    "gradient matching": lambda p, size, parts: covering.memory(
        lambda n, seed: rc.GradientMatching(p.make_model, n, seed=seed), p, size, parts
    ),
    "k-means per class": covering.RULES["clustering"],
    "random": covering.RULES["random"],
    "apricot, facility location": lambda p, size, parts: by_class(facility_location, features(p), p, size),
    "coreax, kernel herding": lambda p, size, parts: by_class(kernel_herding, features(p), p, size),
    "CORDS, GradMatch": grad_match,
    "CRAIG, as in CORDS": lambda p, size, parts: by_class(facility_location, p.rows("last 1 100000"), p, size),
}


def print_table() -> None:
    results = covering.read()
    names = [name for name in SETS if any(r["dataset"] == name for r in results)]
    for size in sorted({r["size"] for r in results}):
        print(f"\n{size} kept\n\n| | " + " | ".join(names) + " | seconds |\n" + "|---" * (2 + len(names)) + "|")
        for rule in covering.RULES:
            some = [r for r in results if (r["rule"], r["size"]) == (rule, size)]
            cells = [told([mean(r["validation_accuracies"]) for r in some if r["dataset"] == name]) for name in names]
            seconds = [r["seconds"] for r in some if r["dataset"] == names[0]]
            print(f"| {rule} | " + " | ".join(cells) + f" | {mean(seconds):.1f} |" if seconds else f"| {rule} | |")


def told(values: list[float]) -> str:
    if not values:
        return ""
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "") + f" ({len(values)})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("datasets", nargs="*", choices=[*SETS, []])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--sizes", nargs="*", type=int, default=[200])
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.INFO)  # of what jax looks for and does not find
    for name, seed, size in product(asked.datasets, asked.seeds, asked.sizes):
        covering.measure(name, seed, size, "once", list(covering.RULES), asked.epochs)
    if asked.table:
        print_table()
