"""A small weighted memory of everything a model has been trained on.

The whole public API, grouped by what it is for.
"""

from typing import TYPE_CHECKING

from recollect.importing import on_demand

if TYPE_CHECKING:
    from recollect import datasets, metrics, models, streams, tables
    from recollect.batch import Batch
    from recollect.classes import LostClassWarning
    from recollect.embedding import GradientEmbedding
    from recollect.estimating import Estimate, estimate
    from recollect.learners import DarkExperienceReplay, ExperienceReplay, FineTune, GDumb, Joint, Learner
    from recollect.memories import (
        GSS,
        ClassBalanced,
        Clustering,
        GradientMatching,
        Herding,
        LocalGradientMatching,
        Memory,
        Reservoir,
        SlidingWindow,
        load_memory,
        rehearsal_loader,
    )
    from recollect.objective import matching_error
    from recollect.pursuit import Coreset, pursue
    from recollect.selection import PAPER, select

__version__ = "0.1.0"

__all__ = [
    # Selecting, once
    "select",
    "pursue",
    "Coreset",
    "GradientEmbedding",
    "PAPER",
    "matching_error",
    "estimate",
    "Estimate",
    # Remembering, as data arrives
    "Memory",
    "GradientMatching",
    "Clustering",
    "LocalGradientMatching",
    "Reservoir",
    "ClassBalanced",
    "SlidingWindow",
    "GSS",
    "Herding",
    "Batch",
    "load_memory",
    "rehearsal_loader",
    "LostClassWarning",
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
    # Tables in files and frames
    "tables",
]

if not TYPE_CHECKING:  # whoever checks types would take any name for one of ours
    __getattr__ = on_demand(
        __name__,
        {
            "batch": ["Batch"],
            "classes": ["LostClassWarning"],
            "embedding": ["GradientEmbedding"],
            "estimating": ["Estimate", "estimate"],
            "learners": ["DarkExperienceReplay", "ExperienceReplay", "FineTune", "GDumb", "Joint", "Learner"],
            "memories": [
                "GSS",
                "ClassBalanced",
                "Clustering",
                "GradientMatching",
                "Herding",
                "LocalGradientMatching",
                "Memory",
                "Reservoir",
                "SlidingWindow",
                "load_memory",
                "rehearsal_loader",
            ],
            "objective": ["matching_error"],
            "pursuit": ["Coreset", "pursue"],
            "selection": ["PAPER", "select"],
        },
    )


def __dir__() -> list[str]:
    return __all__
