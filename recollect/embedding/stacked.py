"""Many draws of a small network in one pass.

The passes of a small network are so short that most of their time goes into starting them. All draws have the same
layers, so their weights can be stacked and one batched pass made over all of them. That is only done for networks of
linear layers: a batch of convolutions is slower than one after the other.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import stack_module_state, vmap

from recollect.batch import Inputs, functional_forward, map_inputs
from recollect.embedding.layers import Use
from recollect.embedding.listening import Listener, key_of, listen
from recollect.embedding.plan import PROBES, Plan
from recollect.embedding.projections import Kronecker
from recollect.losses import LossFunction

LARGEST = 16
"""How many draws go into one pass at most: what flows through them should fit the cache."""


class StackedDraws:
    """Draws whose passes are made together; the embeddings are those of one at a time, up to rounding."""

    def __init__(
        self, models: Sequence[nn.Module], projections: Sequence[Kronecker], plan: Plan, losses: LossFunction
    ) -> None:
        """No projections are needed to `listen`."""
        self.models = models
        self._plan, self._losses = plan, losses
        parameters, buffers = stack_module_state(list(models))
        # Only the gradients at the layers' outputs are ever asked for; this lets autograd get that far.
        self._weights = {name: value.detach().requires_grad_(True) for name, value in parameters.items()} | buffers
        self._skeleton = copy.deepcopy(models[0]).to("meta")
        self._projections = Kronecker.stacked(projections) if projections else None

    def __len__(self) -> int:
        return len(self.models)

    def add(self, out: Tensor, inputs: Inputs, targets: Tensor, scale: float) -> None:
        """Add the projected gradients of a few examples at all draws to `out` (n, draws * width)."""
        assert self._projections is not None
        out = out.view(len(targets), len(self), -1).transpose(0, 1)
        for use in self.listen(inputs, targets, scale):
            self._projections.add_stack(out, use)

    def listen(self, inputs: Inputs, targets: Tensor, scale: float) -> list[Use]:
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
            return self._losses(outputs, targets), [use.input for use in uses], listener.marks

        with torch.enable_grad():
            losses, came, went = vmap(one)(self._weights)
            deltas = torch.autograd.grad(losses, went, torch.full_like(losses, scale), allow_unused=True)
        noted = zip(uses, came, deltas, strict=True)
        return [replace(use, input=a.detach(), delta=delta) for use, a, delta in noted if delta is not None]

    def agrees(self, inputs: Inputs, targets: Tensor) -> bool:
        """Whether a stacked pass brings out what single ones do, tried on a few real examples.

        Not so where the model does what cannot be batched, or overwrites a layer's output in place.
        """
        inputs, targets = map_inputs(lambda t: t[:PROBES], inputs), targets[:PROBES]
        try:
            together = self.listen(inputs, targets, 1.0)
        except RuntimeError:
            return False
        for s, model in enumerate(self.models):
            alone = listen(model, self._plan.shapes, inputs, targets, self._losses, layouts=self._plan.layouts).uses
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
