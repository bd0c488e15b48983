"""How many candidates do later updates of a stream need? Settled on validation parts; the test part is never looked at.

100,000 rows of the tables and 30,000 images of the training part arrive in the batches of the paper's stream. Of the
first batch ten candidates are drawn for each place; of later ones as many as they are a part of everything seen, but at
least so many for each place. "10" draws as many of every batch. Told are the candidates in all, the fitted error, the
error at four fresh initialisations (of all layers for tables, of the last for images), and validation accuracy, of two
MLPs after 200 epochs or one CNN after 100. Results are appended to `results/stream_shortlists.jsonl`; what is there is
not repeated.

`python benchmarks/stream_shortlists.py SET [...] [--seeds 0] [--sizes 200 1000] [--least 10 5 2]`
`python benchmarks/stream_shortlists.py --table`
"""

import argparse
import json
import time
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import covering
import torch
from covering import IMAGES, SETS, Problem
from shortlists import fresh_error

import recollect as rc
from recollect.embedding import draw_model
from recollect.experiments.stacking import train_together
from recollect.learners import Task, Training
from recollect.learners.training import predict
from recollect.memories.gradient_matching import choosing
from recollect.randomness import derive_seed, generator

RESULTS = Path(__file__).parent.parent / "results" / "stream_shortlists.jsonl"


def measure(name: str, seed: int, sizes: list[int], floors: list[float]) -> None:
    done = {(r["dataset"], r["seed"], r["size"], r["least"]) for r in read()}
    wanted = [(size, least) for size, least in product(sizes, floors) if (name, seed, size, least) not in done]
    if not wanted:
        return
    covering.ROWS = 30_000 if name in IMAGES else 100_000
    problem = Problem(name, seed)
    error = fresh_error(
        problem.make_model, (problem.inputs, problem.targets), seed, "last" if problem.images else "all"
    )
    for size, least in wanted:
        choosing.LEAST = least
        memory = rc.GradientMatching(problem.make_model, size, seed=seed)
        start, candidates = time.process_time(), 0
        for part in torch.arange(len(problem.targets)).split(problem.cuts):
            candidates += min(len(part), memory._limit(len(part)))
            memory.update(problem.inputs[part], problem.targets[part])
        batch = memory.batch
        told = {"dataset": name, "seed": seed, "size": size, "least": least, "candidates": candidates}
        told |= {"seconds": round(time.process_time() - start, 1), "fitted": round(memory.error, 5)}
        told["fresh"] = round(error(rc.Coreset(batch.ids, batch.weights.double(), 0.0)), 5)
        tasks = []
        for t in range(1 if problem.images else 2):
            model = draw_model(problem.make_model, derive_seed(100 * seed + t, "initial model"))
            tasks.append(Task(model, batch, generator(100 * seed + t, "training")))
        train_together(tasks, Training(epochs=100 if problem.images else 200))
        inputs, targets = problem.validation
        right = [100 * float((predict(task.model, inputs).argmax(1) == targets).float().mean()) for task in tasks]
        write({**told, "accuracy": round(mean(right), 3)})


def write(result: dict[str, Any]) -> None:
    with RESULTS.open("a") as file:
        file.write(json.dumps(result) + "\n")


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def show() -> None:
    """Beside drawing ten of every batch: candidates, error as a multiple, accuracy less that of ten, by seed."""
    found = {(r["dataset"], r["size"], r["least"], r["seed"]): r for r in read()}
    header = ("", "kept", "at least", "candidates", "error, as a multiple", "accuracy, less that of 10")
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for name, size, least in sorted({key[:3] for key in found if key[2] != 10}):
        pairs = [(r, found[name, size, 10.0, key[3]]) for key, r in found.items() if key[:3] == (name, size, least)]
        share = mean(a["candidates"] / b["candidates"] for a, b in pairs)
        errors = ", ".join(f"{a['fresh'] / b['fresh']:.3f}" for a, b in pairs)
        gains = ", ".join(f"{a['accuracy'] - b['accuracy']:+.2f}" for a, b in pairs)
        print(f"| {name} | {size} | {least:g} | {share:.2f} | {errors} | {gains} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="*", choices=[[], *SETS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--least", type=float, nargs="+", default=[10.0, 5.0, 2.0])
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for seed, name in product(given.seeds, given.sets):
        measure(name, seed, given.sizes, given.least)
    if given.table:
        show()
