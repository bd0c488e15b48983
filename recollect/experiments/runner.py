"""Runs many experiments, in groups: what is stored is not repeated, and a stop loses little."""

import math
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from recollect.cluster import connected, spread
from recollect.experiments.experiment import KEY_FIELDS, Experiment
from recollect.experiments.group import Group, run_group
from recollect.experiments.recordings import EMBEDDING_OPTIONS
from recollect.experiments.results import Results
from recollect.progress import Bar, progress_bar


def grouped(experiments: Iterable[Experiment]) -> list[Group]:
    """Experiments that can share their embeddings, together, in the order in which they first appear."""
    groups: dict[tuple[Any, ...], list[Experiment]] = {}
    for experiment in experiments:
        key = experiment.key()
        del key["size"], key["seed"]
        key["options"] = {k: v for k, v in key["options"].items() if k in EMBEDDING_OPTIONS}
        groups.setdefault(tuple(map(repr, key.items())), []).append(experiment)
    return [tuple(sorted(set(group), key=lambda e: (e.seed, e.size, repr(e.options)))) for group in groups.values()]


def outstanding(experiments: Iterable[Experiment], store: Results) -> list[Experiment]:
    """Those whose results are not stored yet."""
    done = store.keys()
    return [experiment for experiment in experiments if store.normalised(experiment.key()) not in done]


def reproduce(
    experiments: Iterable[Experiment],
    store: Results,
    *,
    workers: int = 1,
    progress: bool = True,
    cheapest_first: bool = False,
    cluster: str | None = None,
) -> int:
    """Run what is outstanding and store it as it comes; returns how many results were added.

    Args:
        experiments: what is wanted.
        store: where results are; may be continued at any time.
        workers: how many processes; the threads of the machine are shared among them.
        progress: show a progress bar in a terminal.
        cheapest_first: begin with those that take the least time for each result, judged by what is stored.
        cluster: run them on a Ray cluster, a thread each: "auto", or its address; the data must be where this machine
            has them. Results are stored here, and are the same.
    """
    groups = grouped(outstanding(experiments, store))
    if cheapest_first:
        expected = expected_seconds(store)
        groups.sort(key=lambda group: sum(expected(e) or math.inf for e in group) / len(group))
    with progress_bar("reproducing", sum(map(len, groups)), show=progress) as bar:
        if cluster is not None:
            return _run_on_cluster(groups, store, cluster, bar)
        if workers <= 1:
            return sum(_run_and_store(group, store, bar.advance) for group in groups)
        return _run_in_processes(groups, store, workers, bar)


def _run_and_store(group: Group, store: Results, advance: Callable[[float], None]) -> int:
    added = 0
    for results in run_group(group, folder=store.path.with_suffix(".choices"), advance=advance):
        added += store.append(*results)
    return added


def _run_in_processes(groups: list[Group], store: Results, workers: int, bar: Bar) -> int:
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    done = context.Value("d", 0.0)
    shown, added = 0.0, 0
    with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(threads, done)) as pool:
        waiting, running = deque(groups), set[Future[int]]()
        while waiting or running:
            # No more than can run: a pool goes on with all that it was given, also after an interrupt or a failure.
            while waiting and len(running) < workers:
                running.add(pool.submit(_run_in_worker, waiting.popleft(), store))
            finished, running = wait(running, timeout=1, return_when=FIRST_COMPLETED)
            now = done.value
            bar.advance(now - shown)
            shown = now
            added += sum(future.result() for future in finished)
    return added


def _run_on_cluster(groups: list[Group], store: Results, address: str, bar: Bar) -> int:
    added = 0
    with connected(address):
        for results in spread(partial(_run_elsewhere, os.environ.get("RECOLLECT_DATA")), groups):
            added += store.append(*results)
            bar.advance(len(results))
    return added


def _run_elsewhere(data: str | None, group: Group) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    if data is not None:
        os.environ["RECOLLECT_DATA"] = data
    return [result for results in run_group(group) for result in results]


_done: Any = None  # in a worker: the number of experiments' worth of work that all workers have done


def _start_worker(threads: int, done: Any) -> None:
    global _done
    torch.set_num_threads(threads)
    _done = done


def _run_in_worker(group: Group, store: Results) -> int:
    return _run_and_store(group, store, _tell)


def _tell(share: float) -> None:
    with _done.get_lock():
        _done.value += share


def expected_seconds(store: Results) -> Callable[[Experiment], float | None]:
    """A function that says how long an experiment will take, from stored ones like it; None with nothing to go by.

    Choosing takes as long whatever the epochs, and training as many times longer as there are more of them.
    """
    known: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for result in store.read():
        choosing = min(result["seconds"], result.get("seconds_of", {}).get("choose", 0.0))
        for key in _likeness(result):
            known.setdefault(key, []).append((choosing, (result["seconds"] - choosing) / result["epochs"]))

    def expected(experiment: Experiment) -> float | None:
        times = next((known[key] for key in _likeness(experiment.key()) if key in known), None)
        return None if times is None else median(c + experiment.epochs * t for c, t in times)

    return expected


def estimate_seconds(experiments: Iterable[Experiment], store: Results) -> float | None:
    """How long the outstanding ones will take, from stored ones like them; None if there is nothing to go by."""
    times = [*map(expected_seconds(store), outstanding(experiments, store))]
    return None if None in times else sum(time for time in times if time is not None)


def _likeness(key: dict[str, Any]) -> list[tuple[Any, ...]]:
    """From very alike to hardly alike."""
    names = (
        ("learner", "memory", "size", "dataset"),
        ("learner", "memory", "dataset"),
        ("learner", "memory", "size"),
        ("learner", "dataset"),
        ("learner",),
        (),
    )
    return [tuple((name, key[name]) for name in some) for some in names]


def open_store(path: Path) -> Results:
    """The store of results, by the fields that tell experiments apart."""
    return Results(path, KEY_FIELDS)


def in_words(seconds: float) -> str:
    """A duration for people.

    Example:
        >>> in_words(4000), in_words(65)
        ('1 h 7 min', '2 min')
    """
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
