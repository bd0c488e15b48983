"""What gradient matching chose, kept on file for all who need it.

Its choice depends on the stream and the seed, not on training. So it is made once, for all sizes together, and every
learner is shown the same memory; a run that is stopped while it trains need not choose again.
"""

import hashlib
import json
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from recollect.batch import Batch
from recollect.dictionary import Dictionary
from recollect.embedding import GradientEmbedding
from recollect.experiments.experiment import Experiment
from recollect.files import write_atomically
from recollect.memories import GradientMatching, Memory
from recollect.memories.memory import Choice
from recollect.streams import Stream

ELSEWHERE = (
    *("cli.py", "demo.py", "learners", "metrics.py", "progress.py", "report", "tabular"),
    *("figures.py", "results.py", "runner.py", "tables.py", "targets.py"),
)
"""Parts of this package that have no say in what is chosen."""


class Step(NamedTuple):
    """What was kept after a batch, and how well it matched."""

    ids: Tensor
    weights: Tensor
    error: float


@dataclass
class Chosen:
    """What a memory kept over a stream, by the number of examples seen so far, and how long it took to choose."""

    steps: dict[int, Step] = field(default_factory=dict)
    seconds: float = 0.0


class Replayed(Memory):
    """Keeps what was chosen before on the same stream.

    Args:
        capacity: of the memory that chose.
        chosen: what it chose.
        seed: decides the order of minibatches alone.
    """

    def __init__(self, capacity: int, chosen: Chosen, *, seed: int = 0) -> None:
        super().__init__(capacity, seed=seed)
        self._chosen = chosen

    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        step = self._chosen.steps[self.seen + len(arrived)]
        return Choice(torch.searchsorted(torch.cat([held.ids, arrived.ids]), step.ids), step.weights)

    @property
    def error(self) -> float:
        """How far the kept are from the target, as it was when they were chosen."""
        return self._chosen.steps[self.seen].error


class Choices:
    """What was chosen on a stream, in a folder with one file for each memory, size and seed.

    A name is made of all that decides the choice, the code and the data included, so that nothing stale is ever found.

    Args:
        stream: what there was to choose from.
        folder: where to keep them; nothing is kept if None.
    """

    def __init__(self, stream: Stream, folder: Path | None = None) -> None:
        self._stream, self._folder = stream, folder
        self._checksum = 0 if folder is None else _checksum(stream)

    def find(self, experiment: Experiment) -> Chosen | None:
        """What was chosen for this experiment or one like it, if that is known."""
        if self._folder is None:
            return None
        try:
            return _read(self._folder / self._name(experiment), self._stream)
        except (OSError, KeyError, ValueError, SafetensorError):  # not there, or damaged: to be chosen again
            return None

    def keep(self, experiment: Experiment, chosen: Chosen) -> None:
        """Write down a choice, whole or not at all."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._folder / self._name(experiment), _written(chosen))

    def _name(self, experiment: Experiment) -> str:
        """A file name for all that decides the choice."""
        decisive = {
            "memory": experiment.memory,
            "size": experiment.size,
            "seed": experiment.seed,
            "options": dict(experiment.options),
            "stream": self._checksum,
            "code": _code(),
            "torch": torch.__version__,
        }
        digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
        return f"{experiment.dataset}-{experiment.memory}-{experiment.size}-{experiment.seed}-{digest[:16]}.safetensors"


def choose_for(memories: Iterable[Memory], stream: Stream, advance: Callable[[], None] = lambda: None) -> list[Chosen]:
    """Let memories that differ in size alone choose over a stream, side by side, so that it is embedded once."""
    matching = [memory for memory in memories if isinstance(memory, GradientMatching)]
    shared = matching[0].share(SharedEmbedding)
    shared.sharers = len(matching)
    found = [Chosen() for _ in matching]
    for batch in stream.batches:
        for memory, chosen in zip(matching, found, strict=True):
            memory.embedding = shared
            start = time.perf_counter()
            memory.update(*batch)
            chosen.seconds += time.perf_counter() - start
            chosen.steps[memory.seen] = Step(memory.batch.ids, memory.batch.weights, memory.error)
        advance()
    return found


class SharedEmbedding(GradientEmbedding):
    """Remembers the candidates of a batch until all memories that share it have asked for them."""

    sharers = 1
    _last: tuple[Tensor, Dictionary] | None = None
    _asked = 0

    def dictionary(self, inputs: Tensor, targets: Tensor, *, progress: bool = False) -> Dictionary:
        # The inputs are held on to, so that no other tensor can come to lie at the same address.
        if self._last is None or self._last[0].data_ptr() != inputs.data_ptr() or len(self._last[0]) != len(inputs):
            self._last = None  # let go of the old before the new is made: both may not fit
            self._last, self._asked = (inputs, super().dictionary(inputs, targets, progress=progress)), 0
        found, self._asked = self._last[1], self._asked + 1
        if self._asked == self.sharers:
            self._last = None
        return found

    def forget(self) -> None:
        """Keep what the first memory of the group has learned of the stream: the others see the same one."""


def _checksum(stream: Stream) -> int:
    total = 0
    for inputs, targets in stream.batches:
        for tensor in (inputs, targets):
            total = zlib.crc32(tensor.contiguous().numpy().data, total)
    return total


@cache
def _code() -> str:
    """A digest of the source that has a say in what is chosen."""
    digest = hashlib.sha256()
    for path in _sources(resources.files("recollect")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _sources(folder: Traversable) -> list[Traversable]:
    found: list[Traversable] = []
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name in ELSEWHERE:
            continue
        if path.is_dir():
            found += _sources(path)
        elif path.name.endswith(".py"):
            found.append(path)
    return found


def _written(chosen: Chosen) -> bytes:
    tensors: dict[str, Tensor] = {}
    for seen, step in chosen.steps.items():
        tensors |= {f"{seen}.ids": step.ids, f"{seen}.weights": step.weights}
        tensors[f"{seen}.error"] = torch.tensor(step.error, dtype=torch.float64)
    tensors["seconds"] = torch.tensor(chosen.seconds, dtype=torch.float64)
    return safetensors.torch.save(tensors)


def _read(path: Path, stream: Stream) -> Chosen:
    tensors = safetensors.torch.load(path.read_bytes())
    chosen, seen = Chosen(seconds=float(tensors["seconds"])), 0
    for batch in stream.batches:
        seen += len(batch.targets)
        ids, weights = tensors[f"{seen}.ids"], tensors[f"{seen}.weights"]
        if len(ids) != len(weights) or not bool(((ids >= 0) & (ids < seen)).all()):
            raise ValueError("ids must be of examples that have been seen")
        chosen.steps[seen] = Step(ids, weights, float(tensors[f"{seen}.error"]))
    return chosen
