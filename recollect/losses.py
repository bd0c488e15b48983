"""Losses: one number per example."""

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn import functional as F

LossFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Outputs and targets to one loss per example."""


IGNORED = -100
"""The class number of places without a label, as in torch."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Classification: targets are class numbers, or one probability per class, which add up to one.

    With outputs (n, classes, places) there is one target per place, and the places' losses are added up; those
    labelled -100 do not count.
    """
    if targets.is_floating_point():
        return _per_example(F.cross_entropy(outputs, targets.to(outputs.dtype), reduction="none"))
    return _per_example(F.cross_entropy(outputs, targets.long(), reduction="none", ignore_index=IGNORED))


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
    if callable(loss) and not isinstance(loss, type):
        return loss
    if not isinstance(loss, str) or loss not in LOSSES:
        names = ", ".join(map(repr, LOSSES))
        hint = ""
        if isinstance(loss, type) and issubclass(loss, nn.Module):
            hint = f": pass {loss.__name__}(reduction='none')"
        raise ValueError(f"loss must be one of {names} or a function of outputs and targets, got {loss!r}{hint}")
    return LOSSES[loss]


def check_losses(losses: Tensor, n: int) -> Tensor:
    """Refuse a loss that is not one number per example."""
    if not isinstance(losses, Tensor):
        raise ValueError(f"loss must return a tensor with one value per example, got {type(losses).__name__}")
    if losses.shape != (n,):
        several = losses.ndim > 1 and len(losses) == n
        hint = "add up what belongs to one example, as by .flatten(1).sum(1)" if several else "use reduction='none'"
        if losses.shape == (n, n):  # as of outputs (n, 1) and targets (n,): all pairs
            hint = f"give outputs and targets one shape, as by outputs.squeeze(1), or {hint}"
        raise ValueError(
            f"loss must return one value per example, got shape {tuple(losses.shape)} for {n} examples: {hint}"
        )
    if not losses.is_floating_point():
        raise ValueError(f"loss must return floating-point numbers, got {losses.dtype}")
    return losses


def check_labels(outputs: Tensor, targets: Tensor, loss: str | LossFunction) -> None:
    """Refuse targets that do not fit the outputs under one of the named losses, before torch does.

    Only the shape of an example is asked of the outputs: so this may be called inside `vmap`, and with the outputs of
    one example for the targets of many.
    """
    named = get_loss(loss)
    if named is cross_entropy:
        if targets.is_floating_point():
            _check_probabilities(outputs, targets)
        else:
            _check_class_numbers(outputs, targets)
    elif named in (squared_error, binary_cross_entropy):
        if outputs.shape[1:].numel() != targets.shape[1:].numel():
            raise ValueError(
                "targets must have as many numbers per example as the model has outputs, "
                f"got {_forms(outputs, targets)}"
            )
        if named is binary_cross_entropy and not (0 <= float(targets.min()) <= float(targets.max()) <= 1):
            low, high = float(targets.min()), float(targets.max())
            raise ValueError(f"targets of binary_cross_entropy must be from 0 to 1, got {low:g} to {high:g}")


def _check_probabilities(outputs: Tensor, targets: Tensor) -> None:
    if targets.ndim < 2 or targets.shape[1:] != outputs.shape[1:]:
        column = targets.ndim == 1 or targets.shape[1:].numel() == 1
        hint = ""
        if column and bool((targets == targets.round()).all()):
            hint = ": pass class numbers as targets.long(), or loss='squared_error' if they are quantities"
        elif column:
            hint = ": pass loss='squared_error' if they are quantities"
        raise ValueError(
            "floating-point targets of cross_entropy must hold one probability per class, "
            f"got {_forms(outputs, targets)}{hint}"
        )
    sums = targets.sum(1)
    if float(targets.min()) < 0 or float((sums - 1).abs().max()) > 1e-2:
        raise ValueError(
            "floating-point targets of cross_entropy must be probabilities that add up to 1 for each example, got "
            f"sums from {float(sums.min()):.3g} to {float(sums.max()):.3g}: use loss='binary_cross_entropy' if several "
            "classes may hold at once"
        )


def _check_class_numbers(outputs: Tensor, targets: Tensor) -> None:
    if outputs.ndim < 2 or targets.shape[1:] != outputs.shape[2:]:
        hint = ""
        if targets.ndim == 2 and targets.shape[1] == 1:
            hint = ": pass targets[:, 0]"
        elif outputs.ndim == 2 and targets.shape[1:] == outputs.shape[1:]:
            hint = ": pass targets.argmax(1) if they are one-hot, or use loss='binary_cross_entropy'"
        elif outputs.ndim > 2 and targets.shape[1:] == outputs.shape[1:-1]:
            hint = ": classes come second, so let the model return outputs.movedim(-1, 1)"
        raise ValueError(
            f"targets must be one class number per example, or per place of it, got {_forms(outputs, targets)}{hint}"
        )
    if not targets.numel():
        return
    n_classes = outputs.shape[1]
    lowest, highest = map(int, targets.aminmax())
    if lowest == IGNORED:
        lowest = int(targets.masked_fill(targets == IGNORED, max(highest, 0)).min())
    if lowest < 0 or highest >= n_classes:
        raise ValueError(
            f"targets must be class numbers from 0 to {n_classes - 1}, as the model has {n_classes} outputs, "
            f"got {lowest if lowest < 0 else highest}"
            + ("" if lowest < 0 else ": let make_model make one with an output for every class that may come")
        )


def _forms(outputs: Tensor, targets: Tensor) -> str:
    return f"shape {tuple(targets.shape[1:])} for an example with outputs of shape {tuple(outputs.shape[1:])}"


def _per_example(losses: Tensor) -> Tensor:
    return losses if losses.ndim == 1 else losses.flatten(1).sum(1)
