"""The paper's experiments as data: what to run, how, and what came out."""

from recollect.experiments.experiment import (
    DEFAULT_STREAMS,
    KEY_FIELDS,
    LEARNERS,
    MEMORIES,
    STREAMS,
    Experiment,
    make_model_for,
    run,
)
from recollect.experiments.store import Store

__all__ = [
    "DEFAULT_STREAMS",
    "KEY_FIELDS",
    "LEARNERS",
    "MEMORIES",
    "STREAMS",
    "Experiment",
    "Store",
    "make_model_for",
    "run",
]
