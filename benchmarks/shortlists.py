"""Error at fresh initialisations by rule of picking, length of the shortlist and whether the count is held.

The claim: least squares with the default shortlist has at most 0.85 of the error of the inner product with all
candidates at 200 kept, and 0.92 at 1000. 20,000 rows of the tables (MLP), 12,000 images of Fashion-MNIST (CNN, last
layer); the error is that of the gradients matched, unprojected, at four draws that nothing was chosen for.

`python benchmarks/shortlists.py [data set ...] [--tried] [--seeds N]`; each line is written as it is known. `--tried`
shows other values of lambda, and one pick per scan, instead.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import recollect as rc
from recollect.candidates import shortlisted
from recollect.dictionary import taken

TABLES = ("covertype", "walking-activity", "ldpa")
SETTINGS: dict[str, dict[str, Any]] = {
    "inner product, all": {"rule": "inner-product", "shortlist": None},
    "least squares, 5": {"shortlist": 5},
    "least squares, 10": {"shortlist": 10},
    "least squares, 20": {"shortlist": 20},
    "least squares, 10, count held": {"shortlist": 10, "hold_count": True},
}
TRIED: dict[str, dict[str, Any]] = {
    "inner product, all": {"rule": "inner-product", "shortlist": None},
    **{f"lambda {value:g}": {"shortlist": 10, "regularization": value} for value in (1e-5, 1e-4, 1e-3, 3e-3, 1e-2)},
    "one pick per scan": {"shortlist": 10, "exact": True},
}


def fresh_error(make_model: Any, data: tuple[Any, Any], seed: int, layers: str) -> Callable[[rc.Coreset], float]:
    """As `rc.matching_error` for some layers, with the sum over all data computed once."""
    embedding = rc.GradientEmbedding(make_model, inits=4, projection=None, layers=layers, seed=seed + 1000)
    total = embedding.total(*data)

    def error(coreset: rc.Coreset) -> float:
        left = total.clone()
        for rows, weights in zip(coreset.indices.split(100), coreset.weights.split(100), strict=True):
            left -= weights @ embedding.embed(data[0][rows], data[1][rows]).double()
        return float(left.norm() / total.norm())

    return error


def main(names: list[str], settings: dict[str, dict[str, Any]], seeds: int) -> None:
    print("data | kept | seed | setting | fitted error | fresh error | of the first | weights add up to")
    for seed in range(seeds):
        for name in names:
            dataset = rc.datasets.load(name)
            n = 20_000 if name in TABLES else 12_000
            rows = torch.randperm(len(dataset.train.targets), generator=torch.Generator().manual_seed(seed))[:n]
            data = (dataset.train.inputs[rows], dataset.train.targets[rows])
            layers = "all" if name in TABLES else "last"
            make_model: Any = partial(rc.models.cnn, (1, 28, 28), 10)
            if name in TABLES:
                make_model = partial(rc.models.mlp, data[0].shape[1], dataset.n_classes)
            candidates = rc.GradientEmbedding(make_model, seed=seed, layers=layers).dictionary(*data)
            target, error = candidates.sum(), fresh_error(make_model, data, seed, layers)
            for size in (200, 1000):
                first = 0.0
                for setting, options in settings.items():
                    others = {"hold_count": False, **{k: v for k, v in options.items() if k != "shortlist"}}
                    some = shortlisted(torch.arange(n), size, options["shortlist"], seed)
                    found = candidates if some is None else taken(candidates, some)
                    coreset = rc.pursue(found, size, target=target, count=n, **others)
                    indices = coreset.indices if some is None else some[coreset.indices]
                    fresh = error(rc.Coreset(indices, coreset.weights, coreset.error))
                    first = first or fresh
                    facts = f"{coreset.error:.4f} | {fresh:.4f} | {fresh / first:.3f} | {coreset.weights.sum() / n:.3f}"
                    print(f"{name} | {size} | {seed} | {setting} | {facts}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=[*TABLES, "fashion-mnist"])
    parser.add_argument("--tried", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    main(given.names, TRIED if given.tried else SETTINGS, given.seeds)
