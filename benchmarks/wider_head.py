"""What is lost where a memory is rebuilt for a wider head, out of what it holds, once a new class arrives.

Digits: the first nine classes come in three updates, then the tenth. Errors are those of the gradients of the network
with ten outputs, at draws that nothing was chosen for, over everything seen; three seeds.

`python benchmarks/wider_head.py`
"""

from functools import partial

import torch
from table import print_table

import recollect as rc

SIZES, SEEDS = (50, 100, 200), 3


def main() -> None:
    torch.set_num_threads(1)
    inputs, targets = rc.datasets.load("digits").train
    old, new = (targets < 9).nonzero()[:, 0], (targets == 9).nonzero()[:, 0]
    everything = torch.cat([old, new])
    narrow, wide = partial(rc.models.mlp, 64, 9), partial(rc.models.mlp, 64, 10)
    table: list[list[object]] = []
    for size in SIZES:
        found: tuple[list[float], ...] = ([], [], [])
        for seed in range(SEEDS):
            before = rc.GradientMatching(narrow, size, layers="all", seed=seed)
            foreseen, rebuilt = (rc.GradientMatching(wide, size, layers="all", seed=seed) for _ in range(2))
            uniform = rc.Reservoir(size, seed=seed)
            for rows in old.split(400):
                for memory in (before, foreseen, uniform):
                    memory.update(inputs[rows], targets[rows])
            rebuilt.update(before.batch.inputs, before.batch.targets, weights=before.batch.weights)
            for errors, wider in zip(found, (foreseen, rebuilt, uniform), strict=True):
                wider.update(inputs[new], targets[new])
                errors.append(rc.matching_error(wide, (inputs[everything], targets[everything]), wider.batch))
        table.append([size, *(sum(errors) / SEEDS for errors in found)])
    header = ["kept", "made for ten classes from the start", "rebuilt", "reservoir, whatever the head"]
    print_table("error at fresh initialisations of the wider network", header, table)


if __name__ == "__main__":
    main()
