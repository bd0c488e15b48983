"""What all memories share: bounded, weighted, in stream order, and never half-updated."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from recollect.batch import Batch, Inputs, check_same_form, named_tensors
from recollect.checks import check_count, check_seed
from recollect.memories.storage import write_folder
from recollect.randomness import generator


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


class Sample(NamedTuple):
    """Examples to train on: the loss is sum(weights * losses) / sum(weights)."""

    inputs: Inputs
    targets: Tensor
    weights: Tensor


class Memory(ABC):
    """A bounded, weighted batch, revised as the stream arrives.

    A concrete memory answers one question, in `choose`: of the examples held and those that
    just arrived, which stay, and with what weight? Weights approximate a sum over all examples
    seen, so they add up to about `seen`.

    Args:
        capacity: how many examples are kept at most.
        seed: the same seed gives the same memory.
    """

    needs_model: ClassVar[bool] = False
    """Whether `update` must be given the learner's model."""

    def __init__(self, capacity: int, *, seed: int = 0) -> None:
        self.capacity = check_count("capacity", capacity)
        self.seed = check_seed(seed)
        self.seen = 0
        self._batch: Batch | None = None
        self._state: dict[str, Tensor] = {}
        self._generator = generator(seed, "sample")

    @abstractmethod
    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        """Decide what stays; may raise, and must change nothing."""

    @property
    def batch(self) -> Batch:
        """The examples held, in stream order."""
        if self._batch is None:
            raise ValueError("the memory must have seen data, got none so far: call update first")
        return self._batch

    def __len__(self) -> int:
        return 0 if self._batch is None else len(self._batch)

    def update(self, inputs: Any, targets: Any, *, model: nn.Module | None = None) -> None:
        """Take in examples and decide anew what stays. On any error the memory is as before.

        Args:
            inputs: a tensor, or a dict or tuple of tensors, one row per example.
            targets: one row per example.
            model: the learner's current model, for memories that look at it.
        """
        self._take(inputs, targets, lambda held, arrived: self.choose(held, arrived, model))

    def _take(self, inputs: Any, targets: Any, choose: Callable[[Batch, Batch], Choice]) -> None:
        """Check what arrived, have it decided what stays, and only then change anything."""
        arrived = Batch.arriving(inputs, targets, first_id=self.seen)
        held = arrived.take(torch.arange(0)) if self._batch is None else self._batch
        check_same_form(held, arrived)
        choice = choose(held, arrived)
        # From here on nothing can fail.
        self._batch = _kept(held, arrived, choice)
        self._state = choice.state
        self.seen += len(arrived)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Sample:
        """`n` different examples, each equally likely, with their weights; all of them if there are fewer.

        Args:
            n: how many.
            generator: where randomness comes from; the memory's own, saved with it, by default.
        """
        check_count("n", n)
        order = torch.randperm(len(self.batch), generator=generator or self._generator)
        part = self.batch.take(order[:n])
        return Sample(part.inputs, part.targets, part.weights)

    def loader(self, batch_size: int, shuffle: bool = True) -> "Loader":
        """Minibatches of (inputs, targets, weights), in a new order at each pass."""
        return Loader(self.batch, check_count("batch_size", batch_size), self._generator if shuffle else None)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the memory to a folder, so that `load_memory` continues exactly where it stopped.

        A crash at any moment leaves the folder's old or new state, never a mixture.
        """
        tensors = {f"state.{name}": value for name, value in self._state.items()}
        tensors["generator"] = self._generator.get_state()
        form = None
        if self._batch is not None:
            form = _form(self._batch.inputs)
            inputs = named_tensors(self._batch.inputs)
            tensors |= {f"inputs.{name}": value for name, value in inputs.items()}
            tensors |= {"targets": self._batch.targets, "weights": self._batch.weights, "ids": self._batch.ids}
        description = {
            "memory": type(self).__name__,
            "capacity": self.capacity,
            "seed": self.seed,
            "seen": self.seen,
            "inputs": form,
            "options": self.options(),
        }
        write_folder(folder, description, tensors)

    def options(self) -> dict[str, Any]:
        """What else the constructor needs, as plain data."""
        return {}

    def restore(self, description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take over what was saved."""
        self.seen = description["seen"]
        self._generator.set_state(tensors["generator"])
        self._state = {
            name.removeprefix("state."): value for name, value in tensors.items() if name.startswith("state.")
        }
        form = description["inputs"]
        if form is not None:
            inputs = [tensors[f"inputs.{name}"] for name in form["names"]]
            self._batch = Batch(_rebuild(form, inputs), tensors["targets"], tensors["weights"], tensors["ids"])


class Loader:
    """An iterable of minibatches."""

    def __init__(self, batch: Batch, batch_size: int, generator: torch.Generator | None) -> None:
        self._batch, self._batch_size, self._generator = batch, batch_size, generator

    def __len__(self) -> int:
        return -(-len(self._batch) // self._batch_size)

    def __iter__(self) -> Iterator[Sample]:
        for part in self._batch.minibatches(self._batch_size, self._generator):
            yield Sample(part.inputs, part.targets, part.weights)


def _kept(held: Batch, arrived: Batch, choice: Choice) -> Batch:
    """The chosen examples, copied out of both without joining them."""
    first = choice.indices < len(held)
    kept = held.take(choice.indices[first]).followed_by(arrived.take(choice.indices[~first] - len(held)))
    return Batch(kept.inputs, kept.targets, choice.weights.float(), kept.ids)


def _form(inputs: Inputs) -> dict[str, Any]:
    kind = "tensor" if isinstance(inputs, Tensor) else "dict" if isinstance(inputs, dict) else "tuple"
    return {"kind": kind, "names": list(named_tensors(inputs))}


def _rebuild(form: dict[str, Any], values: list[Tensor]) -> Inputs:
    if form["kind"] == "tensor":
        return values[0]
    if form["kind"] == "dict":
        return dict(zip(form["names"], values, strict=True))
    return tuple(values)


def plain_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options as plain data; functions cannot be saved and are marked to be passed again."""
    plain = {name: str(value) if isinstance(value, torch.device) else value for name, value in options.items()}
    return {name: {"function": name} if callable(value) else value for name, value in plain.items()}
