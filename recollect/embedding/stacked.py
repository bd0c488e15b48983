"""Many draws of a small network in one pass.

The passes of a small network are so short that most of their time goes into starting them. All draws have the same
layers, so their weights can be stacked and one batched pass made over all of them. That is only done for networks of
linear layers: a batch of convolutions is slower than one after the other.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import stack_module_state, vmap

from recollect.batch import Inputs, functional_forward, map_inputs
from recollect.embedding.draws import Draw, Summed
from recollect.embedding.layers import Use
from recollect.embedding.listening import Heard, Listener, key_of
from recollect.embedding.plain import gradients_of
from recollect.embedding.probing import PROBES
from recollect.embedding.projections import Kronecker
from recollect.embedding.scaling import ScaledLoss
from recollect.numerics import single

LARGEST = 16
"""How many draws go into one pass at most: what flows through them should fit the cache."""


class StackedDraws:
    """Draws whose passes are made together; the embeddings are those of one at a time, up to rounding.

    Args:
        draws: of the same model.
        named_loss: whether the loss is one of this library's own, which look at each example by itself.
    """

    def __init__(self, draws: Sequence[Draw], *, named_loss: bool = False) -> None:
        self._draws, self._plan, self._losses = draws, draws[0].plan, draws[0].losses
        self._flat = named_loss and not isinstance(self._losses, ScaledLoss)
        parameters, buffers = stack_module_state([draw.model for draw in draws])
        # Only the gradients at the layers' outputs are ever asked for; this lets autograd get that far.
        self._weights = {name: value.detach().requires_grad_(True) for name, value in parameters.items()} | buffers
        scales = [draw.losses.outputs for draw in draws if isinstance(draw.losses, ScaledLoss)]
        self._scales = torch.stack(scales) if scales else None  # of each draw's outputs
        self._skeleton = copy.deepcopy(draws[0].model).to("meta")
        projections = [draw.projection for draw in draws if isinstance(draw.projection, Kronecker)]
        self._projections = Kronecker.stacked(projections) if projections else None

    def __len__(self) -> int:
        return len(self._draws)

    @property
    def dtype(self) -> torch.dtype:
        """Of their gradients."""
        return self._draws[0].dtype

    def add(self, out: Tensor, inputs: Inputs, targets: Tensor, scale: float) -> Tensor:
        """Add the projected gradients of a few examples at all draws to `out` (n, draws * width)."""
        assert self._projections is not None
        out = out.view(len(targets), len(self), -1).transpose(0, 1)
        heard = self.listen(inputs, targets, scale)
        for use in heard.uses:
            self._projections.add_stack(out, use)
        return heard.losses

    def listen(self, inputs: Inputs, targets: Tensor, scale: float) -> Heard:
        """As `listening.listen`, of all draws at once; what is noted has the draws first."""
        uses: list[Use] = []

        def one(weights: dict[str, Tensor]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
            counted = {id(weights[name]): name for name in self._plan.shapes}
            listener = Listener(counted, len(targets), lambda output: (output, output))
            with listener:
                outputs = functional_forward(self._skeleton, weights, inputs)
            if listener.strange:
                raise RuntimeError("a parameter is used in another way than planned")
            uses[:] = listener.uses
            return outputs, [use.input for use in uses], listener.marks

        with torch.enable_grad():
            outputs, came, went = vmap(one)(self._weights)
            self._plan.check_used(bool(went))
            losses = self._losses_of(outputs, targets)
            deltas = torch.autograd.grad(losses, went, torch.full_like(losses, scale), allow_unused=True)
        noted = zip(uses, came, deltas, strict=True)
        found = [
            replace(use, input=single(a.detach()), delta=single(delta)) for use, a, delta in noted if delta is not None
        ]
        return Heard(found, {}, {}, losses.detach().sum(0))

    def summed(self, inputs: Inputs, targets: Tensor, weights: Tensor | None = None) -> Summed:
        """The gradient of the sum of the losses, each times its weight, for all draws at once."""
        names = list(self._plan.shapes)
        with torch.enable_grad():
            outputs = vmap(lambda weights: functional_forward(self._skeleton, weights, inputs))(self._weights)
            losses = self._losses_of(outputs, targets)
            total = (losses if weights is None else losses * weights).sum()
        gradients = gradients_of(total, [self._weights[name] for name in names])
        return Summed(dict(zip(names, gradients, strict=True)), losses.detach().sum(0))

    def _losses_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per draw and example, of outputs that have the draws first."""
        if self._flat:  # as if there were so many more examples
            again = targets.expand(len(self), *targets.shape).flatten(0, 1)
            flat: Tensor = self._losses(outputs.flatten(0, 1), again)
            return flat.reshape(len(self), -1)

        def one(outputs: Tensor, scale: Tensor | None) -> Tensor:
            losses = self._losses
            if isinstance(losses, ScaledLoss) and scale is not None:
                losses = replace(losses, outputs=scale)
            return losses(outputs, targets)

        return vmap(one, in_dims=(0, None if self._scales is None else 0))(outputs, self._scales)

    def add_sums(self, out: Tensor, sums: Mapping[str, Tensor], scale: float) -> None:
        """Add the projection of scaled sums of gradients, which have the draws first, to `out` (draws, width)."""
        for s, draw in enumerate(self._draws):
            draw.add_sums(out[s : s + 1], {name: value[s] for name, value in sums.items()}, scale)

    def agrees(self, inputs: Inputs, targets: Tensor) -> bool:
        """Whether a stacked pass brings out what single ones do, tried on a few real examples.

        Not so where the model does what cannot be batched, or overwrites a layer's output in place.
        """
        inputs, targets = map_inputs(lambda t: t[:PROBES], inputs), targets[:PROBES]
        try:
            together = self.listen(inputs, targets, 1.0).uses
        except RuntimeError:
            return False
        for s, draw in enumerate(self._draws):
            alone = draw.listen(inputs, targets, 1.0).uses
            if list(map(key_of, alone)) != list(map(key_of, together)):
                return False
            for use, stack in zip(alone, together, strict=True):
                assert use.delta is not None and stack.delta is not None
                if not _close(use.input, stack.input[s]) or not _close(use.delta, stack.delta[s]):
                    return False
        return True


def is_only_linear(model: nn.Module) -> bool:
    """Whether all parameters belong to linear layers: such networks are small enough to gain from being stacked.

    Example:
        >>> is_only_linear(nn.Linear(3, 2)), is_only_linear(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)))
        (True, False)
    """
    owners = [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
    return all(type(owner) is nn.Linear for owner in owners)


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= 1e-4 * a.abs().max())
