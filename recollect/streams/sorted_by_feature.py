"""A drift without tasks: rows in the order of one feature."""

import operator
from typing import SupportsIndex

from recollect.checks import check_count
from recollect.datasets import Dataset, Examples
from recollect.streams.stream import Stream, part


def sorted_by_feature(dataset: Dataset, feature: int = 0, batches: int = 10) -> Stream:
    """A stream of rows that are sorted by a feature and cut into batches of nearly equal size (App. B.1).

    Args:
        dataset: what is sorted.
        feature: the number of the column to sort by.
        batches: how many batches there are.

    Example:
        >>> from recollect import datasets
        >>> digits = datasets.load("digits")
        >>> stream = sorted_by_feature(digits, feature=20, batches=4)
        >>> [len(targets) for _, targets in stream.batches]
        [360, 359, 359, 359]
    """
    n_features = dataset.train.inputs[0].numel()
    batches = check_count("batches", batches)
    whole = isinstance(feature, SupportsIndex) and not isinstance(feature, bool)
    if not whole or not 0 <= operator.index(feature) < n_features:
        raise ValueError(f"feature must be between 0 and {n_features - 1}, got {feature!r}")
    if batches > len(dataset.train.targets):
        raise ValueError(f"batches must be between 1 and the {len(dataset.train.targets)} rows, got {batches}")

    def cut(examples: Examples) -> list[Examples]:
        order = examples.inputs.flatten(1)[:, feature].sort(stable=True).indices
        return [part(examples, rows) for rows in order.tensor_split(batches)]

    return Stream(cut(dataset.train), dataset.test, cut(dataset.test))
