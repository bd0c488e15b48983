"""A few classes at a time."""

import torch

from recollect.datasets import Dataset, Examples
from recollect.streams.stream import Stream, part


def class_incremental(dataset: Dataset, classes_per_task: int = 2) -> Stream:
    """Classes 0 and 1, then 2 and 3, and so on (App. B.1).

    Example:
        >>> from recollect import datasets
        >>> stream = class_incremental(datasets.load("digits"))
        >>> [sorted(set(targets.tolist())) for _, targets in stream.batches]
        [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    """
    if not 1 <= classes_per_task <= dataset.n_classes:
        raise ValueError(
            f"classes_per_task must be between 1 and the {dataset.n_classes} classes, got {classes_per_task}"
        )

    def tasks(examples: Examples) -> list[Examples]:
        task = torch.div(examples.targets, classes_per_task, rounding_mode="floor")
        n_tasks = -(-dataset.n_classes // classes_per_task)
        return [part(examples, (task == t).nonzero().flatten()) for t in range(n_tasks)]

    return Stream(tasks(dataset.train), dataset.test, tasks(dataset.test))
