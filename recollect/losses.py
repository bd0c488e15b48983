"""Losses: one number per example."""

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor
from torch.nn import functional as F

LossFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Outputs and targets to one loss per example."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Classification: targets are class numbers, or one probability per class."""
    if targets.is_floating_point():
        return F.cross_entropy(outputs, targets, reduction="none")
    return _per_example(F.cross_entropy(outputs, targets.long(), reduction="none"))


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Regression: the squared distance, summed over outputs."""
    return _per_example((outputs - targets.to(outputs.dtype).reshape(outputs.shape)) ** 2)


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Yes-or-no questions: outputs are logits, targets in [0, 1], summed over outputs."""
    targets = targets.to(outputs.dtype).reshape(outputs.shape)
    return _per_example(F.binary_cross_entropy_with_logits(outputs, targets, reduction="none"))


LOSSES: dict[str, LossFunction] = {
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
    "binary_cross_entropy": binary_cross_entropy,
}


def get_loss(loss: str | LossFunction) -> LossFunction:
    """Look up a loss by name; a function is returned as it is.

    Example:
        >>> get_loss("hinge")
        Traceback (most recent call last):
        ...
        ValueError: loss must be one of 'cross_entropy', 'squared_error', 'binary_cross_entropy'
        or a function of outputs and targets, got 'hinge'
    """
    if callable(loss):
        return loss
    if not isinstance(loss, str) or loss not in LOSSES:
        names = ", ".join(map(repr, LOSSES))
        raise ValueError(f"loss must be one of {names} or a function of outputs and targets, got {loss!r}")
    return LOSSES[loss]


def check_losses(losses: Tensor, n: int) -> Tensor:
    """Refuse a loss that is not one number per example."""
    if not isinstance(losses, Tensor):
        raise ValueError(f"loss must return a tensor with one value per example, got {type(losses).__name__}")
    if losses.shape != (n,):
        raise ValueError(
            f"loss must return one value per example, got shape {tuple(losses.shape)} for {n} examples: "
            "use reduction='none'"
        )
    return losses


def check_labels(outputs: Tensor, targets: Tensor, loss: str | LossFunction) -> None:
    """Refuse class numbers that the model has no output for, before they index out of range."""
    if loss != "cross_entropy" or targets.is_floating_point():
        return
    n_classes = outputs.shape[1] if outputs.ndim > 1 else 1
    lowest, highest = int(targets.min()), int(targets.max())
    if lowest < 0 or highest >= n_classes:
        raise ValueError(
            f"targets must be class numbers from 0 to {n_classes - 1}, as the model has {n_classes} outputs, "
            f"got {lowest if lowest < 0 else highest}"
        )


def _per_example(losses: Tensor) -> Tensor:
    return losses if losses.ndim == 1 else losses.flatten(1).sum(1)
