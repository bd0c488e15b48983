"""What stays in memory, and with which weight."""

import inspect
from collections.abc import Iterator
from os import PathLike
from typing import Any

from recollect.embedding import Init, MakeModel
from recollect.losses import LossFunction
from recollect.memories.choice import Choice
from recollect.memories.class_balanced import ClassBalanced
from recollect.memories.clustering import Clustering
from recollect.memories.description import name_of, plain_options
from recollect.memories.features import Features
from recollect.memories.gradient_matching import GradientMatching
from recollect.memories.gss import GSS
from recollect.memories.herding import Herding
from recollect.memories.local_gradient_matching import LocalGradientMatching
from recollect.memories.memory import Memory
from recollect.memories.rehearsal import rehearsal_loader
from recollect.memories.reservoir import Reservoir
from recollect.memories.samples import Loader, Sample, WeightedDataset
from recollect.memories.sliding_window import SlidingWindow
from recollect.memories.storage import read_folder

MEMORIES: dict[str, type[Memory]] = {
    "GradientMatching": GradientMatching,
    "Clustering": Clustering,
    "LocalGradientMatching": LocalGradientMatching,
    "Reservoir": Reservoir,
    "ClassBalanced": ClassBalanced,
    "SlidingWindow": SlidingWindow,
    "GSS": GSS,
    "Herding": Herding,
}


def load_memory(
    folder: str | PathLike[str],
    make_model: MakeModel | None = None,
    *,
    kind: type[Memory] | None = None,
    loss: LossFunction | None = None,
    init: Init | None = None,
    features: Features | None = None,
    **functions: Any,
) -> Memory:
    """Read a memory that `save` wrote. It continues exactly where it stopped.

    Args:
        folder: where it was saved.
        make_model: the function it was made with; without it the memory can be read but not updated.
        kind: its class, for a memory of your own that is not imported under the name it was saved by. Nothing is
            ever imported because a file names it.
        loss: the loss, if it was a function: functions are not saved.
        init: the initialisation, if it was a function.
        features: the features, if they were a function.
        **functions: other options that were functions, of a memory of your own.

    Example:
        >>> import tempfile, torch
        >>> memory = Reservoir(2)
        >>> memory.update(torch.zeros(5, 1), torch.zeros(5))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     memory.save(folder)
        ...     load_memory(folder)
        Reservoir(2 of 5 seen, capacity 2, weights 2.5)
    """
    if not isinstance(folder, str | PathLike):
        raise ValueError(f"folder must be a path, got {type(folder).__name__}")
    description, tensors = read_folder(folder)
    functions = {"loss": loss, "init": init, "features": features} | functions
    try:
        found = _find(description["memory"], kind)
        options = dict(description["options"])
        for name, given in functions.items():
            if given is not None and options.get(name) != {"function": name}:
                saved = f"{options[name]!r}" if name in options else "none"
                raise ValueError(f"{name} must be as the memory was saved, with {saved}, got another: leave it out")
        for name, value in options.items():
            if value == {"function": name}:
                if functions.get(name) is None:
                    raise ValueError(f"{name} must be passed to load_memory, as functions are not saved, got none")
                options[name] = functions[name]
        if "make_model" in inspect.signature(found).parameters:
            options["make_model"] = make_model
        memory = found(capacity=description["capacity"], seed=description["seed"], **options)
        if others := sorted(options.keys() - {"make_model", *memory.options()}):
            # Such as a cluster, to which updates would send their examples.
            raise ValueError(f"{str(folder)!r} must hold no options but those that are saved, got {others[0]!r}")
        memory.restore(description, tensors)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(
            f"{str(folder)!r} must hold a memory as saved, got one that does not fit together ({error!r})"
        ) from None
    return memory


def _find(name: Any, kind: type[Memory] | None) -> type[Memory]:
    """The class of this name among those that exist: ours, and whatever else has been derived from `Memory`."""
    if kind is None:
        # Of those of one name, as when a cell of a notebook ran twice, the one defined last.
        others = {name_of(other): other for other in _derived(Memory)}  # type: ignore[type-abstract]
        found = MEMORIES.get(name) or others.get(name)
        if found is None:
            raise KeyError(f"no class {name!r} is known here: import it, or pass kind=...")
        return found
    if not (isinstance(kind, type) and issubclass(kind, Memory)):
        raise ValueError(f"kind must be a class derived from recollect.Memory, got {kind!r}")
    if name_of(kind).rpartition(".")[2] != str(name).rpartition(".")[2]:
        raise ValueError(f"kind must be the class that was saved, {name!r}, got {name_of(kind)!r}")
    return kind


def _derived(kind: type[Memory]) -> Iterator[type[Memory]]:
    for one in kind.__subclasses__():
        yield one
        yield from _derived(one)


__all__ = [
    "GSS",
    "MEMORIES",
    "Choice",
    "ClassBalanced",
    "Clustering",
    "WeightedDataset",
    "GradientMatching",
    "Herding",
    "Loader",
    "LocalGradientMatching",
    "Memory",
    "Reservoir",
    "Sample",
    "SlidingWindow",
    "load_memory",
    "plain_options",
    "rehearsal_loader",
]
