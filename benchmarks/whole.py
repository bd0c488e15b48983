"""What it takes to choose from a whole data set: time beside plain passes, and memory beside the examples.

`covertype`: 1000 of all 464,809 training rows, MLP. `fashion`: 1000 of 60,000 images, CNN. `every-layer`: the same with
the gradients of all layers; the claim is at most 1.15 times S plain forward and backward passes, and 500 MB. Each in a
process of its own, on one thread; seconds are those of the processor, and a plain pass is timed before and after, over
all the examples, at the same batch size.

`python benchmarks/whole.py [covertype] [fashion] [every-layer]`; all by default.
"""

import multiprocessing
import sys
import time
import warnings
from functools import partial
from typing import Any

import torch
from estimating import peak
from table import print_table
from torch.nn import functional as F

import recollect as rc

CASES: dict[str, tuple[str, Any, str]] = {
    "covertype": ("covertype", partial(rc.models.mlp, 54, 7), "auto"),
    "fashion": ("fashion-mnist", partial(rc.models.cnn, (1, 28, 28), 10), "auto"),
    "every-layer": ("fashion-mnist", partial(rc.models.cnn, (1, 28, 28), 10), "all"),
}
SIZE, S, BATCH = 1000, 10, 128


def plain_pass(make_model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Seconds of a forward and backward pass over all examples."""
    model = make_model()
    start = time.process_time()
    for x, y in zip(inputs.split(BATCH), targets.split(BATCH), strict=True):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
    return time.process_time() - start


def measured(name: str) -> list[object]:
    data, make_model, layers = CASES[name]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    inputs, targets = rc.datasets.load(data).train
    rc.select(make_model, inputs[:64], targets[:64], 2, inits=1, layers=layers)  # what is slow only once
    passes = [plain_pass(make_model, inputs, targets)]
    before, start = peak(again=True), time.process_time()
    coreset = rc.select(make_model, inputs, targets, SIZE, inits=S, layers=layers)
    seconds, used = time.process_time() - start, peak() - before
    passes.append(plain_pass(make_model, inputs, targets))
    plain = S * sum(passes) / 2
    return [name, len(inputs), plain, seconds, seconds / plain, used / 1e6, peak() / 1e6, coreset.error]


def main(names: list[str]) -> None:
    rows = []
    for name in names or list(CASES):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append(pool.apply(measured, (name,)))
            print(rows[-1], flush=True)
    header = ["", "examples", f"{S} plain passes [s]", "select [s]", "ratio", "MB beside them", "MB in all", "error"]
    print_table(f"Choosing {SIZE} of everything", header, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
