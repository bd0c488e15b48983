"""Avalanche: every memory as a storage policy, and replay that trains with the weights.

    strategy = Naive(model, optimizer, CrossEntropyLoss(), plugins=[WeightedReplayPlugin(memory)])

Avalanche's own replay takes equally many new and remembered examples, and lets each count the same. Here a minibatch is
put together in the same way, and its loss is sum(w * loss) / sum(w): a new example weighs one, and a remembered one as
many new ones as it stands for, so that the expected loss is the one over everything seen.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from recollect.batch import Batch
from recollect.checks import check_count
from recollect.integrations.extras import needed_for
from recollect.learners.training import weighted_mean
from recollect.losses import LossFunction, check_losses
from recollect.memories import Memory
from recollect.randomness import generator

with needed_for("avalanche"):
    from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
    from avalanche.training.plugins import GDumbPlugin, SupervisedPlugin
    from avalanche.training.storage_policy import ExemplarsBuffer

_PORTION = 512  # examples read at a time


class MemoryBuffer(ExemplarsBuffer):  # type: ignore[misc]
    """A storage policy of Avalanche that lets a memory choose what to keep.

    It also works with Avalanche's own plugins, which train without the weights, such as
    `ReplayPlugin(mem_size=memory.capacity, storage_policy=...)`. Examples are kept as they are after the transforms for
    evaluation.

    Args:
        memory: any memory of `recollect`. Examples that it already holds get the task label 0, as Avalanche gives where
            there are no tasks.
    """

    def __init__(self, memory: Memory) -> None:
        if not isinstance(memory, Memory):
            raise ValueError(f"memory must be a recollect memory, got {type(memory).__name__}")
        super().__init__(memory.capacity)
        self.memory = memory
        self.labels: list[Tensor] = []  # of tasks, if there are any, of the examples held

    def post_adapt(self, agent_state: Any, exp: Any) -> None:
        """Show the memory the experience, and make the buffer anew of what it keeps."""
        inputs, targets, *labels = _read(exp.dataset)
        memory = self.memory
        held, first = memory.batch.ids if len(memory) else torch.empty(0, dtype=torch.long), memory.seen
        before = self.labels_of(labels)
        memory.update(inputs, targets, model=agent_state.model if memory.needs_model else None)
        ids = memory.batch.ids
        old, new = torch.searchsorted(held, ids[ids < first]), ids[ids >= first] - first
        self.labels = [torch.cat([b[old], label[new]]) for b, label in zip(before, labels, strict=True)]
        self.buffer = self._dataset(memory.batch)

    def labels_of(self, new: Sequence[Tensor]) -> list[Tensor]:
        """The labels of tasks of the examples held, of which new examples have such."""
        count = len(self.memory)
        if len(self.labels) == len(new) and all(len(label) == count for label in self.labels):
            return self.labels
        if count and any(bool(label.any()) for label in new):
            raise ValueError(
                f"the {count} examples that the memory holds must have come by this plugin, as new ones have labels of "
                "tasks: pass an empty memory"
            )
        return [label.new_zeros(count) for label in new]

    def _dataset(self, batch: Batch) -> AvalancheDataset:
        attributes = [
            DataAttribute(batch.targets.tolist(), "targets"),
            DataAttribute(batch.weights.tolist(), "weights"),
        ]
        # Avalanche takes the last entry of a minibatch for the task's label.
        attributes += [DataAttribute(t.tolist(), "targets_task_labels", use_in_getitem=True) for t in self.labels]
        return AvalancheDataset([TensorDataset(_inputs(batch), batch.targets)], data_attributes=attributes)

    def resize(self, strategy: Any, new_size: int) -> None:
        """Refused: a memory keeps its capacity."""
        if new_size != self.max_size:
            raise ValueError(f"a memory keeps its capacity of {self.max_size}, got {new_size}: make a new one")


class WeightedReplayPlugin(SupervisedPlugin):  # type: ignore[misc]
    """Replay from a memory, with its weights in the loss.

    Args:
        memory: any memory of `recollect`.
        batch_size: new examples per minibatch; the strategy's by default.
        batch_size_mem: remembered examples per minibatch; as many as new ones by default.
        loss: a function of outputs and targets that returns one loss per example; the strategy's criterion without its
            reduction by default.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        batch_size: int | None = None,
        batch_size_mem: int | None = None,
        loss: LossFunction | None = None,
    ) -> None:
        super().__init__()
        self.storage_policy = MemoryBuffer(memory)
        self.batch_size = None if batch_size is None else check_count("batch_size", batch_size)
        self.batch_size_mem = None if batch_size_mem is None else check_count("batch_size_mem", batch_size_mem)
        self.loss = loss

    def before_training_exp(
        self, strategy: Any, num_workers: int = 0, shuffle: bool = True, drop_last: bool = False, **kwargs: Any
    ) -> None:
        """Let minibatches hold new and remembered examples with their weights, and the loss count these."""
        if not len(self.storage_policy.memory):
            return  # all weigh one
        size = self.batch_size or strategy.train_mb_size
        data = strategy.adapted_dataset
        options = {
            "num_workers": num_workers,
            "shuffle": shuffle,
            "drop_last": drop_last,
            "collate_fn": data.collate_fn,
        }
        loader = DataLoader(data, size, **options)
        strategy.dataloader = _Mixed(loader, len(data), self.storage_policy, self.batch_size_mem or size)
        _count_weights(strategy, self.loss)

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Show the memory what was trained on."""
        _count_no_weights(strategy)
        self.storage_policy.post_adapt(strategy, strategy.experience)


class WeightedGDumbPlugin(GDumbPlugin):  # type: ignore[misc]
    """GDumb with a memory: the model is trained from scratch on what is kept, with its weights in the loss.

    Args:
        memory: any memory of `recollect`.
        loss: a function of outputs and targets that returns one loss per example; the strategy's criterion without its
            reduction by default.
    """

    def __init__(self, memory: Memory, *, loss: LossFunction | None = None) -> None:
        buffer = MemoryBuffer(memory)
        super().__init__(mem_size=memory.capacity)
        self.storage_policy = buffer
        self.loss = loss

    def after_train_dataset_adaptation(self, strategy: Any, **kwargs: Any) -> None:
        """Show the memory the experience, and train on what it keeps."""
        self.storage_policy.post_adapt(strategy, strategy.experience)
        strategy.adapted_dataset = self.storage_policy.buffer

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Let minibatches hold remembered examples with their weights, and the loss count these."""
        batch = self.storage_policy.memory.batch
        data = TensorDataset(_inputs(batch), batch.targets, batch.weights, *self.storage_policy.labels)
        strategy.dataloader = DataLoader(data, strategy.train_mb_size, shuffle=True)
        _count_weights(strategy, self.loss)

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Leave the criterion as it was found."""
        _count_no_weights(strategy)


class _Mixed:
    """Minibatches of inputs, targets, weights and what else there is: new examples, and as many drawn from memory."""

    def __init__(self, loader: DataLoader[Any], n: int, buffer: MemoryBuffer, size: int) -> None:
        self.loader, self.n, self.size = loader, n, size
        self.held, self.buffer = buffer.memory.batch, buffer
        self.generator = generator(buffer.memory.seed, "replay", buffer.memory.seen)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[list[Tensor]]:
        held = self.held
        for inputs, targets, *labels in self.loader:
            rows = torch.randperm(len(held), generator=self.generator)[: self.size]
            # A pass shows each of n new ones once, but len(rows) of the remembered at each of n / len(targets) steps.
            factor = len(held) / len(rows) * len(targets) / self.n
            some, known = held.take(rows), self.buffer.labels_of(labels)
            yield [
                torch.cat([inputs, _inputs(some)]),
                torch.cat([targets, some.targets]),
                torch.cat([torch.ones(len(targets)), factor * some.weights]),
                *(torch.cat([new, old[rows]]) for new, old in zip(labels, known, strict=True)),
            ]


class _Weighted:
    """A criterion that counts the weights of the minibatch.

    Other plugins ask it for losses of examples of their own, which have none: a gradient of past tasks (GEM), or how
    much a parameter matters (EWC).
    """

    def __init__(self, strategy: Any, criterion: Callable[..., Any], loss: LossFunction) -> None:
        self.strategy, self.criterion, self.loss = strategy, criterion, loss
        self.loader = strategy.dataloader

    def __call__(self, outputs: Tensor, targets: Tensor) -> Any:
        strategy = self.strategy
        of_minibatch = outputs is strategy.mb_output or targets is strategy.mb_y
        if not (strategy.is_training and of_minibatch):
            return self.criterion(outputs, targets)
        if strategy.dataloader is not self.loader:
            raise ValueError(
                "minibatches must be those with weights, got others of a later plugin: put the plugin with the memory "
                "last, or leave out the other replay"
            )
        return weighted_mean(check_losses(self.loss(outputs, targets), len(targets)), strategy.mbatch[2])


def _count_weights(strategy: Any, loss: LossFunction | None) -> None:
    _count_no_weights(strategy)  # which a training that was interrupted has not come to
    criterion = strategy._criterion
    if loss is None:
        each: Any = copy.copy(criterion)
        if not hasattr(each, "reduction"):
            raise ValueError(
                "the strategy's criterion must have a reduction that can be taken off, as torch's have, "
                f"got {type(criterion).__name__}: pass loss=, a function that returns one loss per example"
            )
        each.reduction = "none"
        loss = each
    strategy._criterion = _Weighted(strategy, criterion, loss)


def _count_no_weights(strategy: Any) -> None:
    if isinstance(strategy._criterion, _Weighted):
        strategy._criterion = strategy._criterion.criterion


def _inputs(batch: Batch) -> Tensor:
    assert isinstance(batch.inputs, Tensor)  # as `_read` made them
    return batch.inputs


def _read(dataset: Any) -> list[Tensor]:
    """All inputs, targets and what else an item holds, after the transforms for evaluation."""
    data = dataset.eval()
    parts = [*DataLoader(data, _PORTION, collate_fn=data.collate_fn)]
    return [torch.cat([torch.as_tensor(part) for part in column]) for column in zip(*parts, strict=True)]
