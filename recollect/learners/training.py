"""Training on weighted examples."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recollect.batch import Batch, Inputs, forward, map_inputs
from recollect.losses import LossFunction, check_labels, check_losses, get_loss


@dataclass(frozen=True)
class Training:
    """How a model is trained: Adam with a constant step on shuffled minibatches (App. B.3)."""

    epochs: int = 200
    lr: float = 3e-4
    weight_decay: float = 1e-4
    batch_size: int = 100
    loss: str | LossFunction = "cross_entropy"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if not self.lr > 0:
            raise ValueError(f"lr must be a positive number, got {self.lr!r}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must be a number of at least 0, got {self.weight_decay!r}")
        get_loss(self.loss)


def weighted_loss(losses: Tensor, weights: Tensor) -> Tensor:
    """sum(w * l) / sum(w)."""
    weights = weights.to(losses)
    return (losses * weights).sum() / weights.sum()


def train(model: nn.Module, batch: Batch, training: Training, generator: torch.Generator) -> None:
    """Train the model on a weighted batch, in place."""
    per_example = get_loss(training.loss)
    optimizer = torch.optim.Adam(model.parameters(), lr=training.lr, weight_decay=training.weight_decay)
    model.train()
    for _ in range(training.epochs):
        for part in batch.minibatches(training.batch_size, generator):
            outputs = forward(model, part.inputs)
            check_labels(outputs, part.targets, training.loss)
            losses = check_losses(per_example(outputs, part.targets.to(outputs.device)), len(part))
            optimizer.zero_grad(set_to_none=True)
            weighted_loss(losses, part.weights).backward()
            optimizer.step()
    model.eval()


@torch.no_grad()
def predict(model: nn.Module, inputs: Inputs, batch_size: int = 1000) -> Tensor:
    """The model's outputs in evaluation mode."""
    was_training = model.training
    model.eval()
    try:
        n = len(inputs) if isinstance(inputs, Tensor) else len(next(iter(_values(inputs))))
        parts = [
            forward(model, map_inputs(lambda t, i=i: t[i : i + batch_size], inputs))  # type: ignore[misc]
            for i in range(0, n, batch_size)
        ]
    finally:
        model.train(was_training)
    return torch.cat(parts)


def _values(inputs: Inputs) -> list[Tensor]:
    return list(inputs.values()) if isinstance(inputs, dict) else list(inputs)
