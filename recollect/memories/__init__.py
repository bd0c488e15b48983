"""What stays in memory, and with which weight."""

from functools import partial
from os import PathLike

from recollect.embedding import Init, MakeModel
from recollect.losses import LossFunction
from recollect.memories.class_balanced import ClassBalanced
from recollect.memories.gradient_matching import GradientMatching
from recollect.memories.gss import GSS
from recollect.memories.herding import Features, Herding
from recollect.memories.local_gradient_matching import LocalGradientMatching
from recollect.memories.memory import Choice, Loader, Memory, Sample
from recollect.memories.reservoir import Reservoir
from recollect.memories.sliding_window import SlidingWindow
from recollect.memories.storage import read_folder

MEMORIES: dict[str, type[Memory]] = {
    "GradientMatching": GradientMatching,
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
    loss: LossFunction | None = None,
    init: Init | None = None,
    features: Features | None = None,
) -> Memory:
    """Read a memory that `save` wrote; further updates give what they would have given without the pause.

    Args:
        folder: where it was saved.
        make_model: the function it was made with; without it the memory can be read but not updated.
        loss: the loss, if it was a function: functions are not saved.
        init: the initialisation, if it was a function.
        features: the features, if they were a function.

    Example:
        >>> import tempfile, torch
        >>> memory = Reservoir(2)
        >>> memory.update(torch.zeros(5, 1), torch.zeros(5))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     memory.save(folder)
        ...     load_memory(folder).seen
        5
    """
    description, tensors = read_folder(folder)
    try:
        kind = MEMORIES[description["memory"]]
        options = dict(description["options"])
        functions = {"loss": loss, "init": init, "features": features}
        for name, value in options.items():
            if isinstance(value, dict):
                if functions.get(name) is None:
                    raise ValueError(f"{name} must be passed to load_memory, as functions are not saved, got none")
                options[name] = functions[name]
        make = partial(kind, make_model) if issubclass(kind, GradientMatching) else kind
        memory: Memory = make(description["capacity"], seed=description["seed"], **options)
        memory.restore(description, tensors)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(
            f"{str(folder)!r} must hold a memory as saved, got one that does not fit together ({error!r})"
        ) from None
    return memory


__all__ = [
    "GSS",
    "MEMORIES",
    "Choice",
    "ClassBalanced",
    "GradientMatching",
    "Herding",
    "Loader",
    "LocalGradientMatching",
    "Memory",
    "Reservoir",
    "Sample",
    "SlidingWindow",
    "load_memory",
]
