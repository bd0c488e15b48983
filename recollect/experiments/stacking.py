"""Training many small networks at once, as one stack, with the numbers of training each alone.

A step of a small network is so short that much of its time goes into starting it. Networks of one shape can share that:
their weights are stacked, and each step is made by one batched product per layer. The chain rule is written out, so
that nothing is recorded along the way: the gradients of all layers are written where Adam, in one pass over all of
them, looks for them. Only the paper's network for tables is small enough to gain: a batch of convolutions is slower
than one after the other.

Differs from training alone in the layout: the last layer's outputs are kept with the classes before the examples,
where a softmax over a few classes takes a tenth of the time.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from recollect.batch import named_tensors
from recollect.learners import Task, Training, train
from recollect.losses import check_labels, cross_entropy, get_loss
from recollect.numerics import flushing_denormals

AT_ONCE = 8
"""Networks per stack: more share no more of the start of a step, and their weights leave the processor's cache."""


def is_stackable(model: nn.Module) -> bool:
    """Whether this is the paper's network for tables: linear layers with biases, ReLU between them, all to be trained.

    Example:
        >>> from recollect.models import cnn, mlp
        >>> is_stackable(mlp(3, 2)), is_stackable(cnn((1, 8, 8), 2))
        (True, False)
    """
    if not isinstance(model, nn.Sequential):
        return False
    first, *layers = model.children()
    in_turn = all(type(layer) is (nn.ReLU if i % 2 else nn.Linear) for i, layer in enumerate(layers))
    biased = all(layer.bias is not None for layer in layers if isinstance(layer, nn.Linear))
    all_trained = all(p.requires_grad and p.dtype == torch.float32 for p in model.parameters())
    return isinstance(first, nn.Flatten) and in_turn and len(layers) % 2 == 1 and biased and all_trained


def train_together(tasks: Sequence[Task], training: Training) -> list[float]:
    """Train the models of all tasks, in place; returns how many seconds each took, or its part of what was shared."""
    # Learners of one seed want the same before anything is remembered: it is trained once.
    first = [next(j for j in range(i + 1) if j == i or _same(task, tasks[j])) for i, task in enumerate(tasks)]
    stacked = [i for i in sorted(set(first)) if _fits(tasks[i], training)]
    seconds = [0.0] * len(tasks)
    # Those with as many steps go together: who has had all of them leaves, and the others go on as a smaller stack.
    stacked.sort(key=lambda i: len(tasks[i].batch))
    stacks = -(-len(stacked) // AT_ONCE) if len(stacked) > 1 else 0
    parts = [stacked[len(stacked) * s // stacks : len(stacked) * (s + 1) // stacks] for s in range(stacks)]
    for part in [*parts, *([i] for i in sorted(set(first).difference(*parts)))]:
        start = time.perf_counter()
        if len(part) > 1:
            train_stack([tasks[i] for i in part], training)
        else:
            train(tasks[part[0]], training)
        elapsed, total = time.perf_counter() - start, sum(len(tasks[i].batch) for i in part)
        for i in part:
            seconds[i] = elapsed * len(tasks[i].batch) / total
    for i, j in enumerate(first):
        if i != j:
            tasks[i].model.load_state_dict(tasks[j].model.state_dict())
            tasks[i].model.eval()
            tasks[i].generator.set_state(tasks[j].generator.get_state())
    return [seconds[j] / first.count(j) for j in first]


def _same(one: Task, other: Task) -> bool:
    """Whether training both gives the same."""
    if (len(one.batch), one.drawn, repr(one.model)) != (len(other.batch), other.drawn, repr(other.model)):
        return False
    a, b = ([task.generator.get_state(), *_tensors(task)] for task in (one, other))
    return len(a) == len(b) and all(map(torch.equal, a, b))


def _tensors(task: Task) -> list[Tensor]:
    batch = task.batch
    inputs = named_tensors(batch.inputs).values()
    return [batch.weights, *task.model.state_dict().values(), batch.targets, *inputs]


def _fits(task: Task, training: Training) -> bool:
    """Whether this task can be one of a stack: a small network, a class number for each example, Adam at one rate."""
    plain = training.optimizer is None is training.scheduler and get_loss(training.loss) is cross_entropy
    labels = task.batch.targets
    numbered = labels.ndim == 1 and not labels.is_floating_point() and int(labels.min()) >= 0
    return plain and numbered and is_stackable(task.model)


@torch.no_grad()
@flushing_denormals()
def train_stack(tasks: Sequence[Task], training: Training) -> None:
    """Train stackable models of one shape by cross-entropy, each on its own batch.

    Batches may differ in size: a minibatch that is not full is filled up with examples of weight zero, and a model that
    has had all its steps leaves the stack.
    """
    models, batches = [task.model for task in tasks], [task.batch for task in tasks]
    # All examples in one tensor, so that the minibatches of all models are one lookup; the last row is for filling.
    tensors = [next(iter(named_tensors(batch.inputs).values())).flatten(1) for batch in batches]
    inputs = torch.cat([*tensors, tensors[0][:1]]).float()
    targets = torch.cat([*(batch.targets for batch in batches), batches[0].targets[:1]]).long()
    weights = torch.cat([*(task.weights() for task in tasks), torch.zeros(1)])
    check_labels(models[0](inputs[:1]), targets, training.loss)
    stack = _Stack(models, training)
    starts, size = [0, *accumulate(map(len, batches))], min(training.batch_size, max(map(len, batches)))
    schedules = [_schedule(*pair, training.epochs, size, weights) for pair in zip(tasks, starts, strict=False)]
    while schedules:
        minibatches = [next(schedule, None) for schedule in schedules]
        going = [i for i, rows in enumerate(minibatches) if rows is not None]
        if len(going) < len(schedules):
            stack.keep(going)
            schedules = [schedules[i] for i in going]
        if going:
            rows = torch.stack([minibatches[i] for i in going])  # type: ignore[misc]  # (models, batch_size)
            stack.step(inputs[rows], targets.take(rows), weights.take(rows))


def _schedule(task: Task, start: int, epochs: int, size: int, weights: Tensor) -> Iterator[Tensor]:
    """The rows of each minibatch of one model, in the order in which `train` takes them."""
    n = len(task.batch)
    for _ in range(epochs):
        rows = torch.full((-(-n // size), size), len(weights) - 1)
        rows.flatten()[:n] = task.order() + start
        yield from rows[weights[rows].any(1)]


class _Stack:
    """Models of one shape that take their steps together.

    Weights and biases lie in one row of numbers, layer by layer, each for all models; their gradients and Adam's state
    in others like it. `W[l]` and `b[l]` are views of the former, `dW[l]` and `db[l]` of the gradients.
    """

    def __init__(self, models: Sequence[nn.Module], training: Training) -> None:
        self._models, self._training = [*models], training
        columns = [torch.stack(column) for column in zip(*(model.parameters() for model in models), strict=True)]
        self._lay_out(columns)

    def _lay_out(self, columns: Sequence[Tensor], state: dict[str, Sequence[Tensor] | Tensor] | None = None) -> None:
        """Lie the parameters, one column for each, and Adam's state, if it has any, in rows."""
        self._shapes = [column.shape for column in columns]
        self._row = nn.Parameter(torch.cat([column.flatten() for column in columns]))
        self._row.grad = torch.empty_like(self._row)
        self._optimizer = self._training.make_optimizer([self._row])
        if state is not None:
            rows = {
                name: e if isinstance(e, Tensor) else torch.cat([c.flatten() for c in e]) for name, e in state.items()
            }
            self._optimizer.state[self._row] = rows
        values, gradients = self._columns(self._row), self._columns(self._row.grad)
        self.W, self.b, self.dW, self.db = values[::2], values[1::2], gradients[::2], gradients[1::2]

    def _columns(self, row: Tensor) -> list[Tensor]:
        parts = row.detach().split([shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def keep(self, going: list[int]) -> None:
        """Let the models leave that are not among those; all are given what they have learned so far."""
        for i, model in enumerate(self._models):
            for own, column in zip(model.parameters(), self._columns(self._row), strict=True):
                own.copy_(column[i])
            model.eval()
        self._models = [self._models[i] for i in going]
        state = {
            name: [column[going] for column in self._columns(entry)] if entry.ndim else entry
            for name, entry in self._optimizer.state[self._row].items()
        }
        self._lay_out([column[going] for column in self._columns(self._row)], state)

    def step(self, x: Tensor, targets: Tensor, weights: Tensor) -> None:
        """Go down the gradient of each model's weighted mean loss; x is (models, batch_size, features)."""
        values = [x]  # of each layer, what it is given
        for W, b in zip(self.W[:-1], self.b[:-1], strict=True):
            values.append(torch.baddbmm(b[:, None], values[-1], W.mT).relu_())
        outputs = torch.baddbmm(self.b[-1][:, :, None], self.W[-1], values[-1].mT)  # (models, classes, batch_size)
        share = (weights / weights.sum(1, keepdim=True))[:, None]
        # The derivative of sum(w * cross-entropy) / sum(w) at the outputs: softmax less one at the target, by share.
        d = outputs.softmax(1).mul_(share).scatter_add_(1, targets[:, None], -share)
        torch.bmm(d, values[-1], out=self.dW[-1])
        torch.sum(d, 2, out=self.db[-1])
        d = d.mT
        for i in reversed(range(len(self.W) - 1)):
            d = torch.bmm(d, self.W[i + 1])
            torch.ops.aten.threshold_backward.grad_input(d, values[i + 1], 0, grad_input=d)  # ReLU's, in place
            torch.bmm(d.mT, values[i], out=self.dW[i])
            torch.sum(d, 1, out=self.db[i])
        self._optimizer.step()
