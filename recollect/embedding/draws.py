"""One draw from p(theta) and the gradients of examples at it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recollect.batch import Inputs, forward
from recollect.embedding.listening import Heard, listen
from recollect.embedding.plain import gradients_by_func, gradients_of
from recollect.embedding.plan import Plan
from recollect.embedding.projections import Projection
from recollect.losses import LossFunction
from recollect.numerics import single


class Summed(NamedTuple):
    """What a plain pass brings out.

    Attributes:
        gradients: of the sum of the losses, by parameter.
        losses: of the examples, summed over draws if there are several.
    """

    gradients: dict[str, Tensor]
    losses: Tensor


@dataclass(frozen=True)
class Draw:
    """One initialised model, its projection, and how its gradients are computed."""

    model: nn.Module
    projection: Projection
    plan: Plan
    losses: LossFunction

    @property
    def dtype(self) -> torch.dtype:
        """Of its gradients, which are not kept in half precision; other parameters may be of any type."""
        counted = (p.dtype for name, p in self.model.named_parameters() if name in self.plan.shapes)
        return reduce(torch.promote_types, counted, torch.float32)

    def nbytes(self) -> int:
        """About how much memory it takes."""
        return 3 * sum(p.nbytes for p in self.model.parameters())  # the projection is of the same order

    def listen(self, inputs: Inputs, targets: Tensor, scale: float) -> Heard:
        """What parameters are used for in one pass; the loss is scaled."""
        heard = listen(
            self.model, self.plan.shapes, inputs, targets, self.losses, layouts=self.plan.layouts, scale=scale
        )
        self.plan.check_used(heard.any)
        return heard

    def add(self, out: Tensor, inputs: Inputs, targets: Tensor, scale: float) -> Tensor:
        """Add the projected and scaled gradients of a few examples to `out` (n, width); returns their losses."""
        n, plan = len(targets), self.plan
        slow = [*plan.rest]
        if plan.layouts or plan.free:
            names = [name for name in plan.shapes if name not in plan.rest]
            heard = listen(
                self.model, names, inputs, targets, self.losses, layouts=plan.layouts, free=plan.free, scale=scale
            )
            self.projection.add_uses(out, heard.uses)
            for name, gradient in heard.free.items():
                self.projection.add_parameter(out, name, gradient.reshape(n, -1))
            slow += heard.strange  # in this pass only, such as a layer that few examples go through
            plan.check_used(heard.any or bool(slow))
            losses = heard.losses
        else:
            with torch.no_grad():  # labels cannot be looked at inside vmap
                losses = self.losses(forward(self.model, inputs), targets)
        if slow:
            for name, gradient in gradients_by_func(self.model, slow, inputs, targets, self.losses).items():
                self.projection.add_parameter(out, name, single(gradient).reshape(n, -1) * scale)
        return losses

    def summed(self, inputs: Inputs, targets: Tensor, weights: Tensor | None = None) -> Summed:
        """The gradient of the sum of the losses, each times its weight: one plain pass."""
        known = dict(self.model.named_parameters())
        parameters = [known[name].requires_grad_() for name in self.plan.shapes]
        try:
            with torch.enable_grad():
                losses = self.losses(forward(self.model, inputs), targets)
                total = (losses if weights is None else losses * weights).sum()
            return Summed(dict(zip(self.plan.shapes, gradients_of(total, parameters), strict=True)), losses.detach())
        finally:
            for parameter in parameters:
                parameter.requires_grad_(False)

    def add_sums(self, out: Tensor, sums: Mapping[str, Tensor], scale: float) -> None:
        """Add the projection of scaled sums of gradients to `out` (1, width)."""
        for name, gradient in sums.items():
            self.projection.add_parameter(out, name, scale * gradient.reshape(1, -1))
