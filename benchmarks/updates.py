"""What small updates cost, and what they do to the match.

The claim: 10,000 updates of one row into a memory of 200 take at most 5 times as long as one update of 10,000 rows.
Times are of the processor, one thread, in turns with the one large update; errors at initialisations that nothing was
chosen for.

`python benchmarks/updates.py [rows per update ...]`; 1, 10, 100 and 1000 by default.
`python benchmarks/updates.py --drawn` varies how many candidates single rows have for each place, over the stream.
`python benchmarks/updates.py --along` measures the error of digits along the stream, not at its end alone.
"""

import sys
import time
import warnings
from functools import partial

import torch
from table import print_table

import recollect as rc
from recollect.memories.gradient_matching import choosing

ROWS, KEPT = 10_000, 200


def take_in(memory: rc.Memory, data: tuple[torch.Tensor, torch.Tensor], size: int) -> float:
    """Seconds of processor time to take in all the data in updates of this size."""
    start = time.process_time()
    for inputs, targets in zip(data[0].split(size), data[1].split(size), strict=True):
        memory.update(inputs, targets)
    return time.process_time() - start


def some_of(name: str, seed: int) -> tuple[tuple[torch.Tensor, torch.Tensor], partial[torch.nn.Sequential]]:
    """Rows of a data set in a random order, and the paper's network for them."""
    dataset = rc.datasets.load(name)
    inputs, targets = dataset.train
    rows = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))[:ROWS]
    return (inputs[rows], targets[rows]), partial(rc.models.mlp, inputs.shape[1], dataset.n_classes)


def vary_drawn() -> None:
    """What fewer candidates would save, and cost."""
    table: list[list[object]] = []
    for name in ("covertype", "ldpa", "walking-activity"):
        for drawn in (4.0, 3.0, 2.0, 1.5):
            choosing.DRAWN = drawn
            seconds, errors = [], []
            for seed in range(3):
                data, make_model = some_of(name, seed)
                memory = rc.GradientMatching(make_model, KEPT, seed=seed)
                seconds.append(take_in(memory, data, 1))
                errors.append(rc.matching_error(make_model, data, memory.batch, seed=99))
            table.append([name, drawn, sum(seconds) / 3, sum(errors) / 3])
    print_table("Single rows, three seeds", ["rows of", "drawn for each place", "seconds", "fresh error"], table)


def along() -> None:
    """The error at the draws of a memory, after each hundred rows of a stream, by capacity and rows per update."""
    inputs, targets = rc.datasets.load("digits").train
    make_model = partial(rc.models.mlp, 64, 10)
    table: list[list[object]] = []
    for capacity, size in ((50, 100), (38, 100), (50, 1), (50, 10), (50, 12)):
        true, told = [], []
        for seed in range(3):
            order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
            embedding = rc.GradientEmbedding(make_model, layers="auto", projection="auto", seed=seed)
            rows = embedding.embed(inputs[order], targets[order]).double()
            memory, seen = rc.GradientMatching(make_model, capacity, seed=seed), 0
            for part in order.split(size):
                memory.update(inputs[part], targets[part])
                seen += len(part)
                if seen >= 200 and seen % 100 < size:
                    full = rows[:seen].sum(0)
                    kept = memory.batch.weights.double() @ rows[memory.batch.ids]
                    true.append(float((kept - full).norm() / full.norm()))
                    told.append(memory.error)
        table.append([capacity, size, sum(true) / len(true), max(true), sum(told) / len(told)])
    header = ["capacity", "rows per update", "error", "largest", "memory.error"]
    print_table("Digits in a random order, three seeds", header, table)


def main(sizes: list[int]) -> None:
    data, make_model = some_of("covertype", 0)
    take_in(rc.GradientMatching(make_model, KEPT), data, ROWS)  # everything is loaded and warm
    table: list[list[object]] = []
    for size in [*sizes, ROWS]:
        memory = rc.GradientMatching(make_model, KEPT)
        once = [take_in(rc.GradientMatching(make_model, KEPT), data, ROWS) for _ in range(2)]
        seconds = take_in(memory, data, size)
        once.append(take_in(rc.GradientMatching(make_model, KEPT), data, ROWS))
        error = rc.matching_error(make_model, data, memory.batch, inits=4)
        table.append([size, seconds, seconds / (sum(once) / 3), len(memory), memory.error, error])
    header = ["rows per update", "seconds", "times one update of all", "held", "fitted error", "fresh error"]
    print_table(f"{ROWS:,} Covertype rows into {KEPT}, MLP", header, table)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if "--drawn" in sys.argv:
        vary_drawn()
    elif "--along" in sys.argv:
        along()
    else:
        main([int(size) for size in sys.argv[1:]] or [1, 10, 100, 1000])
