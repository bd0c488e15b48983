"""A small weighted memory of everything a model has been trained on.

The whole public API, grouped by what it is for.
"""

from recollect import datasets, metrics, models, streams
from recollect.batch import Batch
from recollect.embedding import GradientEmbedding
from recollect.learners import DarkExperienceReplay, ExperienceReplay, FineTune, GDumb, Joint, Learner
from recollect.memories import (
    GSS,
    ClassBalanced,
    GradientMatching,
    Herding,
    LocalGradientMatching,
    Memory,
    Reservoir,
    SlidingWindow,
    load_memory,
)
from recollect.pursuit import Coreset, pursue
from recollect.selection import PAPER, matching_error, select

__version__ = "0.1.0"

__all__ = [
    # Selecting, once
    "select",
    "pursue",
    "Coreset",
    "GradientEmbedding",
    "PAPER",
    "matching_error",
    # Remembering, as data arrives
    "Memory",
    "GradientMatching",
    "LocalGradientMatching",
    "Reservoir",
    "ClassBalanced",
    "SlidingWindow",
    "GSS",
    "Herding",
    "Batch",
    "load_memory",
    # Learning
    "Learner",
    "GDumb",
    "ExperienceReplay",
    "DarkExperienceReplay",
    "FineTune",
    "Joint",
    # Streams, data, models
    "datasets",
    "streams",
    "models",
    "metrics",
]
