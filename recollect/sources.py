"""Where examples come from: arrays and tables whole, datasets and loaders batch by batch, in one pass."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from recollect.arrays import as_tensor, column_names, without_column
from recollect.batch import Batch, Inputs, check_examples, check_same_form

_ROWS = 256  # that are read at a time where nobody says how many


@dataclass(frozen=True)
class Incoming:
    """Examples that come batch by batch and can be looked at once.

    Attributes:
        pairs: inputs and targets of each batch, as whoever made it stored them.
        length: how many examples there will be; None if nobody knows.
        in_order: whether the examples come in the order of the rows that they were made from.
    """

    pairs: Iterable[tuple[Any, Any]]
    length: int | None
    in_order: bool = True

    def batches(self, first_id: int = 0, like: Batch | None = None) -> Iterator[Batch]:
        """What comes, checked, of the form of `like` or else of the first batch."""
        n, known = first_id, like
        for i, (inputs, targets) in enumerate(self.pairs):
            try:
                batch = Batch.arriving(inputs, targets, first_id=n)
                if known is not None:
                    check_same_form(known, batch)
            except ValueError as error:
                raise ValueError(f"{error} (batch {i} of those given)") from None
            known = batch.take(torch.arange(0)) if known is None else known
            n += len(batch)
            yield batch.take(torch.arange(len(batch)))  # a copy: some loaders put the next batch into the same memory
        if n == first_id:
            raise ValueError("there must be at least one batch, got none: has the iterator been used up before?")

    def whole(self, first_id: int = 0) -> Batch:
        """All of it, held in memory."""
        return Batch.joined(self.batches(first_id))


def examples_of(inputs: Any, targets: Any = None, target: str | None = None) -> tuple[Inputs, Tensor] | Incoming:
    """What was passed as data: inputs and targets, or a stream of them.

    Args:
        inputs: arrays or tables, one row per example, with `targets`; or both in one: a pair, a dict or table whose
            `target` is named, a torch dataset, a loader, or any iterable of batches.
        targets: one per example, such as class numbers; left out if the inputs have them.
        target: the name of the targets, where they are an entry of a dict or a column of a table.

    Example:
        >>> examples_of({"x": torch.zeros(3, 2), "y": torch.ones(3)}, target="y")[1]
        tensor([1., 1., 1.])
    """
    if target is not None and not isinstance(target, str):
        raise ValueError(f"target must be the name of the targets, got {target!r}")
    if isinstance(targets, Real):
        raise ValueError(
            f"targets must have one entry per example, got the number {targets!r}: "
            f"if it is a size, pass it by name, as size={targets!r}"
        )
    if targets is not None:
        if target is not None:
            raise ValueError(f"targets must be passed or named, got both: leave out target={target!r}")
        return _mapped(inputs, targets) or check_examples(inputs, targets)
    if isinstance(inputs, tuple | Mapping):
        found, targets = unpacked(inputs, target)
        return _mapped(found, targets) or check_examples(found, targets)
    if (names := column_names(inputs)) is not None:
        _check_name(target, names, "the table")
        return check_examples(without_column(inputs, str(target)), inputs[target])
    if isinstance(inputs, TensorDataset) and target is None:
        return check_examples(*unpacked(inputs.tensors, None))
    if isinstance(inputs, DataLoader):
        return _from_loader(inputs, target)
    if type(inputs).__module__.startswith("datasets.") and hasattr(inputs, "with_format"):
        inputs = inputs.with_format("torch")  # Hugging Face's, whose rows are lists
        return _from_loader(_loader_of(inputs), target)
    if isinstance(inputs, Dataset):
        return _from_loader(_loader_of(inputs), target)
    if isinstance(inputs, Tensor | np.ndarray | str | bytes) or not isinstance(inputs, Iterable):
        raise ValueError(
            f"targets must be passed beside inputs that have none, got {type(inputs).__name__} alone: pass targets, "
            "a dataset, a loader, or an iterable of batches (inputs, targets)"
        )
    return Incoming(_pairs(inputs, target), None)


def recut(batches: Iterable[Batch], rows: int) -> Iterator[Batch]:
    """The same examples in blocks of `rows`; the last may be shorter.

    Example:
        >>> batches = (Batch.arriving(torch.zeros(n, 1), torch.zeros(n), first_id=i) for i, n in [(0, 3), (3, 4)])
        >>> [block.ids.tolist() for block in recut(batches, 5)]
        [[0, 1, 2, 3, 4], [5, 6]]
    """
    waiting: list[Batch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += len(batch)
        if count < rows:
            continue
        both = Batch.joined(waiting)
        full = count - count % rows
        for start in range(0, full, rows):
            yield both.take(torch.arange(start, start + rows))
        waiting, count = [both.take(torch.arange(full, count))], count - full
    if count:
        yield Batch.joined(waiting)


def unpacked(batch: Any, target: str | None) -> tuple[Any, Any]:
    """Inputs and targets of one batch."""
    if isinstance(batch, Mapping):
        _check_name(target, list(batch), "a dict")
        return {name: value for name, value in batch.items() if name != target}, batch[target]
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        got = f"{len(batch)} entries" if isinstance(batch, tuple | list) else type(batch).__name__
        raise ValueError(
            f"a batch must be (inputs, targets), or a dict with the name of its targets as target=..., got {got}"
        )
    if target is not None:
        raise ValueError(f"target={target!r} must be an entry of a dict, got a pair (inputs, targets): leave it out")
    inputs, targets = batch
    several = isinstance(inputs, list) and inputs and all(isinstance(value, Tensor) for value in inputs)
    return (tuple(inputs) if several else inputs), targets  # torch's loaders turn tuples into lists


def _check_name(target: str | None, names: list[Any], what: str) -> None:
    if target is None or target not in names:
        some = ", ".join(map(repr, names[:10]))
        got = "no name" if target is None else repr(target)
        raise ValueError(f"target must be the name of the targets in {what} that has {some}, got {got}")
    if len(names) == 1:
        raise ValueError(f"{what} must have inputs beside the targets, got {target!r} alone")


def _pairs(batches: Iterable[Any], target: str | None) -> Iterator[tuple[Any, Any]]:
    for batch in batches:
        inputs, targets = unpacked(batch, target)
        if not isinstance(targets, Iterable) or getattr(targets, "ndim", 1) == 0:
            raise ValueError(
                "targets must have one entry per example of a batch, got a single number: "
                "if these are single examples, pass a torch DataLoader of them"
            )
        yield inputs, targets


def _from_loader(loader: "DataLoader[Any]", target: str | None) -> Incoming:
    sampler = loader.sampler if loader.batch_sampler is None else getattr(loader.batch_sampler, "sampler", None)
    usual = loader.batch_sampler is None or type(loader.batch_sampler) is BatchSampler
    in_order = isinstance(loader.dataset, IterableDataset) or (usual and type(sampler) is SequentialSampler)
    length = None
    if usual and loader.batch_size is not None and not isinstance(loader.dataset, IterableDataset):
        length = len(loader.sampler)  # type: ignore[arg-type]
        length -= length % loader.batch_size if loader.drop_last else 0
    return Incoming(_pairs(loader, target), length, in_order)


def _loader_of(dataset: "Dataset[Any]") -> "DataLoader[Any]":
    if not isinstance(dataset, IterableDataset) and not (hasattr(dataset, "__len__") and len(dataset)):
        raise ValueError(f"a dataset must hold at least one example, got none in {type(dataset).__name__}")
    # A generator of its own: otherwise making the iterator would draw from the global one.
    return DataLoader(dataset, batch_size=_ROWS, collate_fn=collated, generator=torch.Generator().manual_seed(0))


def collated(examples: list[Any]) -> Any:
    """Single examples as one batch, as torch's loaders make it."""
    try:
        return default_collate(examples)
    except (TypeError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"a dataset must give examples that can be stacked, got {type(error).__name__} ({reason}): "
            "give it a transform, or pass a DataLoader with a collate_fn"
        ) from None


def _mapped(inputs: Any, targets: Any) -> Incoming | None:
    """A stream of slices where an array is mapped from a file, so that it is never read whole; None elsewhere."""
    leaves = list(inputs.values()) if isinstance(inputs, Mapping) else list(inputs) if isinstance(inputs, tuple) else []
    if not any(isinstance(value, np.memmap) and value.ndim for value in leaves or [inputs]):
        return None
    targets = targets if isinstance(targets, np.memmap) else as_tensor(targets, "targets")
    lengths = [len(value) for value in [*(leaves or [inputs]), targets]]
    if len(set(lengths)) != 1:
        raise ValueError(f"inputs and targets must have the same length, got {' and '.join(map(str, lengths))}")

    def part(cut: Callable[[Any], Any]) -> tuple[Any, Any]:
        if isinstance(inputs, Mapping):
            return {name: cut(value) for name, value in inputs.items()}, cut(targets)
        return (tuple(map(cut, inputs)) if isinstance(inputs, tuple) else cut(inputs)), cut(targets)

    starts = range(0, lengths[0], _ROWS)
    return Incoming((part(lambda value, i=i: value[i : i + _ROWS]) for i in starts), lengths[0])  # type: ignore[misc]
