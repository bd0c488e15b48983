"""BatchNorm at initialisation: statistics of the first examples, or none?

ResNet-18 on CIFAR-10, 100 of 1500 images. In training, BatchNorm normalises by the minibatch, so the gradients that
count are those with statistics of real data: the error at fresh initialisations is measured with them.
"""

import sys
import time
from functools import partial

import torch
from table import print_table

import recollect as rc

ROWS, KEPT = 1500, 100


def main(seeds: int = 2) -> None:
    train = rc.datasets.load("cifar-10").train
    rows = torch.randperm(len(train.targets), generator=torch.Generator().manual_seed(0))[:ROWS]
    data = (train.inputs[rows], train.targets[rows])
    make_model = partial(rc.models.resnet18, 10)
    fresh = partial(rc.matching_error, make_model, data, inits=2)
    equal = torch.full((KEPT,), ROWS / KEPT, dtype=torch.float64)
    table: list[list[object]] = [["uniform random", "", "", fresh(rc.Coreset(torch.arange(KEPT), equal, 0.0)), ""]]
    for calibrate in (True, False):
        for seed in range(seeds):
            start = time.perf_counter()
            coreset = rc.select(make_model, *data, KEPT, layers="all", calibrate=calibrate, inits=3, seed=seed)
            seconds = time.perf_counter() - start
            name = "statistics of the first examples" if calibrate else "as initialised"
            table.append([f"{name}, seed {seed}", len(coreset), coreset.error, fresh(coreset), seconds])
    header = ["", "kept", "fitted error", "fresh error", "seconds"]
    print_table(f"ResNet-18, {KEPT} of {ROWS} CIFAR-10 images", header, table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
