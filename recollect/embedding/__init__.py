"""Examples to gradient embeddings: layers, projections, initialisations."""

from recollect.embedding.gradients import GradientEmbedding, Prepared, ProjectionName
from recollect.embedding.initialisations import Init, MakeModel, calibrate, draw_model

__all__ = ["GradientEmbedding", "Init", "MakeModel", "Prepared", "ProjectionName", "calibrate", "draw_model"]
