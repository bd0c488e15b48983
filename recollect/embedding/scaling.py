"""Draws whose outputs are as spread as the targets, for losses that compare the two as quantities.

The gradient of a squared error is (f - y) df. A fresh network's outputs f hardly vary, so its gradients tell of y df
alone, while training needs the sum of df df^T just as much; and targets with an offset, such as prices, drown all the
rest. So targets are standardised, and the outputs of each draw are shifted and scaled as a whole, once, by what the
first examples show: gradients are those of another draw of f, whatever the model's last layer is.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from recollect.batch import Inputs, forward, map_inputs, named_tensors
from recollect.losses import LossFunction, binary_cross_entropy, cross_entropy, get_loss, squared_error

ScaleOutputs: TypeAlias = bool | Literal["auto"]

_ROWS = 256  # of the first examples, evenly spaced, show how a draw's outputs vary
_LEAST = 1e-3  # an output's targets vary at least by this part of what they do on average


@dataclass(frozen=True)
class TargetScale:
    """What the first examples say of the targets, (outputs,) each, in float64.

    Attributes:
        mean: of each output's targets.
        deviation: of each output's targets.
        unit: what all targets are divided by: the loss is that of the user, but for a factor.
    """

    mean: Tensor
    deviation: Tensor
    unit: Tensor

    @classmethod
    def of(cls, targets: Tensor) -> "TargetScale":
        """Means and deviations; around zero if there is no spread to be seen."""
        y = targets.reshape(len(targets), -1).double()
        deviation, mean = torch.var_mean(y, 0, correction=0)
        deviation = deviation.sqrt()
        unit = deviation.square().mean().sqrt()
        if float(unit) <= 1e-12 * float(y.abs().max()):
            mean, unit = torch.zeros_like(mean), y.square().mean().sqrt()
            unit = torch.where(unit > 0, unit, 1.0)
        return cls(mean, torch.maximum(deviation, _LEAST * unit), unit)


@dataclass(frozen=True)
class ScaledLoss:
    """A loss of scaled outputs and targets.

    Attributes:
        losses: of outputs and targets.
        outputs: (2, outputs): by what outputs are multiplied, and what is added then.
        targets: (2, outputs): what is subtracted from targets, and by what they are divided then.
    """

    losses: LossFunction
    outputs: Tensor
    targets: Tensor

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        factor, shift = self.outputs.to(outputs)
        mean, unit = self.targets.to(targets.device)
        f = outputs.reshape(len(outputs), -1) * factor + shift
        y = (targets.reshape(len(targets), -1).double() - mean) / unit
        return self.losses(f.reshape(outputs.shape), y.reshape(targets.shape).to(outputs.dtype))


def check_scale_outputs(value: Any, loss: str | LossFunction) -> None:
    """Refuse what is no such option, or cannot be had with this loss."""
    if not isinstance(value, bool | str) or value not in (True, False, "auto"):
        raise ValueError(f"scale_outputs must be True, False or 'auto', got {value!r}")
    if value is True and get_loss(loss) in (cross_entropy, binary_cross_entropy):
        raise ValueError(
            f"scale_outputs must be False or 'auto' where outputs are no quantities, got True and {loss!r}"
        )


def scales(value: ScaleOutputs, loss: str | LossFunction) -> bool:
    """Whether outputs are scaled: by default where the loss is the squared error."""
    return value is True or (value == "auto" and get_loss(loss) is squared_error)


def scaled_loss(
    model: nn.Module, inputs: Inputs, targets: TargetScale, losses: LossFunction, *, squared: bool
) -> ScaledLoss:
    """The loss for one draw, by its outputs for the first examples.

    The squared error is taken of standardised targets. Any other loss may know what its numbers mean, so there the
    outputs are brought to the targets as they are.
    """
    n = len(next(iter(named_tensors(inputs).values())))
    rows = torch.linspace(0, n - 1, min(_ROWS, n), dtype=torch.float64).round().long()  # float32 ends beyond n
    with torch.no_grad():
        f = forward(model, map_inputs(lambda t: t[rows], inputs)).reshape(len(rows), -1).double()
    if f.shape[1] != len(targets.mean):
        raise ValueError(
            "targets must have as many numbers per example as the model has outputs for these to be scaled, "
            f"got {len(targets.mean)} and {f.shape[1]}: pass scale_outputs=False"
        )
    spread = f.std(0, correction=0)
    spread = torch.where(spread > 1e-6 * f.abs().amax(0), spread, f.square().mean(0).sqrt())
    mean, deviation, unit = (value.to(f.device) for value in (targets.mean, targets.deviation, targets.unit))
    factor = torch.where(spread > 0, deviation / spread, 1.0)
    mean_of_outputs = factor * f.mean(0)
    if squared:
        outputs = torch.stack([factor, -mean_of_outputs]) / unit
        return ScaledLoss(losses, outputs, torch.stack([mean, unit.expand_as(mean)]))
    as_they_are = torch.stack([torch.zeros_like(mean), torch.ones_like(mean)])
    return ScaledLoss(losses, torch.stack([factor, mean - mean_of_outputs]), as_they_are)
