"""Whether `estimate` foretells what `select` then takes: seconds, and the peak of memory beyond what was there.

Each case runs in a process of its own, on one thread, and seconds are those of the processor, so that others at work on
the machine do not count. `python benchmarks/estimating.py [name ...]`
"""

import multiprocessing
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from embedding import sample
from table import print_table

import recollect as rc

CASES: dict[str, tuple[str, int, Any, int, dict[str, Any]]] = {
    "MLP, shortlist": ("covertype", 20_000, partial(rc.models.mlp, 54, 7), 200, {}),
    "MLP, shortlist, 1000 kept": ("covertype", 20_000, partial(rc.models.mlp, 54, 7), 1000, {}),
    "MLP, all candidates": ("covertype", 8_000, partial(rc.models.mlp, 54, 7), 200, {"shortlist": None}),
    "MLP, the paper's settings": ("covertype", 4_000, partial(rc.models.mlp, 54, 7), 100, rc.PAPER),
    "MLP, last layer": ("covertype", 20_000, partial(rc.models.mlp, 54, 7), 200, {"layers": "last"}),
    "CNN, shortlist": ("fashion-mnist", 2_500, partial(rc.models.cnn, (1, 28, 28), 10), 100, {"inits": 4}),
    "CNN, all candidates": (
        "fashion-mnist",
        1_500,
        partial(rc.models.cnn, (1, 28, 28), 10),
        100,
        {"inits": 4, "shortlist": None},
    ),
}


def peak(*, again: bool = False) -> int:
    """The most memory that was in use so far, or since now (Linux)."""
    if again:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def measured(name: str, real: bool) -> tuple[float, int]:
    data, rows, make_model, size, options = CASES[name]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    time.perf_counter = time.process_time
    inputs, targets = sample(data, rows)
    if not real:
        cost = rc.estimate(make_model, inputs, targets, size, **options)
        return cost.seconds, cost.bytes
    rc.select(make_model, inputs[:64], targets[:64], 2, **{**options, "inits": 1})  # what is slow only once
    before, began = peak(again=True), time.perf_counter()
    rc.select(make_model, inputs, targets, size, **options)
    return time.perf_counter() - began, peak() - before


def main(names: list[str]) -> None:
    rows: list[list[object]] = []
    spawn = multiprocessing.get_context("spawn")
    for name in names or list(CASES):
        results = []
        for real in (False, True):
            with spawn.Pool(1) as pool:
                results.append(pool.apply(measured, (name, real)))
        (seconds, size), (took, used) = results
        rows.append([name, seconds, took, seconds / took, size / 1e6, used / 1e6, size / max(used, 1)])
        print(rows[-1], flush=True)
    header = ["", "estimated [s]", "took [s]", "ratio", "estimated [MB]", "used [MB]", "ratio"]
    print_table("Estimates before running", header, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
