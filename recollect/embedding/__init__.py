"""Examples to gradient embeddings: layers, projections, initialisations."""

from recollect.embedding.gradients import EmbeddingOptions, GradientEmbedding
from recollect.embedding.initialisations import Init, MakeModel, calibrate, draw_model

__all__ = ["EmbeddingOptions", "GradientEmbedding", "Init", "MakeModel", "calibrate", "draw_model"]
