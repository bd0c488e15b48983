"""What a matrix of accuracies says.

In all of these, `matrix[i, j]` is the accuracy on task j after learning task i, with as many rows as columns: a tensor,
an array or nested lists.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from recollect.arrays import as_tensor


def accuracy(outputs: Any, targets: Any) -> float:
    """The share of examples whose largest output is the target.

    Example:
        >>> accuracy([[0.9, 0.1], [0.3, 0.7]], [0, 0])
        0.5
    """
    outputs, targets = as_tensor(outputs, "outputs"), as_tensor(targets, "targets")
    if outputs.ndim != 2 or targets.shape != outputs.shape[:1]:
        raise ValueError(
            "outputs must have a row and targets a number for each example, "
            f"got shapes {tuple(outputs.shape)} and {tuple(targets.shape)}"
        )
    if not outputs.numel():
        raise ValueError("accuracy needs at least one example and one class, got none")
    if outputs.shape[1] == 1:
        raise ValueError(
            "outputs must have a column for each of several classes, got one: of a model that says yes or no, compare "
            "outputs[:, 0] > 0 with the targets"
        )
    scores = outputs.byte() if outputs.dtype == torch.bool else outputs  # truth values have no argmax in torch
    return float((scores.argmax(1) == targets.to(outputs.device)).double().mean())


def accuracies(predict: Callable[[Any], Any], tests: Iterable[tuple[Any, Any]]) -> list[float]:
    """The accuracy on the test examples of each task: after each task, one row of the matrix.

    Args:
        predict: a learner's, or any function of inputs to outputs.
        tests: inputs and targets by task, as `stream.tests`; where there are none, the accuracy is NaN.

    Example:
        >>> double = lambda x: torch.stack([-x, x], dim=1)
        >>> accuracies(double, [(torch.tensor([-1.0, 3.0]), torch.tensor([0, 0])), (torch.tensor([2.0]), [1])])
        [0.5, 1.0]
    """
    return [accuracy(predict(inputs), targets) if len(targets) else math.nan for inputs, targets in tests]


def final_accuracy(matrix: Any) -> float:
    """Mean over all tasks after the last one.

    Example:
        >>> matrix = torch.tensor([[1.0, 0.0], [0.5, 0.75]])
        >>> final_accuracy(matrix), forgetting(matrix)
        (0.625, 0.5)
    """
    return float(_checked(matrix)[-1].mean())


def average_accuracy(matrix: Any) -> float:
    """Mean over time of the mean over the tasks learned by then."""
    matrix = _checked(matrix)
    return sum(float(matrix[i, : i + 1].mean()) for i in range(len(matrix))) / len(matrix)


def forgetting(matrix: Any) -> float:
    """How far tasks have fallen below the best they ever were, on average over all but the last.

    The best is over all earlier times, also those before the task was learned (Chaudhry et al. 2018, Eq. 3); where
    these are NaN, as they were not measured, over the others. Tasks that were measured at the end alone do not count.
    """
    matrix = _checked(matrix)
    if len(matrix) == 1:
        return 0.0
    earlier = matrix[:-1, :-1]
    best = earlier.nan_to_num(nan=-math.inf).amax(0)
    measured = ~earlier.isnan().all(0)
    return float((best - matrix[-1, :-1])[measured].mean()) if bool(measured.any()) else 0.0


def backward_transfer(matrix: Any) -> float:
    """How later tasks changed earlier ones, on average (Lopez-Paz and Ranzato 2017); negative means forgetting."""
    matrix = _checked(matrix)
    if len(matrix) == 1:
        return 0.0
    return float((matrix[-1, :-1] - matrix.diagonal()[:-1]).mean())


def forward_transfer(matrix: Any, untrained: Any) -> float:
    """How much earlier tasks help later ones before they are learned, against an untrained model's accuracies."""
    matrix, untrained = _checked(matrix), as_tensor(untrained, "untrained").double()
    if untrained.shape != matrix[0].shape:
        raise ValueError(
            f"untrained must hold one accuracy for each of the {len(matrix)} tasks, got shape {tuple(untrained.shape)}"
        )
    if len(matrix) == 1:
        return 0.0
    ahead = torch.stack([matrix[j - 1, j] for j in range(1, len(matrix))])
    return float((ahead - untrained[1:]).mean())


def _checked(values: Any) -> Tensor:
    matrix = as_tensor(values, "the accuracy matrix")
    if matrix.ndim != 2 or not len(matrix) or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"the accuracy matrix must have a row and a column per task, got shape {tuple(matrix.shape)}")
    return matrix.double()
