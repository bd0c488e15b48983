"""Rare classes: accuracy and balanced accuracy of a network trained on what each memory keeps.

`covertype` is 6000 rows of the training part as they come, of which the rarest class has one in 200;
`walking, 1 to 100` has the four most frequent walkers of Walking Activity, 3000 rows each of two of them and 30 each of
the others. All rows arrive in five updates, sorted by the first feature. GDumb's network with its usual training is
tested on 8000 rows of the test part, or on 2000 for each of the four walkers; accuracy counts classes as often as they
come in training, balanced accuracy all the same. Gradients are those of the default, the last layer's.
Results are appended to `results/rare_classes.jsonl`; what is there is not repeated.
Run as `python benchmarks/rare_classes.py [seed ...]`; takes about half a minute per seed on a quiet core.
`--table` runs nothing, and prints what is there.
"""

import argparse
import json
import warnings
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import torch
from table import print_table
from torch import Tensor

import recollect as rc

RESULTS = Path(__file__).parent.parent / "results" / "rare_classes.jsonl"
SIZES = (200,)
UPDATES = 5
WALKERS = (16, 17, 19, 13)
WAYS = {
    "class_weight=None": {},
    'class_weight="balanced"': {"class_weight": "balanced"},
    "min_per_class=10": {"min_per_class": 10},
    "ClassBalanced": None,
    "Clustering": None,
    "Reservoir": None,
}


class Table(NamedTuple):
    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    n_classes: int


def covertype(seed: int) -> Table:
    dataset = rc.datasets.load("covertype")
    some, test = (drawn(len(part.targets), n, seed) for part, n in ((dataset.train, 6_000), (dataset.test, 8_000)))
    x, y = dataset.train
    return Table(x[some], y[some], dataset.test.inputs[test], dataset.test.targets[test], 7)


def walking(seed: int) -> Table:
    dataset = rc.datasets.load("walking-activity")
    parts: list[list[Tensor]] = [[], [], [], []]
    for label, walker in enumerate(WALKERS):
        for offset, (x, y), n in ((0, dataset.train, (3000, 3000, 30, 30)[label]), (2, dataset.test, 2000)):
            rows = (y == walker).nonzero()[:, 0]
            rows = rows[drawn(len(rows), n, seed)]
            parts[offset].append(x[rows])
            parts[offset + 1].append(torch.full((len(rows),), label))
    x, y, test_x, test_y = (torch.cat(part) for part in parts)
    return Table(x, y, test_x, test_y, 4)


def drawn(n: int, size: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:size]


TABLES = {"covertype": covertype, "walking, 1 to 100": walking}


def measure(name: str, seed: int) -> None:
    done = {(r["table"], r["seed"], r["memory"], r["size"]) for r in read()}
    todo = [(way, size) for size in SIZES for way in WAYS if (name, seed, way, size) not in done]
    if not todo:
        return
    table = TABLES[name](seed)
    make_model = partial(rc.models.mlp, table.inputs.shape[1], table.n_classes)
    embedding = rc.GradientEmbedding(make_model, layers="auto", projection="auto", seed=seed)  # as by default
    memories: dict[tuple[str, int], rc.Memory] = {}
    for way, size in todo:
        options = WAYS[way]
        if options is None:
            memories[way, size] = getattr(rc, way)(size, seed=seed)
        else:
            memories[way, size] = rc.GradientMatching(embedding, size, **options)  # type: ignore[arg-type]
    for rows in table.inputs[:, 0].argsort(stable=True).chunk(UPDATES):
        batch = table.inputs[rows], table.targets[rows]
        candidates = embedding.dictionary(*batch)  # once for all
        for memory in memories.values():
            if isinstance(memory, rc.GradientMatching):
                memory.update(*batch, candidates=candidates)
            else:
                memory.update(*batch)
    for (way, size), memory in memories.items():
        learner = rc.GDumb(make_model, memory, seed=seed)
        right = (learner.predict(table.test_inputs).argmax(1) == table.test_targets).double()
        recalls = [float(right[table.test_targets == label].mean()) for label in range(table.n_classes)]
        often = torch.bincount(table.targets, minlength=table.n_classes).double() / len(table.targets)
        kept = torch.bincount(memory.batch.targets, minlength=table.n_classes)
        result = {
            "table": name,
            "seed": seed,
            "memory": way,
            "size": size,
            "accuracy": 100 * float(often @ torch.tensor(recalls, dtype=torch.float64)),
            "balanced_accuracy": 100 * mean(recalls),
            "rarest": int(kept.min()),
        }
        with RESULTS.open("a") as file:
            file.write(json.dumps(result) + "\n")


def read() -> list[dict[str, object]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", nargs="*", type=int, default=[*range(5)])
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", rc.LostClassWarning)
    RESULTS.parent.mkdir(exist_ok=True)
    for seed in [] if arguments.table else arguments.seeds:
        for name in TABLES:
            measure(name, seed)
    for name in TABLES:
        rows: list[list[object]] = []
        for way in WAYS:
            row: list[object] = [way]
            for size in SIZES:
                found = [r for r in read() if (r["table"], r["memory"], r["size"]) == (name, way, size)]
                for key in ("accuracy", "balanced_accuracy"):
                    numbers = [float(str(r[key])) for r in found]
                    row.append(f"{mean(numbers):.1f} ± {stdev(numbers):.1f}" if len(numbers) > 1 else "-")
                row.append(min((int(str(r["rarest"])) for r in found), default="-"))
            rows.append(row)
        header = ["", *(f"{size}: {what}" for size in SIZES for what in ("accuracy", "balanced", "rarest"))]
        print_table(f"{name}: test accuracy, mean over classes, fewest rows kept of a class", header, rows)


if __name__ == "__main__":
    main()
