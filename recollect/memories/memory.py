"""What all memories share: bounded, weighted, in stream order, and never half-updated."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from recollect.arrays import as_tensor
from recollect.batch import Batch, Inputs, check_device, check_same_form, describe_weights, named_tensors
from recollect.checks import check_count, check_flag, check_seed
from recollect.memories.choice import Choice, check_choice, kept_of
from recollect.memories.description import as_text, check_restored, checked_options, form_of, name_of, rebuild
from recollect.memories.samples import Loader, Sample, WeightedDataset, as_sample
from recollect.memories.storage import write_folder
from recollect.numerics import full_precision
from recollect.randomness import generator
from recollect.sources import Incoming, examples_of, recut

_BLOCK_ROWS = 4096  # of a stream that are held at once
TOTAL, OWN = "total weight", "own weights"  # what is remembered where examples do not count as one each


class Memory(ABC):
    """Keeps a few weighted examples of a stream; what all memories have in common.

    `update` takes in examples, `batch` is what is held, `sample` and `loader` are for training. The weights add up to
    about `total_weight`, which is the number of examples seen, unless some came with weights of their own. All tensors
    of a memory are on one device, the CPU unless it is moved by `to`.

    To write a memory of your own, define `choose`: of the examples held and those that just arrived, which stay, and
    with what weight? Let the constructor take `capacity` and `seed` by name, and if it takes more, let `options` return
    the rest: then `load_memory` can make it again, and `choose` finds what it returned as `Choice.state` in
    `self._state`. If it looks at `arrived.weights`, say so by `counts_weights = True`.

    Args:
        capacity: how many examples are kept at most.
        seed: the same seed gives the same memory.
    """

    needs_model: ClassVar[bool] = False
    """Whether `update` must be given the learner's model."""

    per_example: ClassVar[tuple[str, ...]] = ()
    """Which tensors of the state have a row for each example held."""

    cuts_freely: ClassVar[bool] = False
    """Whether the choice does not depend on how the stream is cut: then a loader's batches are never held at once."""

    counts_weights: ClassVar[bool] = False
    """Whether examples may come with weights: `choose` finds them in `arrived.weights`."""

    def __init__(self, capacity: int, *, seed: int = 0) -> None:
        self.capacity = check_count("capacity", capacity)
        self.seed = check_seed(seed)
        self.seen = 0
        self.device = torch.device("cpu")
        self._batch: Batch | None = None
        self._state: dict[str, Tensor] = {}
        self._generator = generator(self.seed, "sample")

    @abstractmethod
    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        """Decide what stays; may raise, and must change nothing."""

    @property
    def batch(self) -> Batch:
        """The examples held, in stream order."""
        if self._batch is None:
            raise ValueError("the memory must have seen data, got none so far: call update first")
        return self._batch

    @property
    def total_weight(self) -> float:
        """How many examples everything seen represents: `seen`, unless some came with weights or were forgotten."""
        return float(self._state[TOTAL]) if TOTAL in self._state else float(self.seen)

    def __len__(self) -> int:
        return 0 if self._batch is None else len(self._batch)

    def __repr__(self) -> str:
        facts = [f"{len(self)} of {self.seen} seen", f"capacity {self.capacity}"]
        if self._batch is not None:
            facts.append(describe_weights(self._batch.weights))
        return f"{type(self).__name__}({', '.join(facts)})"

    @full_precision()
    def update(
        self,
        inputs: Any,
        targets: Any = None,
        *,
        target: str | None = None,
        model: nn.Module | None = None,
        weights: Any = None,
    ) -> None:
        """Take in examples, and choose again what to keep. On any error the memory is as before.

        A dataset, a loader or an iterable of batches is one update, as if all of it arrived at once. Most memories hold
        all of it during the update; gradient matching with a shortlist, a reservoir, a class-balanced memory and a
        sliding window read each batch once and hold a part.

        Args:
            inputs: a tensor, an array or a table, or a dict or tuple of them, one row per example; or, without
                `targets`, a torch dataset, a loader, or an iterable of batches (inputs, targets).
            targets: one per example, such as class numbers; left out if the inputs have them.
            target: the name of the targets, if they are an entry of each dict or a column of the table.
            model: the learner's current model, for memories that look at it.
            weights: how many examples each one represents, such as the weights of another memory's `batch`; one by
                default. An example of weight zero counts as seen and is never kept.
        """
        source = self._source(inputs, targets, target, weights, model)
        if isinstance(source, Incoming) and self.cuts_freely:
            passing = copy.copy(self)  # nothing of this memory changes before the stream has ended
            for block in recut(source.batches(self.seen, like=self._batch), _BLOCK_ROWS):
                passing._take(block, model)
            self._batch, self._state, self.seen = passing._batch, passing._state, passing.seen
        else:
            self._take(self._arriving(source, weights), model)

    def _source(
        self, inputs: Any, targets: Any, target: str | None, weights: Any, model: nn.Module | None
    ) -> tuple[Inputs, Tensor] | Incoming:
        """What was passed as data, if weights and model can go with it."""
        if not isinstance(model, nn.Module | None):
            raise ValueError(f"model must be a torch.nn.Module or None, got {type(model).__name__}")
        source = examples_of(inputs, targets, target)
        if weights is not None and isinstance(source, Incoming):
            raise ValueError("weights must come with examples that are there whole, got a stream: pass tensors")
        if weights is not None and not self.counts_weights:
            raise ValueError(
                f"weights must be passed to a memory that counts them, got {type(self).__name__}: it would take each "
                "example for one, unless its counts_weights is True"
            )
        return source

    def _arriving(self, source: tuple[Inputs, Tensor] | Incoming, weights: Any = None) -> Batch:
        """What arrives, whole."""
        if isinstance(source, Incoming):
            return source.whole(self.seen)
        return Batch.placed(*source, weights=weights, first_id=self.seen)

    def _take(self, arrived: Batch, model: nn.Module | None) -> None:
        count = len(arrived)
        held, arrived = self._beside_held(arrived.counted())
        self._commit(held, arrived, self.choose(held, arrived, model), count)

    def _beside_held(self, arrived: Batch) -> tuple[Batch, Batch]:
        """What is held, and what arrives once it is known to be of the same form."""
        arrived = arrived.to(self.device)
        held = arrived.take(torch.arange(0)) if self._batch is None else self._batch
        check_same_form(held, arrived)
        return held, arrived

    def _commit(
        self, held: Batch, arrived: Batch, choice: Choice, count: int | None = None, weight: float | None = None
    ) -> None:
        """Keep what was chosen, if it is a choice that can be kept.

        What arrived may be some of `count` examples that stand for `weight`; its weights are those it came with.
        """
        check_choice(choice, len(held) + len(arrived), self.capacity)
        kept = kept_of(held, arrived, choice)
        state = {name: value.detach().to(self.device) for name, value in choice.state.items()}
        seen = self.seen + (len(arrived) if count is None else count)
        total = self._total(arrived) if weight is None else self.total_weight + weight
        own = self._own(held, arrived)[choice.indices.to(self.device)] if self._weighs(arrived) else None
        # From here on nothing can fail.
        self._batch, self._state, self.seen = kept, self._with_weights(state, seen, total, own), seen

    def _weighs(self, arrived: Batch) -> bool:
        """Whether examples have come with weights, up to now or now."""
        return OWN in self._state or arrived.weighted

    def _with_weights(self, state: dict[str, Tensor], seen: int, total: float, own: Tensor | None) -> dict[str, Tensor]:
        """The state with what everything seen stands for, and what those that are held came with, if not with one."""
        others = {name: value for name, value in state.items() if name not in (TOTAL, OWN)}
        if total != seen:
            others[TOTAL] = torch.tensor(total, dtype=torch.float64).to(self.device)
        return others if own is None else {**others, OWN: own}

    def _total(self, arrived: Batch) -> float:
        """How many examples everything seen stands for once these have arrived."""
        return self.total_weight + float(arrived.weights.sum(dtype=torch.float64))

    def _own(self, held: Batch, arrived: Batch) -> Tensor:
        """The weights with which examples came that are held, then of those that arrive."""
        known = self._state.get(OWN, torch.ones_like(held.weights))
        return torch.cat([known[: len(held)], arrived.weights])

    def _in_proportion(self, held: Batch, arrived: Batch, indices: Tensor) -> Tensor:
        """A weight for each of those that stay: as it came, times what lets them add up to everything seen."""
        own = self._own(held, arrived)[indices.to(self.device)].double()
        return own * (self._total(arrived) / float(own.sum()))

    def merge(self, other: "Memory") -> Self:
        """A memory of what both have seen. The other stream's ids follow this one's: `id - self.seen` is its own."""
        raise ValueError(f"memories to be merged must be of gradient matching or reservoirs, got {type(self).__name__}")

    def forget(self, ids: Any) -> Tensor:
        """Remove examples that must be deleted; returns those of the ids that were not held.

        The others' weights are scaled to add up to that much less than before. `seen` still counts what was forgotten,
        as ids do, and so does what a memory knows of all it has seen (the scales of `Clustering`); `total_weight` does
        not. On any error the memory is as before.

        Args:
            ids: places in the stream, as in `batch.ids`.
        """
        wanted = self._check_ids(ids)
        held, weights = self.batch, self.batch.weights
        stay = (~torch.isin(held.ids, wanted)).nonzero()[:, 0]
        rest = held.take(stay)
        total, gone = float(rest.weights.sum()), self._gone(stay)
        factor = max(0.0, float(weights.sum()) - gone) / total if total else 1.0
        state = self._state_without(stay) | {TOTAL: self._total_without(gone)}
        self._batch, self._state = replace(rest, weights=rest.weights * factor), state
        missing: Tensor = wanted[~torch.isin(wanted, held.ids)]
        return missing

    def _check_ids(self, ids: Any) -> Tensor:
        """Ids of this stream, each once."""
        wanted = as_tensor(ids, "ids").to(self.batch.ids.device)
        wanted = wanted if wanted.numel() else wanted.long()  # an empty list is one of no numbers
        if wanted.ndim != 1 or wanted.is_floating_point() or wanted.dtype == torch.bool:
            raise ValueError(f"ids must be a row of whole numbers, got {wanted.dtype} of shape {tuple(wanted.shape)}")
        wanted = torch.tensor(sorted(set(wanted.tolist())), dtype=torch.long, device=wanted.device)
        if len(wanted) and not 0 <= int(wanted[0]) <= int(wanted[-1]) < self.seen:
            raise ValueError(f"ids must be from 0 to {self.seen - 1}, as {self.seen} were seen, got others")
        return wanted

    def _gone(self, stay: Tensor) -> float:
        """The weights with which those came that do not stay."""
        own = self._own(self.batch, self.batch.take(stay[:0]))
        return float(own.sum(dtype=torch.float64) - own[stay].sum(dtype=torch.float64))

    def _total_without(self, gone: float) -> Tensor:
        return torch.tensor(max(0.0, self.total_weight - gone), dtype=torch.float64).to(self.device)

    def _state_without(self, stay: Tensor) -> dict[str, Tensor]:
        """What is remembered of the examples at these positions, and of the stream as a whole."""
        by_example = (*self.per_example, OWN)
        return {name: value[stay] if name in by_example else value for name, value in self._state.items()}

    def sample(self, n: int, generator: torch.Generator | None = None) -> Sample:
        """`n` different examples, each equally likely, with their weights; all of them if there are fewer.

        Args:
            n: how many.
            generator: where randomness comes from; the memory's own, saved with it, by default.
        """
        n = check_count("n", n)
        if not isinstance(generator, torch.Generator | None):
            raise ValueError(f"generator must be a torch.Generator or None, got {type(generator).__name__}")
        source = generator or self._generator
        order = torch.randperm(len(self.batch), generator=source, device=source.device)
        return as_sample(self.batch.take(order[:n]))

    def loader(self, batch_size: int, shuffle: bool = True) -> Loader:
        """Minibatches of (inputs, targets, weights) of what the memory holds, in a new order at each pass."""
        return Loader(self, check_count("batch_size", batch_size), check_flag("shuffle", shuffle))

    @property
    def dataset(self) -> WeightedDataset:
        """What the memory holds, as a torch dataset of (inputs, target, weight) that follows each update."""
        return WeightedDataset(self)

    def to(self, device: str | torch.device) -> Self:
        """Move the memory to another device, in place; what arrives later follows it."""
        device = check_device(device)
        batch = None if self._batch is None else self._batch.to(device)
        state = {name: value.to(device) for name, value in self._state.items()}
        self.device, self._batch, self._state = device, batch, state
        return self

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the memory to a folder, so that `load_memory` continues exactly where it stopped.

        A crash at any moment leaves the folder's old or new state, never a mixture.
        """
        if not isinstance(folder, str | PathLike):
            raise ValueError(f"folder must be a path, got {type(folder).__name__}")
        write_folder(folder, *self._description())

    def state_dict(self) -> dict[str, Any]:
        """The whole memory as tensors and plain values, for a checkpoint and for `load_state_dict`."""
        description, tensors = self._description()
        return {**description, "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where a memory that was made with the same arguments stopped.

        On any error the memory is as before.

        Args:
            state: what `state_dict` returned.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"state must be what state_dict returned, got {type(state).__name__}")
        mine, _ = self._description()
        for name in ("memory", "capacity", "seed", "options"):
            wanted, got = as_text(mine[name]), as_text(state.get(name))
            if got != wanted:
                raise ValueError(
                    f"state must be of a memory that was made with the same arguments, {name} {wanted}, got {got}"
                )
        self.restore(state, state.get("tensors"))

    def options(self) -> dict[str, Any]:
        """What the constructor takes beside `capacity`, `seed` and `make_model`, as plain data.

        Functions cannot be saved: pass the options through `plain_options`, which marks them; they are then passed to
        `load_memory` again.
        """
        return {}

    def _description(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What the memory is made of: plain values and tensors."""
        tensors = {f"state.{name}": value for name, value in self._state.items()}
        tensors["generator"] = self._generator.get_state()
        form = None
        if self._batch is not None:
            form = form_of(self._batch.inputs)
            inputs = named_tensors(self._batch.inputs)
            tensors |= {f"inputs.{name}": value for name, value in inputs.items()}
            tensors |= {"targets": self._batch.targets, "weights": self._batch.weights, "ids": self._batch.ids}
        description = {
            "memory": name_of(type(self)),
            "capacity": self.capacity,
            "seed": self.seed,
            "seen": self.seen,
            "inputs": form,
            "options": checked_options(type(self), self.options()),
        }
        return description, tensors

    def restore(self, description: Mapping[str, Any], tensors: Any) -> None:
        """Take over what was saved; refused if it does not fit together."""
        try:
            seen, form = description["seen"], description["inputs"]
            source = torch.Generator()
            source.set_state(tensors["generator"].cpu())
            state = {name.removeprefix("state."): t for name, t in tensors.items() if name.startswith("state.")}
            state = {name: value.to(self.device, copy=True) for name, value in state.items()}
            batch = None
            if form is not None:
                inputs = rebuild(form, [tensors[f"inputs.{name}"] for name in form["names"]])
                batch = Batch(inputs, *(tensors[name] for name in ("targets", "weights", "ids"))).to(self.device)
            check_restored(batch, seen, self.capacity)
            batch = batch and batch.take(torch.arange(len(batch)))  # a copy of its own
        except (KeyError, TypeError, AttributeError, RuntimeError, IndexError) as error:
            raise ValueError(f"a saved memory must fit together, got one that does not ({error!r})") from None
        self.seen, self._batch, self._state, self._generator = seen, batch, state, source

    def __getstate__(self) -> dict[str, Any]:
        """For copies: a generator cannot be copied, its state can."""
        return {**self.__dict__, "_generator": self._generator.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._generator = torch.Generator()
        self._generator.set_state(state["_generator"])
