"""What a matrix of accuracies says.

In all of these, `matrix[i, j]` is the accuracy on task j after learning task i, with as many rows as columns.
"""

import torch
from torch import Tensor


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of examples whose largest output is the target."""
    if not len(targets):
        raise ValueError("accuracy needs at least one example, got none")
    return float((outputs.argmax(1) == targets.to(outputs.device)).double().mean())


def final_accuracy(matrix: Tensor) -> float:
    """Mean over all tasks after the last one.

    Example:
        >>> matrix = torch.tensor([[1.0, 0.0], [0.5, 0.75]])
        >>> final_accuracy(matrix), forgetting(matrix)
        (0.625, 0.5)
    """
    return float(_checked(matrix)[-1].mean())


def average_accuracy(matrix: Tensor) -> float:
    """Mean over time of the mean over the tasks learned by then."""
    matrix = _checked(matrix)
    return sum(float(matrix[i, : i + 1].mean()) for i in range(len(matrix))) / len(matrix)


def forgetting(matrix: Tensor) -> float:
    """How far tasks have fallen below their best, on average over all but the last (Chaudhry et al. 2018)."""
    matrix = _checked(matrix)
    if len(matrix) == 1:
        return 0.0
    best = torch.stack([matrix[j:-1, j].max() for j in range(len(matrix) - 1)])
    return float((best - matrix[-1, :-1]).mean())


def backward_transfer(matrix: Tensor) -> float:
    """How later tasks changed earlier ones, on average (Lopez-Paz and Ranzato 2017); negative means forgetting."""
    matrix = _checked(matrix)
    if len(matrix) == 1:
        return 0.0
    return float((matrix[-1, :-1] - matrix.diagonal()[:-1]).mean())


def forward_transfer(matrix: Tensor, untrained: Tensor) -> float:
    """How much earlier tasks help later ones before they are learned, against an untrained model's accuracies."""
    matrix = _checked(matrix)
    if untrained.shape != matrix[0].shape:
        raise ValueError(
            f"untrained must hold one accuracy for each of the {len(matrix)} tasks, got shape {tuple(untrained.shape)}"
        )
    if len(matrix) == 1:
        return 0.0
    ahead = torch.stack([matrix[j - 1, j] for j in range(1, len(matrix))])
    return float((ahead - untrained[1:]).mean())


def _checked(matrix: Tensor) -> Tensor:
    if matrix.ndim != 2 or not len(matrix) or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"the accuracy matrix must have a row and a column per task, got shape {tuple(matrix.shape)}")
    return matrix.double()
