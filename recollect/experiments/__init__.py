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
from recollect.experiments.results import Results
from recollect.experiments.runner import estimate_seconds, in_words, open_store, outstanding, reproduce
from recollect.experiments.targets import TARGETS, paper_results

__all__ = [
    "DEFAULT_STREAMS",
    "KEY_FIELDS",
    "LEARNERS",
    "MEMORIES",
    "STREAMS",
    "TARGETS",
    "Experiment",
    "Results",
    "estimate_seconds",
    "in_words",
    "make_model_for",
    "open_store",
    "outstanding",
    "paper_results",
    "reproduce",
    "run",
]
