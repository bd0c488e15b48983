"""Which lambda? Settled on a validation part of the training data; the test part is never looked at.

Last-layer gradient matching at size 200 with GDumb, on rotated MNIST and class-incremental Fashion-MNIST: 10,000
training images are held out, the stream is made of the rest, and accuracy is measured on those held out. Beside it,
the matching error at fresh initialisations. Results are appended to `results/regularization.jsonl`; what is there is
not repeated.
Run as `python benchmarks/regularization.py [seed ...]`; takes about twenty minutes per seed on two cores.
`--table` runs nothing, and prints what is there.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path
from statistics import mean, stdev

import torch
from table import print_table

import recollect as rc
from recollect.datasets import Dataset, Examples

RESULTS = Path(__file__).parent.parent / "results" / "regularization.jsonl"
VALUES = (1.0, 0.1, 0.01, 0.001, 0.0001, 0.00001)
STREAMS = {"mnist": rc.streams.rotated, "fashion-mnist": rc.streams.class_incremental}
SIZE, HELD_OUT = 200, 10_000


def without_test_part(dataset: Dataset) -> Dataset:
    order = torch.randperm(len(dataset.train.targets), generator=torch.Generator().manual_seed(0))
    held_out, rest = order[:HELD_OUT], order[HELD_OUT:].sort().values
    inputs, targets = dataset.train
    return Dataset(Examples(inputs[rest], targets[rest]), Examples(inputs[held_out], targets[held_out]), 10)


def measure(name: str, seed: int) -> None:
    done = {(r["dataset"], r["seed"], r["regularization"]) for r in read()}
    todo = [value for value in (*VALUES, None) if (name, seed, value) not in done]
    if not todo:
        return
    stream = STREAMS[name](without_test_part(rc.datasets.load(name)))  # type: ignore[operator]
    make_model = partial(rc.models.cnn, (1, 28, 28), 10)
    everything = (torch.cat([b.inputs for b in stream.batches]), torch.cat([b.targets for b in stream.batches]))
    embedding = rc.GradientEmbedding(make_model, layers="last", seed=seed)
    start = time.perf_counter()
    memories: list[rc.Memory] = [
        rc.Reservoir(SIZE, seed=seed) if value is None else rc.GradientMatching(embedding, SIZE, regularization=value)
        for value in todo
    ]
    for batch in stream.batches:
        candidates = embedding.dictionary(*batch)  # once for all values of lambda
        for memory in memories:
            if isinstance(memory, rc.GradientMatching):
                memory.update(*batch, candidates=candidates)
            else:
                memory.update(*batch)
    choosing = (time.perf_counter() - start) / len(todo)
    for value, memory in zip(todo, memories, strict=True):
        start = time.perf_counter()
        learner = rc.GDumb(make_model, memory, seed=seed)
        right = learner.predict(stream.test.inputs).argmax(1) == stream.test.targets
        result = {
            "dataset": name,
            "seed": seed,
            "regularization": value,
            "validation_accuracy": 100 * float(right.float().mean()),
            # the dearest number here, since it takes the gradient of everything: for one seed only
            "matching_error": rc.matching_error(make_model, everything, memory.batch, inits=1) if seed == 0 else None,
            "kept": len(memory),
            "seconds": round(choosing + time.perf_counter() - start, 1),
        }
        with RESULTS.open("a") as file:
            file.write(json.dumps(result) + "\n")


def read() -> list[dict[str, object]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    RESULTS.parent.mkdir(exist_ok=True)
    for seed in [] if arguments.table else arguments.seeds:
        for name in STREAMS:
            measure(name, seed)
    rows: list[list[object]] = []
    for value in (*VALUES, None):
        row: list[object] = ["reservoir" if value is None else value]
        for name in STREAMS:
            found = [r for r in read() if r["dataset"] == name and r["regularization"] == value]
            for key in ("validation_accuracy", "matching_error"):
                numbers = [float(str(r[key])) for r in found if r[key] is not None]
                spread = f" ± {stdev(numbers):.2g}" if len(numbers) > 1 else ""
                row.append(f"{mean(numbers):.4g}{spread} ({len(numbers)})" if numbers else "-")
        rows.append(row)
    header = ["lambda", *(f"{name}, {what}" for name in STREAMS for what in ("accuracy", "matching error"))]
    print_table("Last layer, size 200: accuracy on held-out training data, and matching error", header, rows)


if __name__ == "__main__":
    main()
