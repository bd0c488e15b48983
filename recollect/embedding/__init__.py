"""Examples to gradient embeddings: layers, projections, initialisations."""

from recollect.embedding.gradients import GradientEmbedding, ProjectionName
from recollect.embedding.initialisations import Init, MakeModel, calibrate_norms, check_not_lazy, copied, draw_model
from recollect.embedding.prepared import Prepared
from recollect.embedding.scaling import ScaleOutputs

__all__ = [
    "GradientEmbedding",
    "Init",
    "MakeModel",
    "Prepared",
    "ProjectionName",
    "ScaleOutputs",
    "calibrate_norms",
    "check_not_lazy",
    "copied",
    "draw_model",
]
