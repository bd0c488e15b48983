"""The true objective: how well a selection matches gradients at models that it has not seen (Eq. 2 and 3)."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from recollect.arrays import as_tensor
from recollect.batch import Batch, check_gradients_are_possible, forward, map_inputs
from recollect.checks import check_count, check_seed
from recollect.classes import COUNTED, ClassWeight, Tally, check_classes, class_labels
from recollect.embedding import Init, MakeModel, ScaleOutputs, calibrate_norms, draw_model
from recollect.embedding.initialisations import CALIBRATION_ROWS, check_init, check_not_lazy
from recollect.embedding.plain import gradients_of
from recollect.embedding.probing import check_real, check_repeatable
from recollect.embedding.scaling import TargetScale, check_scale_outputs, scaled_loss, scales
from recollect.losses import LossFunction, check_labels, check_losses, get_loss, squared_error
from recollect.numerics import full_precision
from recollect.pursuit import Coreset
from recollect.randomness import derive_seed


@full_precision()
def matching_error(
    make_model: MakeModel,
    data: tuple[Any, Any],
    coreset: Coreset | Batch,
    *,
    loss: str | LossFunction = "cross_entropy",
    scale_outputs: ScaleOutputs = "auto",
    class_weight: ClassWeight | None = None,
    weights: Any = None,
    init: Init = "default",
    init_scale: float = 1.0,
    calibrate: bool = True,
    inits: int = 10,
    batch_size: int = 500,
    seed: int = 0,
) -> float:
    """How far the coreset's gradient is from the gradient of all, at initialisations it has not seen.

    This is the objective itself (Eq. 3), without projection: the norm of the difference of the two gradient sums,
    divided by the norm of the full one, at `inits` initialisations that no selection uses, whatever its seed. For the
    squared error, outputs are scaled to the targets of `data`, as in selecting.

    Args:
        make_model: returns a freshly initialised model at each call.
        data: all inputs and targets.
        coreset: row numbers of `data` with weights, or a memory's batch.
        loss: as for selecting.
        scale_outputs: as for selecting, but by all targets of `data`.
        class_weight: as for selecting: how much each class counts in the gradient of all.
        weights: how many each example of `data` stands for, if not for one.
        init: as for selecting.
        init_scale: as for selecting.
        calibrate: as for selecting, by the first rows of `data`.
        inits: number of fresh initialisations.
        batch_size: examples per pass.
        seed: the same seed gives the same initialisations.

    Returns:
        The error as a share of the full gradient: 0 is a perfect match, and an empty coreset would have 1.

    Raises:
        ValueError: an argument is wrong, or the coreset names rows that `data` does not have.

    Example:
        >>> from recollect import models
        >>> x, y = torch.linspace(-1, 1, 40)[:, None], torch.arange(40) // 20
        >>> everything = Coreset(torch.arange(40), torch.ones(40, dtype=torch.float64), error=0.0)
        >>> matching_error(lambda: models.mlp(1, 2), (x, y), everything)
        0.0
    """
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise ValueError(f"data must be the inputs and the targets of all examples, got {type(data).__name__}")
    if not isinstance(coreset, Coreset | Batch):
        raise ValueError(f"coreset must be a Coreset or a memory's batch, got {type(coreset).__name__}")
    inits, seed = check_count("inits", inits), check_seed(seed)
    everything = Batch.arriving(*data, weights=weights)
    if isinstance(coreset, Coreset):
        indices, kept = _rows_and_weights(coreset)
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(everything):
            raise ValueError(f"the coreset's indices must be rows of the {len(everything)} examples given")
        chosen = replace(everything.take(indices), weights=kept)
    else:
        chosen = coreset
    everything = _counting_classes(everything, class_weight)
    init_scale = check_init(init, init_scale)
    check_scale_outputs(scale_outputs, loss)
    plain = get_loss(loss)
    scale = TargetScale.of(everything.targets) if scales(scale_outputs, loss) else None
    difference = total = 0.0
    for s in range(inits):
        model = draw_model(make_model, derive_seed(seed, "fresh model", s), init, init_scale)
        if calibrate:
            calibrate_norms(model, map_inputs(lambda t: t[:CALIBRATION_ROWS], everything.inputs))
        per_example = plain
        if scale is not None:
            per_example = scaled_loss(model, everything.inputs, scale, plain, squared=plain is squared_error)
        if s == 0:
            few = everything.take(torch.arange(min(3, len(everything))))
            check_repeatable(model, few.inputs, few.targets, _beside_outputs(per_example))
        full = _gradient(model, everything, loss, per_example, batch_size)
        kept = _gradient(model, chosen, loss, per_example, batch_size)
        difference += float((full - kept).square().sum())
        total += float(full.square().sum())
    return math.sqrt(difference / total) if total else 0.0


def _beside_outputs(loss: LossFunction) -> LossFunction:
    """The same, of targets that may be on another device than the outputs."""
    return lambda outputs, targets: loss(outputs, targets.to(outputs.device))


def _counting_classes(batch: Batch, class_weight: ClassWeight | None) -> Batch:
    """The same, where each example counts as much as its class says."""
    class_weight, _ = check_classes(class_weight, 0)
    if class_weight is None:
        return batch
    labels = class_labels(batch.targets, COUNTED).cpu()
    seen = Tally.of(labels, batch.weights.cpu() if batch.weighted else None)
    factors = seen.factors(class_weight)[seen.places(labels)]
    return replace(batch, weights=batch.weights * factors.to(batch.weights))


def _rows_and_weights(coreset: Coreset) -> tuple[Tensor, Tensor]:
    """Of a coreset that may have been put together by hand, out of arrays or lists."""
    indices, weights = as_tensor(coreset.indices, "indices"), as_tensor(coreset.weights, "weights")
    indices = indices if indices.numel() else indices.long()  # an empty list is one of no numbers
    whole = not indices.is_floating_point() and indices.dtype != torch.bool
    if not whole or indices.ndim != 1 or weights.shape != indices.shape or not bool(weights.isfinite().all()):
        raise ValueError(
            "a coreset must have a finite weight for each of its row numbers, got indices of "
            f"{indices.dtype} and shape {tuple(indices.shape)} and weights of shape {tuple(weights.shape)}"
        )
    return indices.long(), weights


def _gradient(
    model: torch.nn.Module, batch: Batch, loss: str | LossFunction, per_example: LossFunction, batch_size: int
) -> Tensor:
    """The gradient of the weighted sum of losses, flattened, in float64."""
    check_gradients_are_possible()
    check_not_lazy(model)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    parameters = [*trainable.values()]
    if not parameters:
        raise ValueError("the model must have at least one trainable parameter, got none")
    check_real(trainable)
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    for part in batch.minibatches(batch_size):
        with torch.enable_grad():
            outputs = forward(model, part.inputs)
            check_labels(outputs, part.targets, loss)
            losses = check_losses(_beside_outputs(per_example)(outputs, part.targets), len(part))
            gradients = gradients_of((losses * part.weights.to(losses)).sum(), parameters)
        total += torch.cat([g.double().flatten() for g in gradients]).cpu()
    return total
