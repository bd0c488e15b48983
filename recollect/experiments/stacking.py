"""Training many small networks at once, as one stack, with the numbers of training each alone.

A step of a small network is so short that much of its time goes into starting it. Networks of one shape can share that:
their weights are stacked, and each step is made by one batched product per layer. Only the paper's network for tables
is small enough to gain: a batch of convolutions is slower than one after the other.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from recollect.batch import named_tensors
from recollect.learners import Task, Training, train
from recollect.losses import check_labels, get_loss

_LAYERS = (nn.Flatten, nn.Linear, nn.ReLU)


def is_stackable(model: nn.Module) -> bool:
    """Whether this is a sequence of linear layers and ReLU, all to be trained.

    Example:
        >>> from recollect.models import cnn, mlp
        >>> is_stackable(mlp(3, 2)), is_stackable(cnn((1, 8, 8), 2))
        (True, False)
    """
    if not (isinstance(model, nn.Sequential) and isinstance(model[0], nn.Flatten)):
        return False
    return all(type(layer) in _LAYERS for layer in model) and all(p.requires_grad for p in model.parameters())


def train_together(tasks: Sequence[Task], training: Training) -> list[float]:
    """Train the models of all tasks, in place; returns how many seconds each took, or its part of a stack."""
    stacked = [i for i, task in enumerate(tasks) if is_stackable(task.model) and training.optimizer is None]
    seconds = [0.0] * len(tasks)
    for i, task in enumerate(tasks):
        if i not in stacked or len(stacked) == 1:
            start = time.perf_counter()
            train(task.model, task.batch, training, task.generator)
            seconds[i] = time.perf_counter() - start
    if len(stacked) > 1:
        start = time.perf_counter()
        train_stack([tasks[i] for i in stacked], training)
        elapsed, total = time.perf_counter() - start, sum(len(tasks[i].batch) for i in stacked)
        for i in stacked:
            seconds[i] = elapsed * len(tasks[i].batch) / total
    return seconds


def train_stack(tasks: Sequence[Task], training: Training) -> None:
    """Train stackable models of one shape, each on its own batch; one that has had all its steps leaves the stack.

    Batches may differ in size: a minibatch that is not full is filled up with examples of weight zero.
    """
    models, batches = [task.model for task in tasks], [task.batch for task in tasks]
    columns = zip(*(model.parameters() for model in models), strict=True)
    parameters = [torch.stack(column).detach().requires_grad_() for column in columns]
    # All examples in one tensor, so that the minibatches of all models are one lookup; the last row is for filling.
    tensors = [next(iter(named_tensors(batch.inputs).values())).flatten(1) for batch in batches]
    inputs = torch.cat([*tensors, tensors[0][:1]]).to(parameters[0].dtype)
    targets = torch.cat([*(batch.targets for batch in batches), batches[0].targets[:1]])
    weights = torch.cat([*(batch.weights for batch in batches), torch.zeros(1)])
    layers, loss = [*models[0].children()], get_loss(training.loss)
    with torch.no_grad():
        check_labels(models[0](inputs[:1]), targets, training.loss)
    optimizer = training.make_optimizer(parameters)  # type: ignore[arg-type]
    starts, size = [0, *accumulate(map(len, batches))], min(training.batch_size, max(map(len, batches)))
    schedules = [_schedule(*pair, training.epochs, size, weights) for pair in zip(tasks, starts, strict=False)]
    while models:
        minibatches = [next(schedule, None) for schedule in schedules]
        if any(rows is None for rows in minibatches):
            going = [i for i, rows in enumerate(minibatches) if rows is not None]
            _write_back(models, parameters)  # those that go on are written again, at their end
            models, schedules = [models[i] for i in going], [schedules[i] for i in going]
            parameters, optimizer = _shrunk(parameters, optimizer, going, training)
        rows = torch.stack([rows for rows in minibatches if rows is not None]) if models else None
        if rows is not None:
            outputs = _forward(layers, parameters, inputs[rows])  # (models, batch_size, classes)
            losses = loss(outputs.flatten(0, 1), targets[rows].flatten(0, 1)).view(rows.shape)
            w = weights[rows]
            optimizer.zero_grad(set_to_none=True)
            ((losses * w).sum(1) / w.sum(1)).sum().backward()
            optimizer.step()


def _schedule(task: Task, start: int, epochs: int, size: int, weights: Tensor) -> Iterator[Tensor]:
    """The rows of each minibatch of one model, in the order in which `train` takes them."""
    n = len(task.batch)
    for _ in range(epochs):
        rows = torch.full((-(-n // size), size), len(weights) - 1)
        rows.flatten()[:n] = torch.randperm(n, generator=task.generator) + start
        yield from rows[weights[rows].any(1)]


def _forward(layers: Sequence[nn.Module], parameters: Sequence[Tensor], x: Tensor) -> Tensor:
    values = iter(parameters)
    for layer in layers:
        if isinstance(layer, nn.Linear):
            weight = next(values).transpose(1, 2)
            x = x @ weight if layer.bias is None else torch.baddbmm(next(values)[:, None], x, weight)
        elif isinstance(layer, nn.ReLU):
            x = x.relu()
    return x


@torch.no_grad()
def _write_back(models: Sequence[nn.Module], parameters: Sequence[Tensor]) -> None:
    for i, model in enumerate(models):
        for own, stacked in zip(model.parameters(), parameters, strict=True):
            own.copy_(stacked[i])
        model.eval()


def _shrunk(
    parameters: list[Tensor], optimizer: torch.optim.Optimizer, kept: list[int], training: Training
) -> tuple[list[Tensor], torch.optim.Optimizer]:
    """Some models of the stack, with their part of Adam's state."""
    fewer = [value.detach()[kept].requires_grad_() for value in parameters]
    smaller = training.make_optimizer(fewer)  # type: ignore[arg-type]
    for old, new in zip(parameters, fewer, strict=True):
        smaller.state[new] = {
            name: entry[kept] if entry.ndim else entry.clone() for name, entry in optimizer.state[old].items()
        }
    return fewer, smaller
