"""New and remembered examples in one loader, for training loops of one's own."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Sampler, TensorDataset, default_collate

from recollect.batch import Batch, check_same_form, map_inputs, named_tensors
from recollect.checks import check_count, check_seed
from recollect.memories.memory import Memory
from recollect.memories.samples import Sample, WeightedDataset
from recollect.randomness import generator, shuffled_by_weight
from recollect.sources import Incoming, collated, examples_of, unpacked


def rehearsal_loader(
    dataset: Any,
    memory: Memory,
    batch_size: int,
    *,
    target: str | None = None,
    mix: Literal["drawn", "weighted"] = "drawn",
    shuffle: bool = True,
    seed: int | None = None,
    **options: Any,
) -> "DataLoader[Sample]":
    """Minibatches of (inputs, targets, weights) that mix new examples, of weight one, with those that the memory holds.

    With the loss `sum(weights * losses) / sum(weights)`, a pass estimates the loss over everything: what the memory has
    seen, and what is new. So make it before you update the memory with the new examples. By default they are mixed as
    in `ExperienceReplay`.

    Args:
        dataset: the new examples: a map-style torch dataset, or inputs and targets as a pair.
        memory: what is remembered; if it is empty, the loader has the new examples alone. Examples come on its device.
        batch_size: examples per batch, new and remembered together.
        target: the name of the targets, if they are an entry of a dict.
        mix: "drawn": each example comes as often as its weight says, and all weights are one; "weighted": each comes
            once at each pass, with its weight. A pass is as long. If few remembered examples represent many, "drawn"
            makes steps more even, and new examples come less often than once per pass.
        shuffle: mix new and remembered examples, in a new order at each pass.
        seed: decides the order. By default each loader has another one, drawn by the memory's own generator, which is
            saved with it.
        **options: other options of `torch.utils.data.DataLoader`, such as `num_workers`. For a sampler of your own, as
            under DDP, make a `DataLoader` of the `dataset` of this one, which has the weights.

    Example:
        >>> from recollect import Reservoir
        >>> memory = Reservoir(10)
        >>> memory.update(torch.zeros(50, 2), torch.zeros(50))
        >>> new = torch.ones(20, 2), torch.ones(20)
        >>> [(len(inputs), weights.sum()) for inputs, targets, weights in rehearsal_loader(new, memory, batch_size=30)]
        [(30, tensor(30.))]
        >>> loader = rehearsal_loader(new, memory, batch_size=30, mix="weighted")
        >>> [(len(inputs), weights.sum()) for inputs, targets, weights in loader]
        [(30, tensor(70.))]
    """
    if not isinstance(memory, Memory):
        raise ValueError(f"memory must be a recollect memory, got {type(memory).__name__}")
    batch_size = check_count("batch_size", batch_size)
    held = memory.batch if len(memory) else None
    parts: list[Dataset[Sample]] = [_new(dataset, held, target)]
    if mix not in ("drawn", "weighted"):
        raise ValueError(f"mix must be 'drawn' or 'weighted', got {mix!r}")
    if mix == "drawn" and not shuffle:
        raise ValueError(
            "examples that are drawn come in a random order, got shuffle=False: leave it out, or pass mix='weighted'"
        )
    if mix == "drawn" and options.get("sampler") is not None:
        raise ValueError(
            "examples are drawn by a sampler of their own, got another: leave it out, or make a DataLoader of this "
            "one's dataset, which has the weights"
        )
    if seed is None:  # a loader for each epoch must not bring the same few each time
        seed = int(torch.randint(2**62, (), generator=memory._generator))
    options = {"generator": generator(check_seed(seed), "rehearsal", memory.seen), **options}
    if held is not None:
        parts.append(WeightedDataset(held))
    if held is not None and mix == "drawn":
        weights = torch.cat([torch.ones(len(parts[0])), held.weights.cpu()])  # type: ignore[arg-type]
        sampler, collate = Drawn(weights, options["generator"]), options.get("collate_fn") or default_collate
        shuffle, options = False, {**options, "sampler": sampler, "collate_fn": partial(_each_for_one, collate)}
    return DataLoader(ConcatDataset(parts), batch_size, shuffle=shuffle, **options)


def _each_for_one(collate: Callable[[list[Sample]], Any], drawn: list[Sample]) -> Any:
    """A batch of examples that weigh one, as they come as often as they weigh."""
    return collate([sample._replace(weights=torch.ones_like(sample.weights)) for sample in drawn])


def _new(dataset: Any, held: Batch | None, target: str | None) -> Dataset[Sample]:
    if isinstance(dataset, Dataset) and hasattr(dataset, "__len__") and not isinstance(dataset, TensorDataset):
        return Arriving(dataset, held, target)
    source = examples_of(dataset, target=target)
    if isinstance(source, Incoming):
        raise ValueError(
            "new examples must be a map-style dataset or a pair (inputs, targets), to be mixed with remembered ones, "
            f"got {type(dataset).__name__}"
        )
    arrived = Batch.arriving(*source)
    if held is not None:
        check_same_form(held, arrived)
        arrived = arrived.to(held.targets.device)
    return WeightedDataset(arrived)


class Drawn(Sampler[int]):
    """Rows as often as they weigh, in a random order, as many at each pass as there are."""

    def __init__(self, weights: Tensor, source: torch.Generator) -> None:
        self._weights, self._source = weights, source

    def __len__(self) -> int:
        return len(self._weights)

    def __iter__(self) -> Iterator[int]:
        return iter(shuffled_by_weight(self._weights, self._source).tolist())


class Arriving(Dataset[Sample]):
    """Somebody's dataset, with weights of one, in the form that remembered examples have and where they are.

    Args:
        dataset: gives (input, target) or a dict.
        like: examples of the form that is wanted, if there are any.
        target: the name of the target in a dict.
    """

    def __init__(self, dataset: "Dataset[Any]", like: Batch | None, target: str | None) -> None:
        self._dataset, self._target = dataset, target
        self._like = None if like is None else like.take(torch.arange(0))

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Sample:
        arrived = Batch.arriving(*unpacked(collated([self._dataset[index]]), self._target))
        if self._like is not None:
            arrived = _fitted(arrived, self._like).to(self._like.targets.device)
            check_same_form(self._like, arrived)
        inputs = map_inputs(lambda t: t[0], arrived.inputs)
        return Sample(inputs, arrived.targets[0], arrived.weights[0])


def _fitted(arrived: Batch, like: Batch) -> Batch:
    """In the types of what is held, where nothing is lost: Python's numbers are of types of their own."""
    wanted = named_tensors(like.inputs)

    def fit(value: Tensor, other: Tensor | None) -> Tensor:
        if other is None or value.dtype == other.dtype or not torch.can_cast(value.dtype, other.dtype):
            return value
        fitted = value.to(other.dtype)
        # A fraction may be rounded. What there is no room for stays as it is, and is refused by its type.
        same = fitted.isfinite() if fitted.is_floating_point() else fitted.to(value.dtype) == value
        return fitted if bool(same.all()) else value

    fitted = iter([fit(value, wanted.get(name)) for name, value in named_tensors(arrived.inputs).items()])
    inputs = map_inputs(lambda _: next(fitted), arrived.inputs)
    return Batch(inputs, fit(arrived.targets, like.targets), arrived.weights, arrived.ids)
