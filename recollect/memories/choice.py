"""The answer of a memory: what stays, and whether that can be kept."""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from recollect.batch import Batch


@dataclass(frozen=True)
class Choice:
    """The answer of a memory: which examples stay, with what weight, and what to remember about them.

    Attributes:
        indices: ascending positions among those held, followed by those that arrived.
        weights: one per index.
        state: tensors that the memory needs for its next choice.
    """

    indices: Tensor
    weights: Tensor
    state: dict[str, Tensor] = field(default_factory=dict)


def kept_of(held: Batch, arrived: Batch, choice: Choice) -> Batch:
    """The chosen examples, copied out of both without joining them."""
    if len(choice.indices) == len(held) + len(arrived):
        kept = held.followed_by(arrived)  # all of them: many small updates end here
    else:
        first = choice.indices < len(held)
        kept = held.take(choice.indices[first]).followed_by(arrived.take(choice.indices[~first] - len(held)))
    return replace(kept, weights=choice.weights.to(kept.targets.device, torch.float32))


def check_choice(choice: Choice, n: int, capacity: int) -> None:
    """Refuse what cannot be kept, such as the choice of a memory that is being written."""
    if not isinstance(choice, Choice):
        raise ValueError(f"choose must return a Choice, got {type(choice).__name__}")
    indices, weights = choice.indices, choice.weights
    if indices.ndim != 1 or indices.dtype != torch.long or len(indices) > capacity:
        raise ValueError(
            f"choose must return at most {capacity} whole numbers as indices, "
            f"got {indices.dtype} of shape {tuple(indices.shape)}"
        )
    if not ascend(indices, n):
        raise ValueError(f"choose must return ascending indices from 0 to {n - 1}, got others")
    if weights.shape != indices.shape or not math.isfinite(weights.float().sum()):
        raise ValueError(
            f"choose must return one finite weight for each of {len(indices)} indices, got shape "
            f"{tuple(weights.shape)} or weights that are not finite: are the inputs far from any sensible scale?"
        )


def ascend(numbers: Tensor, end: int) -> bool:
    """Whether these are ascending numbers from 0 to below the end."""
    if not len(numbers):
        return True
    return int(numbers[0]) >= 0 and int(numbers[-1]) < end and bool((numbers[1:] > numbers[:-1]).all())
