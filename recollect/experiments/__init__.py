"""The paper's experiments as data: what to run, how, and what came out.

The way of a run, file by file: `targets` says what is wanted, `runner` puts what is outstanding into groups, `group`
goes over one stream with each, by `recordings` (what gradient matching kept) and `stacking` (small networks trained as
one), and every result of an `experiment` goes into `results`, of which `tables` and `figures` are made.
"""

from recollect.experiments.experiment import (
    CONTENDERS,
    DEFAULT_STREAMS,
    KEY_FIELDS,
    LEARNERS,
    STREAMS,
    Experiment,
    make_model_for,
)
from recollect.experiments.group import run
from recollect.experiments.results import Results
from recollect.experiments.runner import estimate_seconds, in_words, open_store, outstanding, reproduce
from recollect.experiments.tables import coverage
from recollect.experiments.targets import TARGETS, paper_results

__all__ = [
    "CONTENDERS",
    "DEFAULT_STREAMS",
    "KEY_FIELDS",
    "LEARNERS",
    "STREAMS",
    "TARGETS",
    "Experiment",
    "Results",
    "coverage",
    "estimate_seconds",
    "in_words",
    "make_model_for",
    "open_store",
    "outstanding",
    "paper_results",
    "reproduce",
    "run",
]
