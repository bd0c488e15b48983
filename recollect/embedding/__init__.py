"""Examples to gradient embeddings: layers, projections, initialisations."""

from recollect.embedding.gradients import GradientEmbedding, Prepared, ProjectionName
from recollect.embedding.initialisations import Init, MakeModel, calibrate, draw_model
from recollect.embedding.scaling import ScaleOutputs

__all__ = [
    "GradientEmbedding",
    "Init",
    "MakeModel",
    "Prepared",
    "ProjectionName",
    "ScaleOutputs",
    "calibrate",
    "draw_model",
]
