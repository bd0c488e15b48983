"""Which projection, how many initialisations S, how many numbers d each? Matching error against seconds.

The error is that of the chosen rows at fresh initialisations, without projection; seconds are those of embedding and
choosing. Means over a few seeds. The default is chosen from this table: see docs/how-it-works.md.

`python benchmarks/settings.py [covertype] [fashion]`; both by default.
"""

import sys
import time
from functools import partial
from statistics import mean

import torch
from table import print_table

import recollect as rc

SETTINGS = [
    ("kronecker", 10, 1000),
    ("sparse", 10, 1000),
    ("kronecker", 3, 1000),
    ("kronecker", 5, 1000),
    ("kronecker", 20, 500),
    ("kronecker", 50, 200),
    ("kronecker", 10, 500),
    ("kronecker", 20, 250),
    ("kronecker", 10, 250),
    ("kronecker", 25, 100),
]


def compare(name: str, rows: int, kept: int, make_model: "partial[torch.nn.Module]", seeds: int) -> None:
    train = rc.datasets.load(name).train
    chosen = torch.randperm(len(train.targets), generator=torch.Generator().manual_seed(0))[:rows]
    data = (train.inputs[chosen], train.targets[chosen])
    table: list[list[object]] = []
    for projection, inits, dim in SETTINGS:
        embed_seconds, pursue_seconds, errors = [], [], []
        for seed in range(seeds):
            start = time.perf_counter()
            embedding = rc.GradientEmbedding(make_model, projection=projection, inits=inits, dim=dim, seed=seed)
            embeddings = embedding.embed(*data)
            embed_seconds.append(time.perf_counter() - start)
            start = time.perf_counter()
            coreset = rc.pursue(embeddings, kept)
            pursue_seconds.append(time.perf_counter() - start)
            errors.append(rc.matching_error(make_model, data, coreset, inits=5))
        spread = max(errors) - min(errors)
        row = [f"{projection}, S={inits}, d={dim}", inits * dim, mean(embed_seconds), mean(pursue_seconds)]
        table.append([*row, mean(errors), spread])
    header = ["", "numbers", "embed [s]", "pursue [s]", "error", "largest less smallest"]
    print_table(f"{kept} of {rows:,} rows of {name}, {torch.get_num_threads()} threads, {seeds} seeds", header, table)


def covertype() -> None:
    compare("covertype", 20_000, 500, partial(rc.models.mlp, 54, 7), 3)


def fashion() -> None:
    compare("fashion-mnist", 3000, 200, partial(rc.models.cnn, (1, 28, 28), 10), 2)


if __name__ == "__main__":
    for name in sys.argv[1:] or ["covertype", "fashion"]:
        globals()[name]()
