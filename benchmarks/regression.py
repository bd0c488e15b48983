"""Regression: the error of a network trained on what each memory keeps.

The target is Covertype's elevation, or the acceleration x of Walking Activity with the walker among the inputs;
standardised, so that predicting the mean costs 1. Of 4000 rows some are chosen once, or as they arrive in five
updates, sorted by the first input. GDumb's network, with its usual training on the weighted rows, is tested on 8000
rows of the test part; with `--validation` on as many other rows of the training part, which is how settings were
chosen. Gradients are projected to 300 numbers for each of 10 initialisations, whatever the way.
Results are appended to `results/regression.jsonl`; what is there is not repeated.
Run as `python benchmarks/regression.py [--validation] [table ...] [once] [sorted] [seed ...]`; takes about
two minutes per seed on a quiet core. `--table` runs nothing, and prints what is there.
"""

import argparse
import json
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
from table import print_table
from torch import Tensor
from torch.nn.functional import one_hot

import recollect as rc

RESULTS = Path(__file__).parent.parent / "results" / "regression.jsonl"
SIZES = (100, 500, 1000)
ROWS, HELD_OUT, UPDATES = 4_000, 8_000, 5
DIM = 300
ARRIVALS = ("once", "sorted")
COLUMNS = {"covertype": 0, "walking-activity": 1}
OLD: dict[str, Any] = {"rule": "inner-product", "shortlist": None}
WAYS: dict[str, dict[str, Any] | None] = {
    "GradientMatching": {},
    "Reservoir": None,
    "Clustering": None,
    "the old default": {"scale_outputs": False, **OLD},
}
TRIED: dict[str, dict[str, Any] | None] = {
    "outputs as they are": {"scale_outputs": False},
    "all layers": {"layers": "all"},
    "last layer": {"layers": "last"},
}


class Table(NamedTuple):
    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor


def load(name: str, seed: int, validation: bool) -> Table:
    dataset, column = rc.datasets.load(name), COLUMNS[name]

    def part(examples: rc.datasets.Examples, rows: Tensor) -> tuple[Tensor, Tensor]:
        inputs, labels = examples.inputs[rows], examples.targets[rows]
        others = [i for i in range(inputs.shape[1]) if i != column]
        extra = [one_hot(labels, dataset.n_classes).float()] if name == "walking-activity" else []
        return torch.cat([inputs[:, others], *extra], 1), inputs[:, column : column + 1]

    order = torch.randperm(len(dataset.train.targets), generator=torch.Generator().manual_seed(seed))
    if validation:
        held_out = part(dataset.train, order[ROWS : ROWS + HELD_OUT])
    else:
        generator = torch.Generator().manual_seed(seed)
        held_out = part(dataset.test, torch.randperm(len(dataset.test.targets), generator=generator)[:HELD_OUT])
    return Table(*part(dataset.train, order[:ROWS]), *held_out)


def measure(name: str, seed: int, validation: bool, arrival: str, ways: dict[str, dict[str, Any] | None]) -> None:
    done = {(r["table"], r["seed"], r["validation"], r["arrival"], r["memory"], r["size"]) for r in read()}
    for way, options in ways.items():
        todo = [s for s in SIZES if (name, seed, validation, arrival, way, s) not in done]
        if not todo:
            continue
        table = load(name, seed, validation)
        make_model = partial(rc.models.mlp, table.inputs.shape[1], 1)
        memories = make_memories(make_model, way, options, todo, seed)
        order = table.inputs[:, 0].argsort(stable=True)
        for rows in [torch.arange(ROWS)] if arrival == "once" else order.chunk(UPDATES):
            feed(memories, table.inputs[rows], table.targets[rows])
        for memory in memories:
            learner = rc.GDumb(make_model, memory, loss="squared_error", seed=seed)
            error = (learner.predict(table.test_inputs) - table.test_targets).square().mean().sqrt()
            result = {"table": name, "seed": seed, "validation": validation, "arrival": arrival, "memory": way}
            result |= {"size": memory.capacity, "rmse": float(error)}
            with RESULTS.open("a") as file:
                file.write(json.dumps(result) + "\n")


def make_memories(
    make_model: Any, way: str, options: dict[str, Any] | None, sizes: list[int], seed: int
) -> list[rc.Memory]:
    if options is None:
        return [getattr(rc, way)(size, seed=seed) for size in sizes]
    shown = {name: value for name, value in options.items() if name in ("scale_outputs", "layers")}
    embedding = rc.GradientEmbedding(make_model, loss="squared_error", dim=DIM, **shown, seed=seed)
    rest = {name: value for name, value in options.items() if name not in shown}
    return [rc.GradientMatching(embedding, size, **rest) for size in sizes]


def feed(memories: list[rc.Memory], inputs: Tensor, targets: Tensor) -> None:
    first = memories[0]
    if isinstance(first, rc.GradientMatching) and first.embedding is not None:
        candidates = first.embedding.dictionary(inputs, targets)  # once for all sizes
        for memory in memories:
            memory.update(inputs, targets, candidates=candidates)  # type: ignore[call-arg]
    else:
        for memory in memories:
            memory.update(inputs, targets)


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="table, once, sorted or seed")
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    words, validation = arguments.words, arguments.validation
    if unknown := [word for word in words if not word.isdecimal() and word not in (*COLUMNS, *ARRIVALS)]:
        parser.error(f"words must be {', '.join((*COLUMNS, *ARRIVALS))} or seeds, got {unknown}")
    RESULTS.parent.mkdir(exist_ok=True)
    seeds = [int(word) for word in words if word.isdecimal()] or range(5)
    names = [word for word in words if word in COLUMNS] or [*COLUMNS]
    arrivals = [word for word in words if word in ARRIVALS] or ARRIVALS
    tried = [WAYS, TRIED] if validation else [WAYS]  # settings are not tried on the test part
    for ways, arrival, seed, name in product(tried, arrivals, seeds, names):
        if not arguments.table:
            measure(name, seed, validation, arrival, ways)
    for name in names:
        rows: list[list[object]] = []
        for way in (way for ways in tried for way in ways):
            row: list[object] = [way]
            for arrival in ARRIVALS:
                for size in SIZES:
                    key = (name, validation, arrival, way, size)
                    keys = ("table", "validation", "arrival", "memory", "size")
                    found = [r["rmse"] for r in read() if tuple(r[k] for k in keys) == key]
                    row.append(
                        f"{mean(found):.3f} ± {stdev(found):.3f}" if len(found) > 1 else found[0] if found else "-"
                    )
            rows.append(row)
        header = ["", *(f"{arrival}, {size}" for arrival in ARRIVALS for size in SIZES)]
        part = "held-out training rows" if validation else "the test part"
        print_table(f"{name}: RMSE on {part}, mean and deviation over seeds", header, rows)


if __name__ == "__main__":
    main()
