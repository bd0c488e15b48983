"""What gradient matching kept over a stream, on file for all who need it.

Its choice depends on the stream and the seed, not on training. So it is made once, for all sizes together, and every
learner is shown the same memory; a run that is stopped while it trains need not choose again.
"""

import hashlib
import inspect
import json
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from recollect.batch import Batch
from recollect.embedding import GradientEmbedding, MakeModel
from recollect.experiments.experiment import Experiment
from recollect.files import write_atomically
from recollect.memories import GradientMatching, Memory
from recollect.memories.choice import Choice
from recollect.streams import Stream

ELSEWHERE = (
    *("cli.py", "demo.py", "learners", "metrics.py", "progress.py", "report", "tables", "terminal.py"),
    *(f"experiments/{name}.py" for name in ("figures", "group", "results", "runner", "stacking", "tables", "targets")),
)
"""Files and folders of this package that have no say in what is kept."""

EMBEDDING_OPTIONS = frozenset(inspect.signature(GradientEmbedding).parameters)
"""Options of a memory that are not its own but its embedding's: memories that agree in them can share one."""


class Kept(NamedTuple):
    """What was in memory after a batch, and how well it matched."""

    ids: Tensor
    weights: Tensor
    error: float


@dataclass
class Recording:
    """What a memory kept over a stream, by the number of examples seen so far, and how long it took to choose."""

    after: dict[int, Kept] = field(default_factory=dict)
    seconds: float = 0.0


class Playback(Memory):
    """Keeps what was recorded on the same stream.

    Args:
        capacity: of the memory that was recorded.
        recording: what it kept.
        seed: decides the order of minibatches alone.
    """

    def __init__(self, capacity: int, recording: Recording, *, seed: int = 0) -> None:
        super().__init__(capacity, seed=seed)
        self._recording = recording

    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        kept = self._recording.after[self.seen + len(arrived)]
        return Choice(torch.searchsorted(torch.cat([held.ids, arrived.ids]), kept.ids), kept.weights)

    @property
    def error(self) -> float:
        """How far the kept are from the target, as it was when they were chosen."""
        return self._recording.after[self.seen].error


def split_options(experiment: Experiment) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is set of the embedding, and what of the memory itself."""
    options = {**experiment.contender.options, **dict(experiment.options)}
    of_embedding = {name: value for name, value in options.items() if name in EMBEDDING_OPTIONS}
    return of_embedding, {name: value for name, value in options.items() if name not in EMBEDDING_OPTIONS}


def record(
    experiments: Sequence[Experiment],
    stream: Stream,
    make_model: MakeModel,
    advance: Callable[[], None] = lambda: None,
) -> list[Recording]:
    """Let gradient matching go over a stream, side by side, for experiments with one seed and one embedding."""
    as_by_default = {"layers": "auto", "projection": "auto"}  # of gradient matching
    settings = {**as_by_default, **split_options(experiments[0])[0]}
    embedding = GradientEmbedding(make_model, seed=experiments[0].seed, **settings)
    memories = [GradientMatching(embedding, e.size, seed=e.seed, **split_options(e)[1]) for e in experiments]
    recordings = [Recording() for _ in memories]
    for inputs, targets in stream.batches:
        start = time.perf_counter()
        candidates = embedding.dictionary(inputs, targets)
        for memory, recording in zip(memories, recordings, strict=True):
            memory.update(inputs, targets, candidates=candidates)
            recording.after[memory.seen] = Kept(memory.batch.ids, memory.batch.weights, memory.error)
            # Gradients are computed once for all, and counted with the first.
            recording.seconds, start = recording.seconds + time.perf_counter() - start, time.perf_counter()
        del candidates  # those of two batches may not fit
        advance()
    return recordings


class Recordings:
    """A folder with one file for each memory, size and seed on a stream.

    A name is made of all that decides the choice, the code and the data included, so that nothing stale is ever found.

    Args:
        stream: what there was to choose from.
        folder: where to keep them; nothing is kept if None.
    """

    def __init__(self, stream: Stream, folder: Path | None = None) -> None:
        self._stream, self._folder = stream, folder
        self._checksum = 0 if folder is None else _checksum(stream)

    def find(self, experiment: Experiment) -> Recording | None:
        """What was kept for this experiment or one like it, if that is known."""
        if self._folder is None:
            return None
        try:
            return _read((self._folder / self._name(experiment)).read_bytes(), self._stream)
        except (OSError, KeyError, ValueError, SafetensorError):  # not there, or damaged: to be chosen again
            return None

    def keep(self, experiment: Experiment, recording: Recording) -> None:
        """Write it down, whole or not at all."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._folder / self._name(experiment), _written(recording))

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
        return f"{experiment.dataset}-{experiment.memory}-{experiment.size}-{experiment.seed}-{digest[:16]}.kept"


def _checksum(stream: Stream) -> int:
    total = 0
    for inputs, targets in stream.batches:
        for tensor in (inputs, targets):
            total = zlib.crc32(tensor.contiguous().numpy().data, total)
    return total


@cache
def _code() -> str:
    """A digest of the source that has a say in what is kept."""
    digest = hashlib.sha256()
    for _, file in decisive_sources(resources.files("recollect")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def decisive_sources(folder: Traversable, path: str = "") -> Iterator[tuple[str, Traversable]]:
    """The source files of the package with their paths in it, in order, but for those that are `ELSEWHERE`."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = path + entry.name
        if name not in ELSEWHERE and entry.is_dir():
            yield from decisive_sources(entry, f"{name}/")
        elif name not in ELSEWHERE and name.endswith(".py"):
            yield name, entry


def _written(recording: Recording) -> bytes:
    """The tensors, after a digest of them that tells of every flipped bit."""
    tensors = {"seconds": torch.tensor(recording.seconds, dtype=torch.float64)}
    for seen, kept in recording.after.items():
        tensors |= {f"{seen}.ids": kept.ids, f"{seen}.weights": kept.weights}
        tensors[f"{seen}.error"] = torch.tensor(kept.error, dtype=torch.float64)
    content = safetensors.torch.save(tensors)
    return hashlib.sha256(content).digest() + content


def _read(written: bytes, stream: Stream) -> Recording:
    digest, content = written[:32], written[32:]
    if hashlib.sha256(content).digest() != digest:
        raise ValueError("the file must be as it was written")
    tensors = safetensors.torch.load(content)
    recording, seen = Recording(seconds=float(tensors["seconds"])), 0
    for batch in stream.batches:
        seen += len(batch.targets)
        ids, weights, error = (tensors[f"{seen}.{name}"] for name in Kept._fields)
        recording.after[seen] = Kept(ids, weights, float(error))
    return recording
