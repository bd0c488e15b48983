"""Selecting once, and measuring how well a selection matches."""

import math
from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from recollect.batch import Batch, check_examples, forward, map_inputs
from recollect.checks import check_seed, check_size
from recollect.embedding import EmbeddingOptions, GradientEmbedding, MakeModel, calibrate, draw_model
from recollect.embedding.initialisations import CALIBRATION_ROWS
from recollect.losses import LossFunction, check_labels, check_losses, get_loss
from recollect.pursuit import Coreset, PursuitOptions, pursue
from recollect.randomness import derive_seed


class MatchingOptions(EmbeddingOptions, PursuitOptions, total=False):
    """All that can be set about gradients and about pursuit."""


PAPER: MatchingOptions = {
    "inits": 10,
    "dim": 1000,
    "projection": "sparse",
    "regularization": 0.5 / 10,  # lambda = 0.5 for embeddings that the paper does not divide by sqrt(S)
    "relative": False,
    "nonnegative": "clip",
    "rule": "inner-product",
    "hold_count": False,
}
"""The paper's settings, as keyword arguments of `select` and `GradientMatching`."""


def split_options(options: Mapping[str, Any]) -> tuple[EmbeddingOptions, PursuitOptions]:
    """Options of the embedding and of the pursuit; anything else is refused by name."""
    known = {**EmbeddingOptions.__annotations__, **PursuitOptions.__annotations__}
    for name in options:
        if name not in known:
            raise ValueError(f"options must be among {', '.join(sorted(known))}, got {name!r}")
    embedding = {k: v for k, v in options.items() if k in EmbeddingOptions.__annotations__}
    pursuit = {k: v for k, v in options.items() if k in PursuitOptions.__annotations__}
    return embedding, pursuit  # type: ignore[return-value]


def select(
    make_model: MakeModel,
    inputs: Any,
    targets: Any,
    size: int,
    *,
    seed: int = 0,
    progress: bool = False,
    **options: Unpack[MatchingOptions],
) -> Coreset:
    """Choose the few weighted examples whose loss gradients add up to those of all.

    Args:
        make_model: returns a freshly initialised model at each call.
        inputs: a tensor, or a dict or tuple of tensors, one row per example.
        targets: one row per example.
        size: how many examples to keep.
        seed: the same seed gives the same choice.
        progress: show progress bars in a terminal.
        **options: keyword arguments of `GradientEmbedding` and `pursue`; `PAPER` holds the paper's.

    Example:
        >>> from recollect import models
        >>> x = torch.linspace(-1, 1, 40)[:, None]
        >>> coreset = select(lambda: models.mlp(1, 2), x, (x[:, 0] > 0).long(), size=6)
        >>> len(coreset), coreset.error < 0.2
        (6, True)
    """
    embedding, pursuit = split_options(options)
    inputs, targets = check_examples(inputs, targets)
    size = check_size(size, len(targets), "examples")
    candidates = GradientEmbedding(make_model, seed=seed, **embedding).dictionary(inputs, targets, progress=progress)
    return pursue(candidates, size, count=len(targets), progress=progress, **pursuit)


def matching_error(
    make_model: MakeModel,
    data: tuple[Any, Any],
    coreset: Coreset | Batch,
    *,
    loss: str | LossFunction = "cross_entropy",
    inits: int = 10,
    batch_size: int = 500,
    seed: int = 0,
) -> float:
    """How far the coreset's gradient is from the gradient of all, at initialisations it has not seen.

    This is the objective itself (Eq. 3), without projection: the norm of the difference of the two gradient sums
    over the norm of the full one, over `inits` draws that no selection uses, whatever its seed.

    Args:
        make_model: returns a freshly initialised model at each call.
        data: all inputs and targets.
        coreset: row numbers of `data` with weights, or a memory's batch.
        loss: as for selecting.
        inits: number of fresh initialisations.
        batch_size: examples per pass.
        seed: the same seed gives the same initialisations.

    Example:
        >>> from recollect import models
        >>> x, y = torch.linspace(-1, 1, 40)[:, None], torch.arange(40) // 20
        >>> everything = Coreset(torch.arange(40), torch.ones(40, dtype=torch.float64), error=0.0)
        >>> matching_error(lambda: models.mlp(1, 2), (x, y), everything)
        0.0
    """
    inputs, targets = check_examples(*data)
    everything = Batch.arriving(inputs, targets)
    if isinstance(coreset, Coreset):
        if len(coreset) and not 0 <= int(coreset.indices.min()) <= int(coreset.indices.max()) < len(targets):
            raise ValueError(f"the coreset's indices must be rows of the {len(targets)} examples given")
        chosen = everything.take(coreset.indices)
        chosen = Batch(chosen.inputs, chosen.targets, coreset.weights, chosen.ids)
    else:
        chosen = coreset
    check_seed(seed)
    per_example = get_loss(loss)
    difference = total = 0.0
    for s in range(inits):
        model = draw_model(make_model, derive_seed(seed, "fresh model", s))
        calibrate(model, map_inputs(lambda t: t[:CALIBRATION_ROWS], everything.inputs))
        full = _gradient(model, everything, loss, per_example, batch_size)
        kept = _gradient(model, chosen, loss, per_example, batch_size)
        difference += float((full - kept).square().sum())
        total += float(full.square().sum())
    return math.sqrt(difference / total) if total else 0.0


def _gradient(
    model: torch.nn.Module, batch: Batch, loss: str | LossFunction, per_example: LossFunction, batch_size: int
) -> Tensor:
    """The gradient of the weighted sum of losses, flattened, in float64."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model must have at least one trainable parameter, got none")
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    for part in batch.minibatches(batch_size):
        outputs = forward(model, part.inputs)
        check_labels(outputs, part.targets, loss)
        losses = check_losses(per_example(outputs, part.targets.to(outputs.device)), len(part))
        gradients = torch.autograd.grad(
            (losses * part.weights.to(losses)).sum(), parameters, allow_unused=True, materialize_grads=True
        )
        total += torch.cat([g.double().flatten() for g in gradients]).cpu()
    return total
