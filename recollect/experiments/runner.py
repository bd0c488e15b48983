"""Runs many experiments: what can be shared is computed once, what is stored is not repeated, a stop loses little.

A *group* is a set of experiments that differ in memory size and seed alone. They see the stream side by side: gradient
embeddings, which do not depend on the size, are computed once per batch and seed, and small networks are trained as one
stack. Each experiment's numbers are those of running it alone, up to rounding in the stack.
"""

import math
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from recollect import datasets
from recollect.datasets import Dataset
from recollect.dictionary import Dictionary
from recollect.embedding import GradientEmbedding
from recollect.experiments.experiment import KEY_FIELDS, Experiment, Run, make_stream, train_together
from recollect.experiments.store import Store
from recollect.memories import GradientMatching
from recollect.progress import progress_bar

Group = tuple[Experiment, ...]


class SharedEmbedding(GradientEmbedding):
    """Remembers the candidates of a batch until all memories that share it have asked for them."""

    sharers = 1
    _last: tuple[Tensor, Dictionary] | None = None
    _asked = 0

    def dictionary(self, inputs: Tensor, targets: Tensor, *, progress: bool = False) -> Dictionary:
        # The inputs are held on to, so that no other tensor can come to lie at the same address.
        if self._last is None or self._last[0].data_ptr() != inputs.data_ptr() or len(self._last[0]) != len(inputs):
            self._last = None  # let go of the old before the new is made: both may not fit
            self._last, self._asked = (inputs, super().dictionary(inputs, targets, progress=progress)), 0
        found, self._asked = self._last[1], self._asked + 1
        if self._asked == self.sharers:
            self._last = None
        return found

    def forget(self) -> None:
        """Keep what the first memory of the group has learned of the stream: the others see the same one."""


def grouped(experiments: Iterable[Experiment]) -> list[Group]:
    """Experiments that differ in size and seed alone, together, in the order in which they first appear."""
    groups: dict[tuple[Any, ...], list[Experiment]] = {}
    for experiment in experiments:
        key = experiment.key()
        del key["size"], key["seed"]
        groups.setdefault(tuple(map(repr, key.items())), []).append(experiment)
    return [tuple(sorted(set(group), key=lambda e: (e.seed, e.size))) for group in groups.values()]


def run_group(group: Group, dataset: Dataset | None = None) -> list[dict[str, Any]]:
    """The results of a group."""
    dataset = datasets.load(group[0].dataset) if dataset is None else dataset
    stream = make_stream(group[0], dataset)
    runs = [Run(experiment, dataset, stream) for experiment in group]
    shared: dict[int, SharedEmbedding] = {}
    for run in runs:
        if isinstance(memory := run.learner.memory, GradientMatching):
            if memory.seed not in shared:
                shared[memory.seed] = memory.share(SharedEmbedding)
                shared[memory.seed].sharers = sum(other.experiment.seed == memory.seed for other in runs)
            memory.embedding = shared[memory.seed]
    for i in range(len(stream.batches)):
        train_together([run.stepping(i) for run in runs])
    return [run.result() for run in runs]


def outstanding(experiments: Iterable[Experiment], store: Store) -> list[Experiment]:
    """Those whose results are not stored yet."""
    done = store.keys()
    return [experiment for experiment in experiments if store.normalised(experiment.key()) not in done]


def reproduce(experiments: Iterable[Experiment], store: Store, *, workers: int = 1, progress: bool = True) -> int:
    """Run what is outstanding and store it, a group at a time; returns how many results were added.

    Args:
        experiments: what is wanted.
        store: where results are; may be continued at any time.
        workers: how many processes; the threads of the machine are shared among them.
        progress: show a progress bar in a terminal.
    """
    groups = grouped(outstanding(experiments, store))
    added = 0
    with progress_bar("reproducing", sum(map(len, groups)), show=progress) as bar:
        for results in _results(groups, workers):
            store.append(*results)
            added += len(results)
            bar.advance(len(results))
    return added


def _results(groups: list[Group], workers: int) -> Iterator[list[dict[str, Any]]]:
    if workers <= 1:
        yield from map(run_group, groups)
        return
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        pending = {pool.submit(run_group, group) for group in groups}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def estimate_seconds(experiments: Iterable[Experiment], store: Store) -> float | None:
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
    """From very alike to somewhat alike."""
    names = ("learner", "memory", "size", "dataset"), ("learner", "memory", "dataset"), ("learner", "memory", "size")
    return [tuple((name, key[name]) for name in some) for some in names]


def open_store(path: Path) -> Store:
    """The store of results, by the fields that tell experiments apart."""
    return Store(path, KEY_FIELDS)


def in_words(seconds: float) -> str:
    """A duration for people.

    Example:
        >>> in_words(4000), in_words(65)
        ('1 h 7 min', '2 min')
    """
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
