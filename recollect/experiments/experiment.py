"""One experiment as data, and what it is made of."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np
import torch

from recollect import learners, memories, models, streams
from recollect.checks import check_count
from recollect.datasets import Dataset, Examples
from recollect.embedding import MakeModel
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


@dataclass(frozen=True)
class Contender:
    """A kind of memory with its settings."""

    kind: Callable[..., memories.Memory]
    options: dict[str, Any] = field(default_factory=dict)


_LOCAL_PAPER = {
    **{name: value for name, value in PAPER.items() if name not in ("inits", "shortlist")},
    "dim": 10_000,
    "regularization": 0.5,  # the paper's lambda: at one set of parameters, nothing is divided by sqrt(S)
}

# What the default was. One thing cannot be set any more: rows with negative weights were left out, not replaced.
_FIRST_DEFAULT = {
    "layers": "all",
    "projection": "kronecker",
    "shortlist": None,
    "rule": "inner-product",
    "hold_count": False,
}

CONTENDERS = {
    "recollect": Contender(memories.GradientMatching),
    "recollect-0.1": Contender(memories.GradientMatching, _FIRST_DEFAULT),
    "recollect-0.1-last-layer": Contender(memories.GradientMatching, {**_FIRST_DEFAULT, "layers": "last"}),
    "recollect-all-layers": Contender(memories.GradientMatching, {"layers": "all"}),
    "clustering": Contender(memories.Clustering),
    "gmc": Contender(memories.GradientMatching, {**PAPER}),
    "gmc-last-layer": Contender(memories.GradientMatching, {**PAPER, "layers": "last"}),
    "gmc-local": Contender(memories.LocalGradientMatching, _LOCAL_PAPER),
    "reservoir": Contender(memories.Reservoir),
    "class-balanced": Contender(memories.ClassBalanced),
    "sliding-window": Contender(memories.SlidingWindow),
    "gss": Contender(memories.GSS),
    "herding": Contender(memories.Herding),
}
"""Memories by the names of the paper's tables; "recollect" stands for this library's own settings."""

LEARNERS: dict[str, Callable[..., learners.Learner]] = {
    "gdumb": learners.GDumb,
    "er": partial(learners.ExperienceReplay, mix="weighted"),
    "er-drawn": partial(learners.ExperienceReplay, mix="drawn"),
    "der": learners.DarkExperienceReplay,
    "finetune": learners.FineTune,
    "joint": learners.Joint,
}
WITHOUT_MEMORY = ("finetune", "joint")


@dataclass(frozen=True)
class Experiment:
    """All that decides a result.

    Attributes:
        learner: a name of `LEARNERS`.
        dataset: a name of `recollect.datasets`.
        memory: a name of `CONTENDERS`; "none" for learners without one.
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
        elif self.memory not in CONTENDERS:
            raise ValueError(f"memory must be one of {', '.join(CONTENDERS)}, got {self.memory!r}")
        else:
            check_count("size", self.size)
        object.__setattr__(self, "stream", self.stream or DEFAULT_STREAMS[self.dataset])
        if self.stream not in STREAMS:
            raise ValueError(f"stream must be one of {', '.join(STREAMS)}, got {self.stream!r}")
        check_count("epochs", self.epochs)
        if self.rows is not None:
            check_count("rows", self.rows)

    @property
    def contender(self) -> Contender:
        """The kind of memory and its settings."""
        return CONTENDERS[self.memory]

    @property
    def matches_gradients(self) -> bool:
        """Whether what is kept depends on initialisations and not on training."""
        return self.learner not in WITHOUT_MEMORY and self.contender.kind is memories.GradientMatching

    def key(self) -> dict[str, Any]:
        """What tells one experiment from another, as plain data."""
        return {**asdict(self), "options": dict(self.options)}


KEY_FIELDS = tuple(field.name for field in fields(Experiment))


def make_model_for(dataset: Dataset) -> MakeModel:
    """The paper's network for data of this shape."""
    shape = dataset.input_shape
    if len(shape) == 1 or shape[-1] < 16:
        return partial(models.mlp, int(np.prod(shape)), dataset.n_classes)
    if shape[0] == 1:
        return partial(models.cnn, (shape[0], shape[1], shape[2]), dataset.n_classes)
    return partial(models.resnet18, dataset.n_classes)


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
