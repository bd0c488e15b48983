"""Training a model on weighted examples."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from recollect.batch import Batch, as_inputs, forward, map_inputs, named_tensors
from recollect.checks import check_count, check_flag, check_number
from recollect.losses import LossFunction, check_labels, check_losses, get_loss
from recollect.numerics import flushing_denormals
from recollect.progress import progress_bar
from recollect.randomness import seeded, shuffled_by_weight

MakeOptimizer: TypeAlias = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""A function of the trainable parameters that returns what moves them."""

MakeScheduler: TypeAlias = Callable[[torch.optim.Optimizer, int], LRScheduler]
"""A function of the optimizer and of the number of steps to come that returns what sets the rate of each."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Training:
    """How a model is trained: Adam with a constant step on shuffled minibatches (App. B.3), unless told otherwise."""

    epochs: int = 200
    lr: float = 3e-4
    weight_decay: float = 1e-4
    batch_size: int = 100
    loss: str | LossFunction = "cross_entropy"
    optimizer: MakeOptimizer | None = None
    scheduler: MakeScheduler | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))
        object.__setattr__(self, "weight_decay", check_number("weight_decay", self.weight_decay))
        object.__setattr__(self, "lr", check_number("lr", self.lr))
        if not self.lr:
            raise ValueError("lr must be more than 0, got 0.0")
        if isinstance(self.optimizer, torch.optim.Optimizer):  # of another model's parameters
            got = type(self.optimizer).__name__
            raise ValueError(f"optimizer must be a function of parameters, got {got}: pass what makes one of them")
        if not (self.optimizer is None or callable(self.optimizer)):
            raise ValueError(f"optimizer must be a function of parameters, got {self.optimizer!r}")
        if not (self.scheduler is None or callable(self.scheduler)):
            raise ValueError(f"scheduler must be a function of an optimizer and steps, got {self.scheduler!r}")
        check_flag("progress", self.progress)
        get_loss(self.loss)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per example."""
        check_labels(outputs, targets, self.loss)
        return check_losses(get_loss(self.loss)(outputs, targets.to(outputs.device)), len(targets))

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Adam, with one pass over the parameters per step, or the user's own."""
        if self.optimizer is None:
            return torch.optim.Adam(parameters, lr=self.lr, weight_decay=self.weight_decay, fused=True)
        made = self.optimizer(parameters)
        if not isinstance(made, torch.optim.Optimizer):
            raise ValueError(f"optimizer must return a torch.optim.Optimizer, got {type(made).__name__}")
        return made

    def make_scheduler(self, optimizer: torch.optim.Optimizer, steps: int) -> LRScheduler | None:
        """The user's own, if there is one, for so many steps."""
        if self.scheduler is None:
            return None
        made = self.scheduler(optimizer, steps)
        if not isinstance(made, LRScheduler) or isinstance(made, ReduceLROnPlateau):
            raise ValueError(
                f"scheduler must return one of torch.optim.lr_scheduler that needs no metric, got {type(made).__name__}"
            )
        return made


@dataclass(frozen=True)
class Task:
    """A model that is to be trained, in place, on a weighted batch, in an order that the generator draws.

    In an epoch each example comes once and counts by its weight or, if `drawn`, comes as often as its weight says
    (`shuffled_by_weight`), and all count alike.
    """

    model: nn.Module
    batch: Batch
    generator: torch.Generator
    drawn: bool = False

    def __post_init__(self) -> None:
        check_weights(self.batch)

    def order(self) -> Tensor:
        """The rows of one epoch, as many as there are examples."""
        if self.drawn:
            return shuffled_by_weight(self.batch.weights, self.generator)
        return torch.randperm(len(self.batch), generator=self.generator)

    def weights(self) -> Tensor:
        """How much each example counts where it comes."""
        weights = self.batch.weights
        return weights.sign() if self.drawn else weights  # what has no weight does not come, unless nothing has any


def check_weights(batch: Batch) -> None:
    """Refuse negative weights: in a minibatch they can add up to almost nothing, which makes its step huge."""
    if len(batch) and (least := float(batch.weights.min())) < 0:
        raise ValueError(
            f"weights must be at least 0 to be trained with, got {least:g}: make the memory with nonnegative=True"
        )


def train(task: Task, training: Training) -> nn.Module:
    """Train the model of a task, in place; returns it. A minibatch without any weight is passed over."""
    model, batch = task.model, replace(task.batch, weights=task.weights())

    def epoch() -> Iterator[Batch]:
        return (part for part in minibatches(model, batch, training, task.order()) if part.weights.any())

    def loss(part: Batch) -> Tensor:
        return weighted_mean(training.losses(forward(model, part.inputs), part.targets), part.weights)

    return fit(model, training, epoch, loss, task.generator, steps=steps_of(model, len(batch), training))


def fit(
    model: nn.Module,
    training: Training,
    epoch: Callable[[], Iterable[Item]],
    loss: Callable[[Item], Tensor],
    generator: torch.Generator,
    *,
    steps: int,
) -> nn.Module:
    """Train the model in place: for each item of each epoch, of which there are `steps`, one down its loss's gradient.

    What the model draws itself, as dropout does, follows from the generator as it is now, which is left as it is; so is
    the global random state. Whoever asks for a prediction while gradients are off gets a model that was trained.
    """
    aside = torch.Generator()
    aside.set_state(generator.get_state())
    seed = int(torch.randint(2**62, (), generator=aside))
    with flushing_denormals(), seeded(seed), torch.inference_mode(False), torch.enable_grad():
        return _fitted(model, training, epoch, loss, steps)


def _fitted(
    model: nn.Module,
    training: Training,
    epoch: Callable[[], Iterable[Item]],
    loss: Callable[[Item], Tensor],
    steps: int,
) -> nn.Module:
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model must have at least one trainable parameter, got none")
    optimizer = training.make_optimizer(parameters)
    scheduler = training.make_scheduler(optimizer, training.epochs * steps)
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    asks = closure is not None and closure.default is inspect.Parameter.empty  # for the loss, as LBFGS does

    def backward(item: Item) -> float:
        optimizer.zero_grad(set_to_none=True)
        value = loss(item)
        value.backward()
        return value  # type: ignore[return-value]

    model.train()
    with progress_bar("training", training.epochs, show=training.progress) as bar:
        for _ in range(training.epochs):
            for item in epoch():
                if asks:
                    optimizer.step(partial(backward, item))
                else:
                    backward(item)
                    optimizer.step()
                if scheduler is not None:
                    scheduler.step()
            bar.advance()
    return model.eval()


def minibatches(model: nn.Module, batch: Batch, training: Training, order: Tensor) -> Iterator[Batch]:
    """Minibatches in this order; with BatchNorm, which has no statistics of one, a last one joins those before."""
    parts = [*order.split(min(training.batch_size, len(batch)))]
    if steps_of(model, len(batch), training) < len(parts):
        parts[-2:] = [torch.cat(parts[-2:])]
    return (batch.take(rows) for rows in parts)


def steps_of(model: nn.Module, n: int, training: Training) -> int:
    """How many minibatches n examples are in one epoch.

    Example:
        >>> training = Training(batch_size=10)
        >>> steps_of(nn.Linear(2, 2), 21, training), steps_of(nn.BatchNorm1d(2), 21, training)
        (3, 2)
    """
    size = min(training.batch_size, n)
    alone = n > size > 1 and n % size == 1
    joined = alone and any(isinstance(module, _BatchNorm) for module in model.modules())
    return -(-n // size) - joined


def paired(
    model: nn.Module, arrived: Batch, held: Batch, training: Training, generator: torch.Generator
) -> Iterator[tuple[Batch, Batch]]:
    """Minibatches of what arrived, each with as many remembered examples drawn at random."""
    for part in minibatches(model, arrived, training, torch.randperm(len(arrived), generator=generator)):
        yield part, held.take(torch.randperm(len(held), generator=generator)[: len(part)])


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """sum(w * l) / sum(w); zero where nothing has any weight."""
    weights = weights.to(losses)
    return (losses * weights).sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)


@torch.no_grad()
def predict(model: nn.Module, inputs: Any, batch_size: int = 1000) -> Tensor:
    """The model's outputs in evaluation mode."""
    inputs = as_inputs(inputs)
    if any(not tensor.ndim for tensor in named_tensors(inputs).values()):
        raise ValueError("inputs must have one row per example, got a single number")
    was_training = model.training
    model.eval()
    try:
        n = len(next(iter(named_tensors(inputs).values())))
        parts = [
            forward(model, map_inputs(lambda t, i=i: t[i : i + batch_size], inputs))  # type: ignore[misc]
            for i in range(0, max(n, 1), batch_size)
        ]
    finally:
        model.train(was_training)
    return torch.cat(parts)
