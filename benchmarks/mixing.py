"""How should experience replay mix new and remembered examples? Measured on validation parts, never on the test part.

8,000 rows of the training part arrive in the batches of the paper's stream, 200 are remembered, and the paper's network
is trained on each batch and the memory, for 20 epochs on tables and 5 on images. Accuracy is of 5,000 other rows of the
training part after the last batch. A seed changes the rows, the memory and the training. Results are appended to
`results/mixing.jsonl`; what is there is not repeated.

A step of "halves" and "counts" takes twice as many examples. `--half` gives them half the epochs, and so as much time
as "weighted" has.

`python benchmarks/mixing.py SET [...] [--seeds 0 1] [--half]`
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
ROWS, HELD_OUT, SIZE = 8000, 5000, 200
EPOCHS = {"ldpa": 20, "walking-activity": 20, "covertype": 20, "fashion-mnist": 5, "mnist": 5}
PAIRED = ("halves", "counts")
MEMORIES = ("recollect", "clustering", "reservoir")


def measure(name: str, seed: int, *, half: bool) -> None:
    done = {(r["dataset"], r["seed"], r["memory"], r["mix"], r["epochs"]) for r in read()}
    mixes, epochs = (PAIRED, -(-EPOCHS[name] // 2)) if half else (get_args(Mix), EPOCHS[name])
    dataset = without_the_test_part(rc.datasets.load(name), seed)
    stream, make_model = STREAMS[DEFAULT_STREAMS[name]](dataset), make_model_for(dataset)
    makers = {
        "recollect": partial(rc.GradientMatching, make_model),
        "clustering": rc.Clustering,
        "reservoir": rc.Reservoir,
    }
    for memory, mix in product(MEMORIES, mixes):
        if (name, seed, memory, mix, epochs) in done:
            continue
        learner = rc.ExperienceReplay(make_model, makers[memory](SIZE, seed=seed), epochs=epochs, seed=seed, mix=mix)
        for inputs, targets in stream.batches:
            learner.observe(inputs, targets)
        accuracy = 100 * rc.metrics.accuracy(learner.predict(stream.test.inputs), stream.test.targets)
        told = {"dataset": name, "seed": seed, "memory": memory, "mix": mix, "epochs": epochs}
        told["accuracy"] = round(accuracy, 2)
        with RESULTS.open("a") as file:
            file.write(json.dumps(told) + "\n")
        print(told, flush=True)


def without_the_test_part(dataset: Dataset, seed: int) -> Dataset:
    """Some rows of the training part, and others of it in the place of the test part."""
    order = torch.randperm(len(dataset.train.targets), generator=torch.Generator().manual_seed(seed))
    rows, others = order[HELD_OUT : HELD_OUT + ROWS].sort().values, order[:HELD_OUT]
    train, held_out = (Examples(dataset.train.inputs[some], dataset.train.targets[some]) for some in (rows, others))
    return Dataset(train, held_out, dataset.n_classes)


def read() -> list[dict[str, Any]]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    results = [json.loads(line) for line in lines]
    return [{"epochs": EPOCHS[r["dataset"]], **r} for r in results]  # the first runs all had as many


def print_table() -> None:
    results, mixes = read(), get_args(Mix)
    titles = [*(f'`"{mix}"`' for mix in mixes), *(f'`"{mix}"`, half the epochs' for mix in PAIRED)]
    print("| | memory | " + " | ".join(titles) + " |\n" + "|---" * (2 + len(titles)) + "|")
    for name, memory in product(EPOCHS, MEMORIES):
        found = [r for r in results if (r["dataset"], r["memory"]) == (name, memory)]
        columns = [*((mix, EPOCHS[name]) for mix in mixes), *((mix, -(-EPOCHS[name] // 2)) for mix in PAIRED)]
        cells = [[r["accuracy"] for r in found if (r["mix"], r["epochs"]) == column] for column in columns]
        if any(cells):
            print(f"| {name} | {memory} | " + " | ".join(map(told, cells)) + " |")


def told(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{spread} ({len(values)})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("datasets", nargs="*", choices=[*EPOCHS, []])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    for name, seed in product(asked.datasets, asked.seeds):
        measure(name, seed, half=asked.half)
    if asked.table:
        print_table()
