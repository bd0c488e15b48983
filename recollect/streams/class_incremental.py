"""A few classes at a time."""

from recollect.checks import check_count
from recollect.datasets import Dataset, Examples
from recollect.streams.stream import Stream, part


def class_incremental(dataset: Dataset, classes_per_task: int = 2) -> Stream:
    """A stream in which classes arrive in groups: 0 and 1, then 2 and 3, and so on (App. B.1).

    Args:
        dataset: what is divided; classes without examples are passed over.
        classes_per_task: how many classes arrive in each batch.

    Example:
        >>> from recollect import datasets
        >>> stream = class_incremental(datasets.load("digits"))
        >>> [sorted(set(targets.tolist())) for _, targets in stream.batches]
        [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    """
    classes_per_task = check_count("classes_per_task", classes_per_task)
    if classes_per_task > dataset.n_classes:
        raise ValueError(
            f"classes_per_task must be between 1 and the {dataset.n_classes} classes, got {classes_per_task}"
        )

    if dataset.train.targets.is_floating_point():
        raise ValueError(f"targets must be class numbers to come class by class, got {dataset.train.targets.dtype}")
    present = (dataset.train.targets // classes_per_task).unique()

    def tasks(examples: Examples) -> list[Examples]:
        task = examples.targets // classes_per_task
        return [part(examples, (task == t).nonzero().flatten()) for t in present]

    return Stream(tasks(dataset.train), dataset.test, tasks(dataset.test))
