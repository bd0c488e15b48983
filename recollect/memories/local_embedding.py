"""Gradient embeddings at a model as it is now, for memories that look at the learner."""

from typing import Any

from torch import Tensor, nn

from recollect.batch import Batch
from recollect.embedding import GradientEmbedding, MakeModel, copied


def embedding_at(make_model: MakeModel, *, seed: int, **options: Any) -> GradientEmbedding:
    """The embedding at one set of parameters, which are neither drawn nor scaled; refuses options that cannot be."""
    return GradientEmbedding(make_model, inits=1, calibrate=False, scale_outputs=False, seed=seed, **options)


def embed_at(model: nn.Module | None, held: Batch, arrived: Batch, *, seed: int, **options: Any) -> Tensor:
    """Embeddings of what is held, then of what arrived, at the parameters of this model, which is not touched."""
    if model is None:
        raise ValueError("this memory looks at the learner's gradients and needs its model, got None: pass model=...")
    embedding = embedding_at(lambda: copied(model), seed=seed, **options)
    both = held.followed_by(arrived) if len(held) else arrived
    return embedding.embed(both.inputs, both.targets)
