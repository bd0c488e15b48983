"""One experiment: a learner with a memory on a stream, as data in and data out."""

import platform
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import nn

from recollect import datasets, metrics, models, streams
from recollect.datasets import Dataset, Examples
from recollect.embedding import MakeModel
from recollect.learners import DarkExperienceReplay, ExperienceReplay, FineTune, GDumb, Job, Joint, Learner, train_jobs
from recollect.memories import (
    GSS,
    ClassBalanced,
    GradientMatching,
    Herding,
    LocalGradientMatching,
    Memory,
    Reservoir,
    SlidingWindow,
)
from recollect.progress import progress_bar
from recollect.selection import PAPER
from recollect.streams import Stream

STREAMS: dict[str, Callable[[Dataset], Stream]] = {
    "class-incremental": streams.class_incremental,
    "rotated": streams.rotated,
    "sorted": streams.sorted_by_feature,
}

DEFAULT_STREAMS = {
    "digits": "class-incremental",
    "covertype": "sorted",
    "ldpa": "sorted",
    "walking-activity": "sorted",
    "mnist": "rotated",
    "fashion-mnist": "class-incremental",
    "cifar-10": "class-incremental",
}
"""What the paper does with each data set."""

_LOCAL_PAPER = {
    **{name: value for name, value in PAPER.items() if name != "inits"},
    "dim": 10_000,
    "regularization": 0.5,  # the paper's lambda: at one set of parameters, nothing is divided by sqrt(S)
}

MEMORIES: dict[str, Callable[..., Memory]] = {
    "recollect": GradientMatching,
    "recollect-last-layer": partial(GradientMatching, layers="last"),
    "gmc": partial(GradientMatching, **PAPER),
    "gmc-last-layer": partial(GradientMatching, **{**PAPER, "layers": "last"}),  # type: ignore[arg-type]
    "gmc-local": partial(LocalGradientMatching, **_LOCAL_PAPER),  # type: ignore[arg-type]
    "reservoir": Reservoir,
    "class-balanced": ClassBalanced,
    "sliding-window": SlidingWindow,
    "gss": GSS,
    "herding": Herding,
}
"""Memories by the names of the paper's tables; "recollect" stands for this library's own settings."""

LEARNERS: dict[str, Callable[..., Learner]] = {
    "gdumb": GDumb,
    "er": ExperienceReplay,
    "der": DarkExperienceReplay,
    "finetune": FineTune,
    "joint": Joint,
}
WITHOUT_MEMORY = ("finetune", "joint")


@dataclass(frozen=True)
class Experiment:
    """All that decides a result.

    Attributes:
        learner: a name of `LEARNERS`.
        dataset: a name of `recollect.datasets`.
        memory: a name of `MEMORIES`; "none" for learners without one.
        size: how many examples the memory keeps.
        seed: of memory and training.
        epochs: passes over the data at each training.
        stream: a name of `STREAMS`; what the paper does with the data set by default.
        rows: how many training rows to use, drawn at random; all by default.
        every_task: whether to test after every batch of the stream, not only after the last.
        options: keyword arguments of the memory.
    """

    learner: str
    dataset: str
    memory: str
    size: int
    seed: int = 0
    epochs: int = 200
    stream: str = ""
    rows: int | None = None
    every_task: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        for name, known in (("learner", LEARNERS), ("dataset", DEFAULT_STREAMS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.learner in WITHOUT_MEMORY:
            object.__setattr__(self, "memory", "none")
            object.__setattr__(self, "size", 0)
        elif self.memory not in MEMORIES:
            raise ValueError(f"memory must be one of {', '.join(MEMORIES)}, got {self.memory!r}")
        object.__setattr__(self, "stream", self.stream or DEFAULT_STREAMS[self.dataset])
        if self.stream not in STREAMS:
            raise ValueError(f"stream must be one of {', '.join(STREAMS)}, got {self.stream!r}")
        if self.rows is not None and self.rows < 1:
            raise ValueError(f"rows must be at least 1, got {self.rows}")

    def key(self) -> dict[str, Any]:
        """What tells one experiment from another, as plain data."""
        return {**asdict(self), "options": dict(self.options)}


FEW = 200
"""A memory of at most so many examples is written into the result, so that it can be looked at."""

KEY_FIELDS = tuple(field.name for field in fields(Experiment))


def make_model_for(dataset: Dataset) -> MakeModel:
    """The paper's network for data of this shape."""
    shape = dataset.input_shape
    if len(shape) == 1 or shape[-1] < 16:
        return partial(models.mlp, int(np.prod(shape)), dataset.n_classes)
    if shape[0] == 1:
        return partial(models.cnn, (shape[0], shape[1], shape[2]), dataset.n_classes)
    return partial(models.resnet18, dataset.n_classes)


def _channels_last(make_model: MakeModel) -> nn.Module:
    """A model whose images are kept with the channels last: a third faster to train, twice as fast to ask."""
    return make_model().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def make_stream(experiment: Experiment, dataset: Dataset) -> Stream:
    """The stream of an experiment."""
    if experiment.rows is not None:
        generator = torch.Generator().manual_seed(0)
        keep = torch.randperm(len(dataset.train.targets), generator=generator)[: experiment.rows].sort().values
        train = Examples(dataset.train.inputs[keep], dataset.train.targets[keep])
        dataset = Dataset(train, dataset.test, dataset.n_classes)
    stream = STREAMS[experiment.stream](dataset)
    present = [i for i, batch in enumerate(stream.batches) if len(batch.targets)]
    return Stream([stream.batches[i] for i in present], stream.test, [stream.tests[i] for i in present])


def make_memory(experiment: Experiment, make_model: MakeModel) -> Memory:
    """The memory of an experiment, empty."""
    arguments = [make_model] if is_gradient_matching(experiment.memory) else []
    return MEMORIES[experiment.memory](*arguments, experiment.size, seed=experiment.seed, **dict(experiment.options))


def is_gradient_matching(memory: str) -> bool:
    """Whether a memory matches gradients over initialisations, so that its choice does not depend on training."""
    make = MEMORIES[memory]
    return (make.func if isinstance(make, partial) else make) is GradientMatching


class Run:
    """An experiment on its way through the stream.

    Args:
        experiment: what to do.
        dataset: its data set.
        stream: its stream, if that has been made.
        memory: its memory, if that is not to be made anew.
        choosing: how long the memory took to choose in advance.
        shared: whether that was for another experiment, so that it is not counted as time spent on this one.
    """

    def __init__(
        self,
        experiment: Experiment,
        dataset: Dataset,
        stream: Stream | None = None,
        memory: Memory | None = None,
        *,
        choosing: float = 0.0,
        shared: bool = False,
    ) -> None:
        self.experiment = experiment
        make_model = make_model_for(dataset)
        self.stream = make_stream(experiment, dataset) if stream is None else stream
        make_learner = partial(LEARNERS[experiment.learner], partial(_channels_last, make_model))
        if experiment.learner not in WITHOUT_MEMORY:
            make_learner = partial(make_learner, make_memory(experiment, make_model) if memory is None else memory)
        self.learner = make_learner(epochs=experiment.epochs, seed=experiment.seed)
        self._accuracies: list[float] = []
        self._matrix: list[list[float]] = []
        self._seconds = {"choose": choosing, "observe": 0.0, "test": 0.0}
        self._shared = shared

    def stepping(self, i: int) -> Generator[Job, float, None]:
        """Learn from batch i, and test if it is time; training is left to the caller, who says how long it took."""
        yield from self._timed("observe", self.learner.observing(*self.stream.batches[i]))
        if self.experiment.every_task or i == len(self.stream.batches) - 1:
            yield from self._timed("test", self.learner.preparing())
            start = time.perf_counter()
            self._accuracies.append(_percent(self.learner, self.stream.test))
            self._matrix.append([_percent(self.learner, test) for test in self.stream.tests])
            self._seconds["test"] += time.perf_counter() - start

    def _timed(self, what: str, jobs: Iterator[Job]) -> Generator[Job, float, None]:
        while True:
            start = time.perf_counter()
            job = next(jobs, None)
            self._seconds[what] += time.perf_counter() - start
            if job is None:
                return
            self._seconds[what] += yield job

    def result(self) -> dict[str, Any]:
        """Everything about it, as plain data."""
        return {
            **self.experiment.key(),
            "final_accuracy": self._accuracies[-1],
            "accuracies": self._accuracies,
            "task_accuracies": self._matrix,
            **self._kept(),
            "seconds": round(sum(self._seconds.values()) - self._shared * self._seconds["choose"], 2),
            "seconds_of": {name: round(value, 2) for name, value in self._seconds.items()},
            **environment(),
        }

    def _kept(self) -> dict[str, Any]:
        """What is in memory at the end: how many, how well they match, and, where they are few, which and how heavy."""
        memory = self.learner.memory
        if memory is None:
            return {}
        kept: dict[str, Any] = {"kept": len(memory)}
        error = getattr(memory, "error", None)
        if error is not None:
            kept["fitted_error"] = round(error, 6)
        if len(memory) <= FEW:
            kept["kept_ids"] = memory.batch.ids.tolist()
            kept["kept_weights"] = [round(weight, 3) for weight in memory.batch.weights.tolist()]
        return kept


def run(experiment: Experiment, dataset: Dataset | None = None, *, progress: bool = False) -> dict[str, Any]:
    """Run it and tell everything about it as plain data.

    Example:
        >>> result = run(Experiment("gdumb", "digits", "reservoir", 50, epochs=1))
        >>> result["dataset"], len(result["accuracies"])
        ('digits', 1)
    """
    on_its_way = Run(experiment, datasets.load(experiment.dataset) if dataset is None else dataset)
    batches = len(on_its_way.stream.batches)
    with progress_bar(f"{experiment.learner} on {experiment.dataset}", batches, show=progress) as bar:
        for i in range(batches):
            train_together([on_its_way.stepping(i)])
            bar.advance()
    return on_its_way.result()


def train_together(steps: Iterable[Generator[Job, float, None]]) -> None:
    """Go through several runs' steps side by side; what they want trained at the same time is trained together."""
    waiting = [(step, job) for step in steps if (job := next(step, None)) is not None]
    while waiting:
        seconds = train_jobs([job for _, job in waiting])
        resumed = [(step, _resume(step, took)) for (step, _), took in zip(waiting, seconds, strict=True)]
        waiting = [(step, job) for step, job in resumed if job is not None]


def _resume(step: Generator[Job, float, None], seconds: float) -> Job | None:
    try:
        return step.send(seconds)
    except StopIteration:
        return None


def environment() -> dict[str, Any]:
    """Versions and machine, to be kept with a result."""
    return {
        "versions": {"recollect": _version(), "torch": torch.__version__, "python": platform.python_version()},
        "machine": {"processor": platform.machine(), "threads": torch.get_num_threads()},
    }


def _version() -> str:
    return version("recollect")


def _percent(learner: Learner, examples: Examples) -> float:
    if not len(examples.targets):
        return float("nan")
    return round(100 * metrics.accuracy(learner.predict(examples.inputs), examples.targets), 4)
