"""Training on weighted examples, one model or many of one shape at once."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import stack_module_state, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from recollect.batch import Batch, Inputs, forward, functional_forward, map_inputs, named_tensors
from recollect.checks import check_count
from recollect.losses import LossFunction, check_labels, check_losses, get_loss
from recollect.models import is_only_linear
from recollect.progress import progress_bar

Item = TypeVar("Item")


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
            check_count(name, getattr(self, name))
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"lr must be a positive number, got {self.lr!r}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"weight_decay must be a number of at least 0, got {self.weight_decay!r}")
        get_loss(self.loss)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per example."""
        check_labels(outputs, targets, self.loss)
        return check_losses(get_loss(self.loss)(outputs, targets.to(outputs.device)), len(targets))

    def optimizer(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """Adam, with one pass over the parameters per step."""
        return torch.optim.Adam(parameters, lr=self.lr, weight_decay=self.weight_decay, fused=True)


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """sum(w * l) / sum(w)."""
    weights = weights.to(losses)
    return (losses * weights).sum() / weights.sum()


def fit(
    model: nn.Module, training: Training, epoch: Callable[[], Iterable[Item]], loss: Callable[[Item], Tensor]
) -> None:
    """Train the model in place: for each item of each epoch, a step down the gradient of its loss."""
    optimizer = training.optimizer(p for p in model.parameters() if p.requires_grad)
    model.train()
    for _ in range(training.epochs):
        for item in epoch():
            optimizer.zero_grad(set_to_none=True)
            loss(item).backward()
            optimizer.step()
    model.eval()


class Job(NamedTuple):
    """A model that is to be trained on a weighted batch."""

    model: nn.Module
    batch: Batch
    training: Training
    generator: torch.Generator

    def run(self) -> None:
        """Train it, by itself."""
        train(self.model, self.batch, self.training, self.generator)


def train(model: nn.Module, batch: Batch, training: Training, generator: torch.Generator) -> None:
    """Train the model on a weighted batch, in place."""

    def loss(part: Batch) -> Tensor:
        return weighted_mean(training.losses(forward(model, part.inputs), part.targets), part.weights)

    fit(model, training, lambda: batch.minibatches(training.batch_size, generator), loss)


def train_jobs(jobs: Sequence[Job]) -> list[float]:
    """Do all jobs, as one stack where that is faster; returns how many seconds each took, or its part of a stack.

    A stack pays for small networks of linear layers; a batch of convolutions is slower than one after the other.
    """
    seconds = [0.0] * len(jobs)
    stacks: dict[Training, list[int]] = {}
    for i, job in enumerate(jobs):
        if is_only_linear(job.model):
            stacks.setdefault(job.training, []).append(i)
        else:
            start = time.perf_counter()
            job.run()
            seconds[i] = time.perf_counter() - start
    for training, members in stacks.items():
        start = time.perf_counter()
        models, batches, _, generators = zip(*(jobs[i] for i in members), strict=True)
        train_many(models, batches, training, generators)
        elapsed, total = time.perf_counter() - start, sum(len(batch) for batch in batches)
        for i in members:
            seconds[i] = elapsed * len(jobs[i].batch) / total
    return seconds


def train_many(
    models: Sequence[nn.Module],
    batches: Sequence[Batch],
    training: Training,
    generators: Sequence[torch.Generator],
    *,
    progress: bool = False,
) -> None:
    """Train models of one shape, each on its own batch, as one stacked model; the numbers are those of `train`.

    Small networks spend their time on overhead, and a stack shares it. Batches may differ in size: a minibatch that is
    not full is filled up with examples of weight zero, and a model that has had all its steps leaves the stack.
    Models with BatchNorm layers, which would see the filling, are trained one by one.
    """
    if not len(models) == len(batches) == len(generators):
        raise ValueError(
            f"models, batches and generators must be equally many, got {len(models)}, {len(batches)} and "
            f"{len(generators)}"
        )
    alone = [any(isinstance(m, _BatchNorm) for m in model.modules()) for model in models]
    if len(models) == 1 or any(alone):
        with progress_bar("training", len(models), show=progress) as bar:
            for model, batch, generator in zip(models, batches, generators, strict=True):
                train(model, batch, training, generator)
                bar.advance()
        return
    _Stack(models, batches, training, generators).run(progress)


class _Stack:
    """Models of one shape, ordered by how many steps they take, the longest first."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        batches: Sequence[Batch],
        training: Training,
        generators: Sequence[torch.Generator],
    ) -> None:
        self._training = training
        self._steps = [training.epochs * -(-len(batch) // training.batch_size) for batch in batches]
        order = sorted(range(len(models)), key=lambda i: -self._steps[i])
        self._models = [models[i] for i in order]
        self._batches = [batches[i] for i in order]
        self._steps = [self._steps[i] for i in order]
        self._schedules = [self._schedule(i, generators[order[i]]) for i in range(len(order))]
        # All examples in one tensor, so that the minibatches of all models are one lookup; the last row is for filling.
        tensors = [list(named_tensors(batch.inputs).values()) for batch in self._batches]
        self._inputs = [torch.cat([*column, column[0][:1]]) for column in zip(*tensors, strict=True)]
        self._targets = torch.cat([*[batch.targets for batch in self._batches], self._batches[0].targets[:1]])
        self._weights = torch.cat([*[batch.weights for batch in self._batches], torch.zeros(1)])
        starts = [0]
        for batch in self._batches:
            starts.append(starts[-1] + len(batch))
        self._starts, self._filling = starts, starts[-1]

    def _schedule(self, i: int, generator: torch.Generator) -> Iterator[Tensor]:
        """The rows of each minibatch of one model, in the order in which `train` takes them."""
        for _ in range(self._training.epochs):
            yield from torch.randperm(len(self._batches[i]), generator=generator).split(self._training.batch_size)

    def run(self, progress: bool) -> None:
        for model in self._models:
            model.train()
        parameters, buffers = stack_module_state(self._models)
        skeleton = self._models[0]
        loss_of = get_loss(self._training.loss)
        example = self._batches[0].inputs

        def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: tuple[Tensor, ...], y: Tensor, w: Tensor) -> Tensor:
            values = iter(x)
            outputs = functional_forward(skeleton, {**p, **b}, map_inputs(lambda _: next(values), example))
            return weighted_mean(check_losses(loss_of(outputs, y), len(y)), w)

        self._check_first_outputs()
        stacked = vmap(loss, randomness="different")
        active = len(self._models)
        optimizer = self._training.optimizer(parameters.values())
        width = self._training.batch_size
        with progress_bar(f"training {active} models", self._steps[0], show=progress) as bar:
            for step in range(self._steps[0]):
                if self._steps[active - 1] <= step:
                    remaining = sum(steps > step for steps in self._steps)
                    self._retire(parameters, range(remaining, active))
                    parameters, optimizer = _shrunk(parameters, optimizer, remaining, self._training)
                    buffers = {name: value[:remaining] for name, value in buffers.items()}
                    active = remaining
                rows = torch.full((active, width), self._filling)
                for i in range(active):
                    part = next(self._schedules[i])
                    rows[i, : len(part)] = part + self._starts[i]
                inputs = tuple(column[rows] for column in self._inputs)
                losses = stacked(parameters, buffers, inputs, self._targets[rows], self._weights[rows])
                optimizer.zero_grad(set_to_none=True)
                losses.sum().backward()
                optimizer.step()
                bar.advance()
        self._retire(parameters, range(active))
        for model in self._models:
            model.eval()

    def _check_first_outputs(self) -> None:
        """Refuse wrong labels before the stack, in which they cannot be looked at."""
        with torch.no_grad():
            first = map_inputs(lambda t: t[:1], self._batches[0].inputs)
            was_training = self._models[0].training
            outputs = forward(self._models[0].eval(), first)
            self._models[0].train(was_training)
        check_labels(outputs, self._targets, self._training.loss)

    def _retire(self, parameters: dict[str, Tensor], which: Iterable[int]) -> None:
        """Write trained parameters back into their models."""
        with torch.no_grad():
            for i in which:
                for name, parameter in self._models[i].named_parameters():
                    parameter.copy_(parameters[name][i])


def _shrunk(
    parameters: dict[str, Tensor], optimizer: torch.optim.Optimizer, count: int, training: Training
) -> tuple[dict[str, Tensor], torch.optim.Optimizer]:
    """The first `count` models of the stack, with their part of Adam's state."""
    kept = {name: value.detach()[:count].clone().requires_grad_() for name, value in parameters.items()}
    smaller = training.optimizer(kept.values())
    for name, value in parameters.items():
        state = optimizer.state[value]
        smaller.state[kept[name]] = {
            key: entry[:count].clone() if entry.ndim else entry.clone() for key, entry in state.items()
        }
    return kept, smaller


@torch.no_grad()
def predict(model: nn.Module, inputs: Inputs, batch_size: int = 1000) -> Tensor:
    """The model's outputs in evaluation mode."""
    was_training = model.training
    model.eval()
    try:
        n = len(next(iter(named_tensors(inputs).values())))
        parts = [
            forward(model, map_inputs(lambda t, i=i: t[i : i + batch_size], inputs))  # type: ignore[misc]
            for i in range(0, n, batch_size)
        ]
    finally:
        model.train(was_training)
    return torch.cat(parts)
