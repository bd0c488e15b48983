"""Runs many experiments: what can be shared is computed once, what is stored is not repeated, a stop loses little.

A *group* is a set of experiments that differ in memory size, seed and settings of the pursuit alone. First gradient
matching chooses, for all experiments of a seed together, and writes down what it chose (`choices`); then small networks
see the stream side by side and are trained as one stack, and others follow one by one. Each experiment's numbers are
those of running it alone, up to rounding in the stack.
"""

import math
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from recollect import datasets
from recollect.datasets import Dataset
from recollect.experiments.choices import Choices, Replayed, choose_for
from recollect.experiments.experiment import (
    KEY_FIELDS,
    WITHOUT_MEMORY,
    Experiment,
    Run,
    is_gradient_matching,
    make_memory,
    make_model_for,
    make_stream,
    train_together,
)
from recollect.experiments.results import Results
from recollect.models import is_only_linear
from recollect.progress import Bar, progress_bar
from recollect.pursuit import PursuitOptions
from recollect.streams import Stream

Group = tuple[Experiment, ...]


def grouped(experiments: Iterable[Experiment]) -> list[Group]:
    """Experiments that can share their embeddings, together, in the order in which they first appear."""
    groups: dict[tuple[Any, ...], list[Experiment]] = {}
    for experiment in experiments:
        key = experiment.key()
        del key["size"], key["seed"]
        key["options"] = {k: v for k, v in key["options"].items() if k not in PursuitOptions.__annotations__}
        groups.setdefault(tuple(map(repr, key.items())), []).append(experiment)
    return [tuple(sorted(set(group), key=lambda e: (e.seed, e.size, repr(e.options)))) for group in groups.values()]


def run_group(
    group: Group,
    dataset: Dataset | None = None,
    folder: Path | None = None,
    advance: Callable[[float], None] = lambda share: None,
) -> Iterator[list[dict[str, Any]]]:
    """The results of a group, as soon as they are there.

    Args:
        group: experiments that differ in size, seed and settings of the pursuit alone.
        dataset: their data set; loaded if not given.
        folder: where what gradient matching chooses is looked up and kept, if anywhere.
        advance: told how many experiments' worth of work has been done since it was told last.
    """
    dataset = datasets.load(group[0].dataset) if dataset is None else dataset
    stream = make_stream(group[0], dataset)
    runs, share = _prepared(group, dataset, stream, Choices(stream, folder), advance)
    with torch.device("meta"):  # draws nothing
        stacked = is_only_linear(make_model_for(dataset)())
    for some in [runs] if stacked else [[run] for run in runs]:
        for i in range(len(stream.batches)):
            train_together([run.stepping(i) for run in some])
            advance(share * len(some) / len(runs))
        yield [run.result() for run in some]


def _prepared(
    group: Group, dataset: Dataset, stream: Stream, choices: Choices, advance: Callable[[float], None]
) -> tuple[list[Run], float]:
    """Runs whose gradient matching has been done, and the share of the work that each of their batches is."""
    matching = [e for e in group if e.learner not in WITHOUT_MEMORY and is_gradient_matching(e.memory)]
    known = {e: chosen for e in matching if (chosen := choices.find(e)) is not None}
    before = set(known)
    unknown: dict[int, list[Experiment]] = {}
    for experiment in matching:
        if experiment not in known:
            unknown.setdefault(experiment.seed, []).append(experiment)
    share = len(group) / (len(stream.batches) * (1 + len(unknown)))
    for experiments in unknown.values():
        memories = [make_memory(experiment, make_model_for(dataset)) for experiment in experiments]
        for experiment, chosen in zip(experiments, choose_for(memories, stream, partial(advance, share)), strict=True):
            choices.keep(experiment, chosen)
            known[experiment] = chosen
    runs = []
    for e in group:
        if e in known:
            memory = Replayed(e.size, known[e], seed=e.seed)
            runs.append(Run(e, dataset, stream, memory, choosing=known[e].seconds, shared=e in before))
        else:
            runs.append(Run(e, dataset, stream))
    return runs, share


def outstanding(experiments: Iterable[Experiment], store: Results) -> list[Experiment]:
    """Those whose results are not stored yet."""
    done = store.keys()
    return [experiment for experiment in experiments if store.normalised(experiment.key()) not in done]


def reproduce(experiments: Iterable[Experiment], store: Results, *, workers: int = 1, progress: bool = True) -> int:
    """Run what is outstanding and store it as it comes; returns how many results were added.

    Args:
        experiments: what is wanted.
        store: where results are; may be continued at any time.
        workers: how many processes; the threads of the machine are shared among them.
        progress: show a progress bar in a terminal.
    """
    groups = grouped(outstanding(experiments, store))
    with progress_bar("reproducing", sum(map(len, groups)), show=progress) as bar:
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
        pending = {pool.submit(_run_in_worker, group, store) for group in groups}
        while pending:
            finished, pending = wait(pending, timeout=1, return_when=FIRST_COMPLETED)
            now = done.value
            bar.advance(now - shown)
            shown = now
            added += sum(future.result() for future in finished)
    return added


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


def estimate_seconds(experiments: Iterable[Experiment], store: Results) -> float | None:
    """How long the outstanding ones will take, from stored ones like them; None if there is nothing to go by."""
    known: dict[tuple[Any, ...], list[float]] = {}
    for result in store.read():
        for key in _likeness(result):
            known.setdefault(key, []).append(result["seconds"])
    total = 0.0
    for experiment in outstanding(experiments, store):
        times = next((known[key] for key in _likeness(experiment.key()) if key in known), None)
        if times is None:
            return None
        total += median(times)
    return total


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
