"""How well 500 of 20,000 Covertype rows match the gradient of all, at initialisations they were not chosen for.

The claim: at most 0.30 of the error of a uniform random subset with equal weights. And what each way to
keep weights nonnegative does to it.
"""

import time
from functools import partial

import torch
from table import print_table

import recollect as rc

ROWS, KEPT = 20_000, 500


def main() -> None:
    dataset = rc.datasets.load("covertype")
    generator = torch.Generator().manual_seed(0)
    rows = torch.randperm(len(dataset.train.targets), generator=generator)[:ROWS]
    data = (dataset.train.inputs[rows], dataset.train.targets[rows])
    make_model = partial(rc.models.mlp, 54, 7)
    fresh = partial(rc.matching_error, make_model, data)

    equal = torch.full((KEPT,), ROWS / KEPT, dtype=torch.float64)
    subsets = [rc.Coreset(torch.randperm(ROWS, generator=generator)[:KEPT], equal, 0.0) for _ in range(5)]
    uniform = sum(fresh(subset) for subset in subsets) / len(subsets)
    table: list[list[object]] = [["uniform random, mean of 5", "", "", "", KEPT, uniform, 1.0]]
    for projection in ("kronecker", "sparse"):
        start = time.perf_counter()
        embedding = rc.GradientEmbedding(make_model, inits=10, dim=1000, projection=projection)
        embeddings = embedding.embed(*data)
        seconds = time.perf_counter() - start
        for regularization in (0.001, 0.05):
            for nonnegative in (True, "clip", False):
                start = time.perf_counter()
                coreset = rc.pursue(embeddings, KEPT, regularization=regularization, nonnegative=nonnegative)
                name = f"{projection}, lambda {regularization}, nonnegative={nonnegative!r}"
                error = fresh(coreset)
                table.append(
                    [name, seconds, time.perf_counter() - start, coreset.error, len(coreset), error, error / uniform]
                )
    header = ["", "embed [s]", "pursue [s]", "fitted error", "kept", "fresh error", "of uniform"]
    print_table(f"Matching error, {KEPT} of {ROWS} Covertype rows, MLP, S=10, d=1000", header, table)


if __name__ == "__main__":
    main()
