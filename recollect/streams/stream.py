"""A stream: batches that come one after the other, and what to test on."""

from dataclasses import dataclass

from torch import Tensor

from recollect.datasets import Examples


@dataclass(frozen=True)
class Stream:
    """Batches in the order in which they arrive, and test data.

    Attributes:
        batches: inputs and targets of each batch.
        test: inputs and targets to test on, of the whole stream.
        tests: the part of `test` that belongs to each batch, for the accuracy on each task.
    """

    batches: list[Examples]
    test: Examples
    tests: list[Examples]


def part(examples: Examples, rows: Tensor) -> Examples:
    return Examples(examples.inputs[rows], examples.targets[rows])
