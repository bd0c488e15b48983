"""How should experience replay mix new and remembered examples? Measured on validation parts, never on the test part.

8,000 rows of the training part arrive in the batches of the paper's stream, 200 are remembered, and the paper's network
is trained on each batch and the memory, for 20 epochs on tables and 5 on images. Accuracy is of 5,000 other rows of the
training part after the last batch. A seed changes the rows, the memory and the training. Results are appended to
`results/mixing.jsonl`; what is there is not repeated.

A step of "halves" and "counts" takes twice as many examples. `--half` gives them half the epochs, and so as much time
as "weighted" has. `--whole` compares the two ways that estimate the loss over everything at equal time, "drawn" and
"weighted", on all of the training part but the 5,000 rows, with 200 and with 1000 remembered.

`python benchmarks/mixing.py SET [...] [--seeds 0 1] [--half | --whole] [--epochs 5]`
`python benchmarks/mixing.py --table`
"""

import argparse
import json
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, get_args

import torch

import recollect as rc
from recollect.datasets import Dataset, Examples
from recollect.experiments import DEFAULT_STREAMS
from recollect.experiments.experiment import STREAMS, make_model_for
from recollect.learners.experience_replay import Mix

RESULTS = Path(__file__).parent.parent / "results" / "mixing.jsonl"
ROWS, HELD_OUT, SIZES = 8000, 5000, (200, 1000)
EPOCHS = {"ldpa": 20, "walking-activity": 20, "covertype": 20, "fashion-mnist": 5, "mnist": 5}
PAIRED, SINGLE = ("halves", "counts"), ("drawn", "weighted")
MEMORIES = ("recollect", "clustering", "reservoir")


def measure(name: str, seed: int, *, half: bool, whole: bool, epochs: int | None) -> None:
    done = [{k: v for k, v in r.items() if k != "accuracy"} for r in read()]
    mixes: tuple[Any, ...] = PAIRED if half else SINGLE if whole else get_args(Mix)
    epochs = epochs or (-(-EPOCHS[name] // 2) if half else EPOCHS[name])
    dataset = without_the_test_part(rc.datasets.load(name), seed, None if whole else ROWS)
    stream, make_model = STREAMS[DEFAULT_STREAMS[name]](dataset), make_model_for(dataset)
    makers = {
        "recollect": partial(rc.GradientMatching, make_model),
        "clustering": rc.Clustering,
        "reservoir": rc.Reservoir,
    }
    for size, memory, mix in product(SIZES if whole else SIZES[:1], MEMORIES, mixes):
        told = {"dataset": name, "seed": seed, "memory": memory, "mix": mix, "epochs": epochs, "size": size}
        told["rows"] = len(dataset.train.targets)
        if told in done:
            continue
        learner = rc.ExperienceReplay(make_model, makers[memory](size, seed=seed), epochs=epochs, seed=seed, mix=mix)
        for inputs, targets in stream.batches:
            learner.observe(inputs, targets)
        accuracy = 100 * rc.metrics.accuracy(learner.predict(stream.test.inputs), stream.test.targets)
        told["accuracy"] = round(accuracy, 2)
        with RESULTS.open("a") as file:
            file.write(json.dumps(told) + "\n")
        print(told, flush=True)


def without_the_test_part(dataset: Dataset, seed: int, n: int | None) -> Dataset:
    """So many rows of the training part, or all, and others of it in the place of the test part."""
    order = torch.randperm(len(dataset.train.targets), generator=torch.Generator().manual_seed(seed))
    rows, others = order[HELD_OUT:][:n].sort().values, order[:HELD_OUT]
    train, held_out = (Examples(dataset.train.inputs[some], dataset.train.targets[some]) for some in (rows, others))
    return Dataset(train, held_out, dataset.n_classes)


def read() -> list[dict[str, Any]]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    results = [json.loads(line) for line in lines]
    first = {"size": SIZES[0], "rows": ROWS}  # what all runs had at first
    return [{"epochs": EPOCHS[r["dataset"]], **first, **r} for r in results]


def print_table() -> None:
    everything, mixes = read(), get_args(Mix)
    results = [r for r in everything if r["rows"] == ROWS]
    titles = [*(f'`"{mix}"`' for mix in mixes), *(f'`"{mix}"`, half the epochs' for mix in PAIRED)]
    print("| | memory | " + " | ".join(titles) + " |\n" + "|---" * (2 + len(titles)) + "|")
    for name, memory in product(EPOCHS, MEMORIES):
        found = [r for r in results if (r["dataset"], r["memory"]) == (name, memory)]
        columns = [*((mix, EPOCHS[name]) for mix in mixes), *((mix, -(-EPOCHS[name] // 2)) for mix in PAIRED)]
        cells = [[r["accuracy"] for r in found if (r["mix"], r["epochs"]) == column] for column in columns]
        if any(cells):
            print(f"| {name} | {memory} | " + " | ".join(map(told, cells)) + " |")
    print(
        "\n| all rows | epochs | kept | memory | "
        + " | ".join(f'`"{mix}"`' for mix in SINGLE)
        + " |\n"
        + "|---" * 6
        + "|"
    )
    others = [r for r in everything if r["rows"] != ROWS]
    for setting in dict.fromkeys((r["dataset"], r["epochs"], r["size"], r["memory"]) for r in others):
        found = [r for r in others if (r["dataset"], r["epochs"], r["size"], r["memory"]) == setting]
        cells = [[r["accuracy"] for r in found if r["mix"] == mix] for mix in SINGLE]
        print(f"| {' | '.join(map(str, setting))} | " + " | ".join(map(told, cells)) + " |")


def told(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{spread} ({len(values)})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("datasets", nargs="*", choices=[*EPOCHS, []])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--half", action="store_true")
    kind.add_argument("--whole", action="store_true")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    for name, seed in product(asked.datasets, asked.seeds):
        measure(name, seed, half=asked.half, whole=asked.whole, epochs=asked.epochs)
    if asked.table:
        print_table()
