"""One vector per example, for memories that compare examples by what they look like."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from recollect.arrays import kind_of
from recollect.batch import Batch, Inputs, named_tensors

Features: TypeAlias = Callable[[Inputs], Tensor]
"""A fixed function of the inputs to one vector per example."""


def check_features(features: object) -> None:
    """Refuse what is neither a function nor None."""
    if features is not None and not callable(features):
        raise ValueError(f"features must be a function of the inputs or None, got {type(features).__name__}")


def features_of(batch: Batch, function: Features | None, width: int | None) -> Tensor:
    """The features of examples: what the function makes of the inputs, or the inputs themselves, flattened.

    Args:
        batch: the examples.
        function: of the user, checked in what it returns.
        width: how many numbers each example had so far, if there were any.
    """
    if function is None:
        tensors = named_tensors(batch.inputs)
        names = sorted(tensors) if isinstance(batch.inputs, dict) else tensors  # a dict may come in another order
        return torch.cat([tensors[name].reshape(len(batch), -1).float() for name in names], dim=1)
    features = function(batch.inputs)
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(batch):
        got = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"features must return one vector per example, got {got} for {len(batch)} examples")
    width = features.shape[1] if width is None else width
    usable = kind_of(features) == "dense" and features.is_floating_point()
    if features.shape[1] != width or not usable or not features.isfinite().all():
        raise ValueError(
            f"features must return finite floating-point numbers, always {width} per example, "
            f"got {features.dtype} of shape {tuple(features.shape)}, or some that are not finite"
        )
    return features.detach().to(batch.targets.device)
