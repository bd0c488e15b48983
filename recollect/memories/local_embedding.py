"""Gradient embeddings at a model as it is now, for memories that look at the learner."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from recollect.batch import Batch
from recollect.embedding import GradientEmbedding, MakeModel, copied


def embedding_at(make_model: MakeModel, *, seed: int, **options: Any) -> GradientEmbedding:
    """The embedding at one set of parameters, which are neither drawn nor scaled; refuses options that cannot be."""
    return GradientEmbedding(make_model, inits=1, calibrate=False, scale_outputs=False, seed=seed, **options)


def embed_at(
    model: nn.Module | None, held: Batch, arrived: Batch, known: Mapping[str, Tensor], *, seed: int, **options: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Embeddings of what is held, then of what arrived, at the parameters of this model, which is not touched.

    How gradients are computed is decided once for all models of a form, as that takes longer than a few small updates:
    it is returned as well, to be passed as what is known.
    """
    if model is None:
        raise ValueError("this memory looks at the learner's gradients and needs its model, got None: pass model=...")
    embedding = embedding_at(lambda: copied(model), seed=seed, **options)
    both = held.followed_by(arrived) if len(held) else arrived
    form = _form_of(model)
    if "form" in known and torch.equal(known["form"].cpu(), form):
        with suppress(ValueError):  # as where another head is in use now: then it is decided anew
            prepared = embedding.restore(known, trained=True)
            rows = embedding.embed(both.inputs, both.targets, prepared=prepared)
            return rows, {name: known[name] for name in ("form", "plan")}
    prepared = embedding.prepare(both.inputs, both.targets)
    rows = embedding.embed(both.inputs, both.targets, prepared=prepared)
    return rows, {"form": form, "plan": prepared.tensors["plan"]}


def _form_of(model: nn.Module) -> Tensor:
    """What tells a model from those of other layers, or others to be trained; not from itself after some training."""
    shapes = [[name, [*p.shape]] for name, p in model.named_parameters() if p.requires_grad]
    kinds = [[name, type(module).__qualname__] for name, module in model.named_modules()]
    return torch.tensor([*hashlib.sha256(json.dumps([shapes, kinds]).encode()).digest()], dtype=torch.uint8)
