"""A memory in a folder, from the command line's own parts, on Covertype as ten daily files sorted by elevation.

`covertype`: models trained on the 1000 exported rows with their weights, against a reservoir of the same size, and how
fast files are taken in. `limits`: peak memory of `recollect select` on a file, and on one ten times as large.
`million`: time and peak memory of `recollect select` on a million made-up rows of 20 columns in Parquet; a checkout of
an older version in $BEFORE is measured beside it, and $ROWS sets another number of rows. `throughput`: rows per second
and peak memory of `recollect update` with Covertype's ten files, again beside $BEFORE, which is given the first $FILES.
`updates`: time of `recollect update` with three made-up files, by gradient matching and by clustering.

`python benchmarks/store.py [covertype] [limits] [million] [throughput] [updates]`; all by default.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from table import print_table

import recollect as rc
from recollect.batch import Batch
from recollect.embedding import draw_model
from recollect.learners.training import Task, Training, train
from recollect.tables import Settings, Store

SIZE, SEEDS = 1000, 3


def as_table(inputs: torch.Tensor, targets: torch.Tensor) -> pa.Table:
    columns = {f"feature {i}": inputs[:, i].numpy() for i in range(inputs.shape[1])}
    return pa.table({**columns, "cover": targets.numpy()})


def daily_files(folder: Path, dataset: rc.datasets.Dataset) -> list[Path]:
    stream = rc.streams.sorted_by_feature(dataset)  # by elevation
    paths = []
    for day, batch in enumerate(stream.batches):
        paths.append(folder / f"day{day}.parquet")
        pyarrow.parquet.write_table(as_table(batch.inputs, batch.targets), paths[-1])
    return paths


def accuracies(table: pa.Table, dataset: rc.datasets.Dataset, seed: int) -> dict[str, float]:
    """Of three kinds of models trained on the rows with their weights."""
    names = [name for name in table.schema.names if name.startswith("feature")]
    x = np.stack([table.column(name).to_numpy() for name in names], 1)
    y, weights = table.column("cover").to_numpy(), table.column("weight").to_numpy()
    test_x, test_y = dataset.test.inputs.numpy(), dataset.test.targets.numpy()
    model = draw_model(partial(rc.models.mlp, len(names), dataset.n_classes), seed)
    batch = Batch(torch.tensor(x), torch.tensor(y), torch.tensor(weights, dtype=torch.float32), torch.arange(len(y)))
    train(Task(model, batch, torch.Generator().manual_seed(seed)), Training())
    with torch.inference_mode():
        predicted = model(dataset.test.inputs).argmax(1).numpy()
    found = {"MLP": 100 * float((predicted == test_y).mean())}
    trees = HistGradientBoostingClassifier(random_state=seed)
    lines = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    found["HistGradientBoostingClassifier"] = 100 * trees.fit(x, y, sample_weight=weights).score(test_x, test_y)
    lines.fit(x, y, logisticregression__sample_weight=weights)
    found["LogisticRegression"] = 100 * lines.score(test_x, test_y)
    return found


def covertype() -> None:
    dataset = rc.datasets.load("covertype")
    results: dict[str, dict[str, list[float]]] = {}
    speeds: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        paths = daily_files(Path(folder), dataset)
        for memory in ("clustering", "recollect", "reservoir"):
            for seed in range(SEEDS):
                settings = Settings("cover", SIZE, memory=memory, seed=seed)
                store = Store.create(Path(folder, f"{memory}{seed}"), settings)
                taken = [done.taken for done in store.update(paths, progress=True) if done.taken is not None]
                rows, seconds = sum(t.rows for t in taken), sum(t.seconds for t in taken)
                reading = sum(t.reading_seconds for t in taken)
                speeds.append([f"{memory}, seed {seed}", rows, rows / seconds, f"{reading / seconds:.1%}"])
                table = store.load().table()
                for model, accuracy in accuracies(table, dataset, seed).items():
                    results.setdefault(model, {}).setdefault(memory, []).append(accuracy)
                # What the same rows are worth without their weights.
                if memory == "recollect":
                    plain = table.set_column(
                        table.schema.get_field_index("weight"), "weight", pa.array(np.ones(len(table)))
                    )
                    for model, accuracy in accuracies(plain, dataset, seed).items():
                        results[model].setdefault("recollect, weights left out", []).append(accuracy)
    rows_: list[list[object]] = []
    for model, by_memory in results.items():
        for memory in ("clustering", "recollect", "recollect, weights left out", "reservoir"):
            values = by_memory[memory]
            gain = mean(values) - mean(by_memory["reservoir"])
            rows_.append([model, memory, f"{mean(values):.2f} ± {stdev(values):.2f}", f"{gain:+.2f}"])
    header = ["model", "memory", "test accuracy [%]", "less reservoir"]
    print_table(f"Covertype in ten daily files sorted by elevation, {SIZE} rows kept, {SEEDS} seeds", header, rows_)
    print_table("How fast", ["", "rows", "rows per second", "reading and encoding"], speeds)


def limits() -> None:
    """The real command in its own process, with its peak as the kernel counted it."""
    train_part = rc.datasets.load("covertype").train
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for count in (40_000, 400_000):
            path = Path(folder, f"{count}.parquet")
            order = torch.randperm(len(train_part.targets), generator=torch.Generator().manual_seed(0))[:count]
            pyarrow.parquet.write_table(as_table(train_part.inputs[order], train_part.targets[order]), path)
            for limit in ("1.5GB", "3GB"):
                command = ["select", str(path), "--target", "cover", "--size", "500", "-o", f"{folder}/out.parquet"]
                done = run_command(
                    [*command, *GRADIENT_MATCHING, "--memory-limit", limit, "--json"], versions()["this"]
                )
                speed = json.loads(done.answer)["rows_per_second"]
                rows.append([f"{count:,}", limit, f"{done.peak / 1e9:.2f} GB", speed])
    print_table("Peak memory of `recollect select`", ["rows", "limit", "peak", "rows per second"], rows)


def made_up(rows: int) -> pa.Table:
    """Numbers, whole numbers, words, a day and a class that depends on them."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(14, rows)).astype(np.float32)
    score = numbers[0] + numbers[1] * numbers[2] + 0.5 * rng.normal(size=rows)
    columns: dict[str, object] = {f"number {i}": column for i, column in enumerate(numbers)}
    columns |= {f"count {i}": rng.poisson(4, rows) for i in range(2)}
    columns |= {name: rng.choice(words, rows) for name, words in _WORDS.items()}
    columns["day"] = np.datetime64("2024-01-01") + rng.integers(0, 365, rows)
    return pa.table({**columns, "label": np.digitize(score, [-1.5, 0.0, 2.0])})


_WORDS = {"color": ["red", "green", "blue"], "country": ["at", "ch", "de", "fr", "it", "nl", "se", "uk"]}


def million() -> None:
    """The real command in its own process, as for `limits`; one thread."""
    count = int(os.environ.get("ROWS", 1_000_000))
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.parquet")
        pyarrow.parquet.write_table(made_up(count), path)
        for name, place in versions().items():
            command = ["select", str(path), "--target", "label", "--size", str(SIZE), *GRADIENT_MATCHING, "--json"]
            start = time.perf_counter()
            done = run_command([*command, "-o", f"{folder}/out.parquet"], place)
            seconds, answer = time.perf_counter() - start, json.loads(done.answer)
            memory = f"{done.peak / 1e9:.2f} GB"
            rows.append(
                [name, f"{seconds:,.0f}", f"{done.seconds:,.0f}", memory, count / done.seconds, answer["error"]]
            )
    header = ["version", "seconds", "of the processor", "peak", "rows per second of it", "matching error"]
    print_table(f"`recollect select` on {count:,} rows of 20 columns, {SIZE} kept", header, rows)


def throughput() -> None:
    """The real command in its own process, as for `million`, with gradient matching and with clustering."""
    rows: list[list[object]] = []
    here = versions()
    cases = [(name, place, GRADIENT_MATCHING) for name, place in here.items()] + [
        ("clustering", here["this"], CLUSTERING)
    ]
    with tempfile.TemporaryDirectory() as folder:
        days = daily_files(Path(folder), rc.datasets.load("covertype"))
        for name, place, memory in cases:
            some = days[: int(os.environ.get("FILES", len(days)))] if name == "before" else days
            store = f"{folder}/{name}"
            run_command(["init", store, "--target", "cover", "--size", str(SIZE), *memory], place)
            done = run_command(["update", store, *map(str, some)], place)
            count = sum(pyarrow.parquet.read_metadata(path).num_rows for path in some)
            rows.append([name, f"{count:,}", f"{done.seconds:,.0f}", count / done.seconds, f"{done.peak / 1e9:.2f} GB"])
            print(*rows[-1], flush=True)
    header = ["version", "rows", "seconds of the processor", "rows per second", "peak"]
    print_table(f"`recollect update` on Covertype, 54 columns, {SIZE} kept", header, rows)


GRADIENT_MATCHING, CLUSTERING = ["--memory", "recollect"], ["--memory", "clustering"]


def few_words(rows: int, seed: int) -> pa.Table:
    """Fourteen numbers, a word of eight, and one of four classes that depends on them."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(14, rows)).astype(np.float32)
    score = numbers[0] + numbers[1] * numbers[2] + 0.5 * rng.normal(size=rows)
    columns = {f"number {i}": column for i, column in enumerate(numbers)}
    words = rng.choice(_WORDS["country"], rows)
    return pa.table({**columns, "country": words, "label": np.digitize(score, [-1.5, 0.0, 2.0])})


def quantities(rows: int, seed: int) -> pa.Table:
    """The same, and a quantity that depends on them."""
    table = few_words(rows, seed)
    quantity = 2 * table.column("number 0").to_numpy() + table.column("number 1").to_numpy()
    return table.set_column(table.schema.get_field_index("label"), "label", pa.array(quantity))


def many_words(rows: int, seed: int) -> pa.Table:
    """Twenty numbers, twenty words of ninety each, and one of three classes."""
    rng = np.random.default_rng(seed)
    columns: dict[str, object] = {f"number {i}": rng.normal(size=rows).astype(np.float32) for i in range(20)}
    columns |= {f"word {i}": [f"v{k}" for k in rng.integers(0, 90, rows)] for i in range(20)}
    return pa.table({**columns, "label": rng.choice(["a", "b", "c"], rows)})


def updates() -> None:
    """The real command in its own process, as for `million`."""
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for make, count, size in (
            (few_words, 50_000, 200),
            (few_words, 50_000, 1000),
            (few_words, 50_000, 3500),
            (quantities, 50_000, 1000),
            (many_words, 20_000, 1000),
        ):
            paths = [f"{folder}/{day}.parquet" for day in range(3)]
            for day, path in enumerate(paths):
                pyarrow.parquet.write_table(make(count, day), path)
            row: list[object] = [make.__name__, f"{count:,}", size]
            for memory in (GRADIENT_MATCHING, CLUSTERING):
                store = f"{folder}/{make.__name__} {size} {memory[1]}"
                run_command(["init", store, "--target", "label", "--size", str(size), *memory], versions()["this"])
                done = run_command(["update", store, *paths], versions()["this"])
                row += [done.seconds, f"{done.peak / 1e9:.2f} GB"]
            rows.append(row)
            print(*row, flush=True)
    header = ["table", "rows", "kept", "gradient matching [s]", "peak", "clustering [s]", "peak"]
    print_table("`recollect update` with three files, seconds of the processor", header, rows)


def versions() -> dict[str, str]:
    """Where the package is: this one, and an older one to compare it with, if there is any."""
    before = os.environ.get("BEFORE")
    return {"this": str(Path(__file__).parents[1]), **({"before": before} if before else {})}


class Done(NamedTuple):
    """What a command answered, what the processor took, and the most memory that it had, in bytes."""

    answer: str
    seconds: float
    peak: int


def run_command(command: list[str], place: str) -> Done:
    """Run a command in a process of its own, on one thread."""
    environment = {**os.environ, "PYTHONPATH": place, "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-P", "-c", _PEAK, *command]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment)
    peak, seconds = re.findall(r"^peak (\d+) seconds (\S+)$", done.stderr, re.MULTILINE)[-1]
    return Done(done.stdout, float(seconds), int(peak) * 1024)


_PEAK = """
import resource, sys
from recollect.cli import main
try:
    main(sys.argv[1:])
finally:
    usage = resource.getrusage(resource.RUSAGE_SELF)  # whose memory counts what the caller had when it started this
    with open("/proc/self/status") as status:
        peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
    print("peak", peak, "seconds", usage.ru_utime + usage.ru_stime, file=sys.stderr)
"""


if __name__ == "__main__":
    for name in sys.argv[1:] or ["covertype", "limits", "million", "throughput", "updates"]:
        globals()[name]()
