"""The same choice on a cluster, on rows of Covertype: is it the same, what travels, and what does it cost?

`identical`: rows and weights of 200 of 50,000 rows, here and by 1, 2, 3 and 8 workers, in blocks of 1,000 and of 7,777
rows, in memory and from files, with a shortlist and with all as candidates.
`kills`: the same choice of 400,000 rows while 20 workers are killed.
`bytes`: what comes to the driver for 10,000 and for 400,000 rows.
`time`: two workers beside this process with one thread, for 1000 of 400,000 rows, in memory and from a file, and the
processor time of all processes; and how long Ray takes to start.
`nodes`: 1, 2 and 4 workers, and as many nodes with a processor each, simulated on this machine.
`stages`: what each stage costs for a row, a candidate and a kept row, which docs/scaling.md goes on from.
`driver`: what handing out parts of files costs the one who hands them out.
`merging`: the matching error of memories of 2, 4 and 8 parts of the rows, merged, or side by side with a part of the
places each, beside one memory of all.

`python benchmarks/cluster.py [identical] [kills] [bytes] [time] [nodes] [stages] [driver] [merging]`; all by default.
Others may be using the machine: what is compared was measured in turns, three or $TURNS of them, which are seeds of
`merging`.
"""

import importlib
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import torch
from table import print_table

import recollect as rc
from recollect.batch import Batch
from recollect.tables import Settings, TableMemory, select_rows
from recollect.tables.blocks import encode
from recollect.tables.conforming import examine_files
from recollect.tables.examining import begin
from recollect.tables.reading import Skipped, opened, pieces
from recollect.tables.workers import Workers, _fold, working

ray: Any = importlib.import_module("ray")  # which has no types

logging.getLogger("ray.data").setLevel(logging.ERROR)

choose = partial(rc.select, layers="all")
SIZE = 200
TURNS = int(os.environ.get("TURNS", "3"))
make_model = partial(rc.models.mlp, 54, 7)
ALL: dict[str, Any] = {"shortlist": None, "inits": 4, "dim": 250}  # 200 MB of embeddings for 50,000 rows
QUIET: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}


def rows_of(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of Covertype in an order of chance, again from the beginning where there are not so many."""
    inputs, targets = rc.datasets.load("covertype").train
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    order = order.repeat(-(-n // len(order)))[:n]
    return inputs[order], targets[order]


def as_table(inputs: torch.Tensor, targets: torch.Tensor) -> pa.Table:
    return pa.table({**{f"x{i:02}": inputs[:, i].numpy() for i in range(inputs.shape[1])}, "cover": targets.numpy()})


def slices(table: pa.Table, rows: int) -> list[pa.Table]:
    return [table.slice(start, rows) for start in range(0, table.num_rows, rows)]


@contextmanager
def cluster_of(processors: int) -> Iterator[float]:
    """A cluster of so many workers; says how long it took to start."""
    start = time.perf_counter()
    ray.init(num_cpus=processors, **QUIET)
    try:
        yield time.perf_counter() - start
    finally:
        ray.shutdown()


@contextmanager
def nodes_of(count: int) -> Iterator[None]:
    """A cluster of so many nodes with a processor each, beside a head that computes nothing."""
    cluster = importlib.import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    for _ in range(count):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, **{name: value for name, value in QUIET.items() if name != "include_dashboard"})
    try:
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def chosen(coreset: rc.Coreset) -> tuple[list[int], list[float]]:
    return coreset.indices.tolist(), coreset.weights.tolist()


def from_files(paths: list[Path], size: int, workers: Workers | None = None) -> tuple[list[int], list[float]]:
    settings = Settings("cover", size, "recollect", task="classification")
    if workers is None:
        with opened([str(path) for path in paths], settings.reading) as sources:
            held, _ = select_rows(settings, sources)
    else:
        sources = workers.sources([str(path) for path in paths], settings.reading)
        held, _ = select_rows(settings, sources, workers=workers)
    return held.memory.batch.ids.tolist(), held.memory.batch.weights.tolist()


def by_workers(paths: list[Path], size: int) -> tuple[list[int], list[float]]:
    with working("auto") as workers:
        return from_files(paths, size, workers)


def select(dataset: Any, **options: Any) -> tuple[list[int], list[float]]:
    return chosen(choose(make_model, dataset, size=SIZE, target="cover", cluster="auto", **options))


def identical() -> None:
    data = rows_of(50_000)
    table = as_table(*data)
    with tempfile.TemporaryDirectory() as folder:
        files: dict[int, list[Path]] = {}
        here: dict[int, Any] = {}
        for rows in (1000, 7777):
            files[rows] = [Path(folder, f"{rows}-{i:02}.parquet") for i in range(-(-50_000 // rows))]
            for path, part in zip(files[rows], slices(table, rows), strict=True):
                pyarrow.parquet.write_table(part, path)
            here[rows] = from_files(files[rows], SIZE)
        some = chosen(choose(make_model, *data, SIZE))
        everybody = chosen(choose(make_model, *data, SIZE, **ALL))
        found = []
        for processors in (1, 2, 3, 8):
            with cluster_of(processors):
                for rows in (1000, 7777):
                    blocks = ray.data.from_arrow(slices(table, rows))
                    read = ray.data.read_parquet([str(path) for path in files[rows]])
                    runs: dict[str, tuple[Any, Callable[[], Any]]] = {
                        "memory, shortlist": (some, partial(select, blocks)),
                        "memory, all": (everybody, partial(select, blocks, **ALL)),
                        "files, shortlist": (here[rows], partial(by_workers, files[rows], SIZE)),
                        "files, all": (everybody, partial(select, read, **ALL)),
                    }
                    same = {name: "same" if run() == local else "OTHER" for name, (local, run) in runs.items()}
                    found.append([str(processors), f"{rows:,}", *same.values()])
                    print(found[-1], flush=True)
    print_table(
        "the choice of 200 of 50,000 rows, beside the one made here", ["workers", "rows per block", *runs], found
    )


def workers_of(driver: int) -> list[int]:
    """The processes that work for this one at the moment."""

    def children(parent: int, *pattern: str) -> list[int]:
        command = ["pgrep", "-P", str(parent), *pattern]
        return [int(pid) for pid in subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()]

    return [worker for raylet in children(driver, "-x", "raylet") for worker in children(raylet, "-f", "ray::_")]


def kills() -> None:
    data = rows_of(400_000)
    local = chosen(choose(make_model, *data, SIZE))
    with cluster_of(2):
        killed, done = [0], threading.Event()
        chance = random.Random(0)

        def kill() -> None:
            while not done.is_set() and killed[0] < 20:
                time.sleep(chance.uniform(0.1, 0.6))
                if pids := workers_of(os.getpid()):
                    with suppress(ProcessLookupError):
                        os.kill(chance.choice(pids), signal.SIGKILL)
                        killed[0] += 1

        killer = threading.Thread(target=kill)
        killer.start()
        start = time.perf_counter()
        there = chosen(choose(make_model, *data, SIZE, cluster="auto"))
        seconds = time.perf_counter() - start
        done.set()
        killer.join()
    print(f"{killed[0]} workers killed in {seconds:.0f} s: {'the same choice' if there == local else 'ANOTHER CHOICE'}")


@contextmanager
def counting() -> Iterator[list[int]]:
    """How many bytes the driver gets from others, as they are sent."""
    get, total = ray.get, [0]

    def counted(*args: Any, **options: Any) -> Any:
        values = get(*args, **options)
        total[0] += len(ray.cloudpickle.dumps(values))
        return values

    ray.get = counted
    try:
        yield total
    finally:
        ray.get = get


def bytes_to_the_driver() -> None:
    found = []
    with cluster_of(2), tempfile.TemporaryDirectory() as folder:
        for n in (10_000, 400_000):
            data = rows_of(n)
            path = Path(folder, f"{n}.parquet")
            pyarrow.parquet.write_table(as_table(*data), path, row_group_size=50_000)
            blocks = ray.data.from_arrow(slices(as_table(*data), 8192))
            with counting() as memory:
                choose(make_model, blocks, size=SIZE, target="cover", cluster="auto")
            with counting() as file:
                by_workers([path], SIZE)
            found.append([f"{n:,}", *(f"{total[0]:,}" for total in (memory, file))])
    print_table("what comes to the driver", ["rows", "bytes, a Ray Dataset", "bytes, a file"], found)


def processor_seconds() -> float:
    """Of this process and all that it started."""
    parents, spent = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid], spent[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(spent[pid] for pid in mine) / os.sysconf("SC_CLK_TCK")


def in_turns(runs: dict[str, Callable[[], Any]]) -> dict[str, list[tuple[float, float]]]:
    """Seconds, and processor seconds, of each run."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(TURNS):
        for name, run in runs.items():
            start, spent = time.perf_counter(), processor_seconds()
            run()
            seconds[name].append((time.perf_counter() - start, processor_seconds() - spent))
            print(f"  {name}: {seconds[name][-1][0]:.1f} s, {seconds[name][-1][1]:.1f} s of processors", flush=True)
    return seconds


def times() -> None:
    torch.set_num_threads(1)
    data = rows_of(400_000)
    with tempfile.TemporaryDirectory() as folder, cluster_of(2) as start_up:
        path = Path(folder, "rows.parquet")
        pyarrow.parquet.write_table(as_table(*data), path, row_group_size=50_000)
        few = Path(folder, "few.parquet")
        pyarrow.parquet.write_table(as_table(*rows_of(20_000)), few, row_group_size=5_000)
        by_workers([few], SIZE)  # workers import what they need
        seconds = in_turns(
            {
                "here, memory": lambda: choose(make_model, *data, 1000),
                "two workers, memory": lambda: choose(make_model, *data, 1000, cluster="auto"),
                "here, file": lambda: from_files([path], 1000),
                "two workers, file": lambda: by_workers([path], 1000),
            }
        )
    found = []
    for what in ("memory", "file"):
        here, there = (min(seconds[f"{who}, {what}"]) for who in ("here", "two workers"))
        row = [f"{here[0]:.1f}", f"{there[0]:.1f}", f"{there[0] / here[0]:.2f}"]
        found.append([what, *row, f"{here[1]:.1f}", f"{there[1]:.1f}", f"{there[1] / here[1]:.2f}"])
    print(f"to start Ray: {start_up:.1f} s")
    header = ["rows are in", "here [s]", "two workers [s]", "ratio", "here, processors [s]", "two workers", "ratio"]
    print_table("1000 of 400,000 rows, the fastest turn", header, found)


def nodes() -> None:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{i}.parquet") for i in range(8)]
        for path, part in zip(paths, slices(as_table(*rows_of(100_000)), 12_500), strict=True):
            pyarrow.parquet.write_table(part, path)
        here = from_files(paths, SIZE)
        for count in (1, 2, 4):
            row = [str(count)]
            for make in (cluster_of, nodes_of):
                with make(count):
                    by_workers(paths, SIZE)  # workers import what they need
                    start = time.perf_counter()
                    there = by_workers(paths, SIZE)
                    row += [f"{time.perf_counter() - start:.1f}", "same" if there == here else "OTHER"]
            found.append(row)
            print(row, flush=True)
    header = ["workers", "one node [s]", "choice", "a node each [s]", "choice"]
    print_table("200 of 100,000 rows of 8 files", header, found)


def cpu(run: Callable[[], Any]) -> float:
    """Processor seconds of this process, the best of three."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return best


def stages() -> None:
    torch.set_num_threads(1)
    n = 65_536
    data = rows_of(n)
    found: list[tuple[str, float, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.parquet")
        pyarrow.parquet.write_table(as_table(*data), path)
        settings = Settings("cover", SIZE, "recollect", task="classification")
        with opened([str(path)], settings.reading) as sources:
            tables = list(pieces(sources[0]))
            schema, examined = examine_files(settings, sources)
            read = cpu(lambda: list(pieces(sources[0])))
            first = begin(tables[0], "cover", {})
            glimpses = [{name: s.look(t.column(name), later=True) for name, s in first.items()} for t in tables[1:]]
            look = cpu(lambda: [s.look(t.column(name), later=True) for t in tables for name, s in first.items()])
            fold = cpu(lambda: _fold(first, glimpses))
            held = TableMemory.for_examined(settings, schema, examined, {})
            coding = cpu(lambda: [encode(table, held.encoding) for table in tables])
    found += [("reading Parquet", read / n, "row"), ("looking at columns", look / n, "row")]
    found += [("folding in, by one", fold / len(glimpses), f"{len(tables[0]):,} rows"), ("encoding", coding / n, "row")]
    embedding = rc.GradientEmbedding(make_model)
    prepared = embedding.prepare(*data)
    batch = Batch.arriving(*data)
    total, _ = embedding.add_total(None, batch.inputs, batch.targets, prepared=prepared)
    found.append(("sum of gradients", cpu(lambda: embedding.add_total(None, *data, prepared=prepared)) / n, "row"))
    some = data[0][:10_000], data[1][:10_000]
    one = cpu(lambda: embedding.embed(*some, prepared=prepared)) / 10_000
    found.append(("embedding a candidate", one, "candidate"))
    shown = [[a, f"{b * 1e6:,.1f} µs", c] for a, b, c in found]
    print_table("54 columns, S = 10, d = 1000, one thread", ["stage", "processor time", "for each"], shown)
    rows = []
    g = total.value().flatten()
    for kept in (500, 1000, 2000):
        G = embedding.embed(data[0][: 10 * kept], data[1][: 10 * kept], prepared=prepared)
        seconds = cpu(partial(rc.pursue, G, kept, target=g, count=n))
        rows.append([f"{kept:,}", f"{seconds:.1f}", f"{seconds / kept**2 * 1e6:.1f}"])
        print(rows[-1], flush=True)
    print_table("pursuit, ten candidates for each kept", ["kept", "processor time [s]", "µs / kept²"], rows)
    print(f"a sum of gradients takes {len(ray.cloudpickle.dumps(total)):,} bytes")


def driver() -> None:
    """Processor time of the driver alone for each piece of a file of its own, while workers read, look and encode."""
    settings = Settings("cover", SIZE, "recollect", task="classification")
    with tempfile.TemporaryDirectory() as folder, cluster_of(2), working("auto") as workers:
        paths = [Path(folder, f"{i}.parquet") for i in range(8)]
        for path, part in zip(paths, slices(as_table(*rows_of(131_072)), 16_384), strict=True):
            pyarrow.parquet.write_table(part, path)
        sources = workers.sources([str(path) for path in paths], settings.reading)
        schema, examined = workers.examine(settings, sources)
        held = TableMemory.for_examined(settings, schema, examined, {})
        first = cpu(lambda: workers.examine(settings, sources)) / 8
        second = cpu(lambda: [block.found() for block in workers.blocks(held, sources, Skipped())]) / 8
    print(f"the driver, for each 16,384 rows: {first * 1e3:.1f} ms for columns, {second * 1e3:.1f} ms for encoding")


def merging() -> None:
    data = rows_of(50_000)
    rows = []
    for seed in range(TURNS):
        embedding = rc.GradientEmbedding(make_model, seed=seed)
        embedding.prepared = embedding.prepare(*data)

        def leaves_of(count: int, kept: int, embedding: rc.GradientEmbedding = embedding) -> list[rc.GradientMatching]:
            memories = [rc.GradientMatching(embedding, kept) for _ in range(count)]
            for memory, inputs, targets in zip(memories, *(part.chunk(count) for part in data), strict=True):
                memory.update(inputs, targets)
            return memories

        for kept in (100, 400):
            errors = []
            for count in (1, 2, 4, 8):
                memories = leaves_of(count, kept)
                while len(memories) > 1:  # a tree
                    memories = [a.merge(b) for a, b in zip(memories[::2], memories[1::2], strict=True)]
                errors.append(rc.matching_error(make_model, data, memories[0].batch, inits=5))
            for count in (2, 4, 8):  # side by side, each with its part of the places
                batch = Batch.joined(memory.batch for memory in leaves_of(count, kept // count))
                errors.append(rc.matching_error(make_model, data, batch, inits=5))
            rows.append([str(seed), str(kept), *(f"{100 * error:.2f}" for error in errors)])
            print(rows[-1], flush=True)
    header = ["seed", "kept", "one", *(f"{n} merged" for n in (2, 4, 8)), *(f"{n} beside" for n in (2, 4, 8))]
    print_table("matching error [%] at fresh initialisations, 50,000 rows", header, rows)


PARTS: dict[str, Callable[[], None]] = {
    "identical": identical,
    "kills": kills,
    "bytes": bytes_to_the_driver,
    "time": times,
    "nodes": nodes,
    "stages": stages,
    "driver": driver,
    "merging": merging,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        print(f"## {name}", flush=True)
        PARTS[name]()
