"""Gradients the plain ways: right for any model, and slow where they are wanted of single examples."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from recollect.batch import Inputs, forward, functional_forward, map_inputs
from recollect.losses import LossFunction, check_losses


def gradients_of(total: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Of a sum of losses; zero for parameters that it does not depend on."""
    if not total.requires_grad:
        return tuple(map(torch.zeros_like, parameters))
    found = torch.autograd.grad(total, parameters, allow_unused=True, materialize_grads=True)
    return tuple(gradient.to_dense() for gradient in found)  # a table may have sparse ones


def gradients_by_func(
    model: nn.Module, names: list[str], inputs: Inputs, targets: Tensor, loss: LossFunction
) -> dict[str, Tensor]:
    """Per-example gradients of the named parameters through torch.func: right for any model, if slower."""
    parameters = dict(model.named_parameters())
    chosen = {name: parameters[name] for name in names}

    def one(some: Mapping[str, Tensor], example: Inputs, target: Tensor) -> Tensor:
        outputs = functional_forward(model, some, map_inputs(lambda t: t[None], example))
        return check_losses(loss(outputs, target[None]), 1)[0]

    try:
        with sdpa_kernel(SDPBackend.MATH):  # the one form of attention that vmap can batch
            return vmap(grad(one), in_dims=(None, 0, 0))(chosen, inputs, targets)  # type: ignore[no-any-return]
    except RuntimeError:  # what torch.func cannot follow, such as packed sequences and checkpoints: one at a time
        asked = {name: value.requires_grad for name, value in chosen.items()}
        try:
            for value in chosen.values():
                value.requires_grad_()
            each = gradients_by_autograd(model, names, inputs, targets, loss)
        finally:
            for name, value in chosen.items():
                value.requires_grad_(asked[name])
        zeros = {name: torch.zeros_like(value) for name, value in chosen.items()}
        rows = {name: [zeros[name] if (g := row[name]) is None else g for row in each] for name in names}
        return {name: torch.stack(some) for name, some in rows.items()}


def gradients_by_autograd(
    model: nn.Module, names: list[str], inputs: Inputs, targets: Tensor, losses: LossFunction
) -> list[dict[str, Tensor | None]]:
    """The gradients of each example alone, the plainest way; None where the loss does not depend on a parameter."""
    parameters = dict(model.named_parameters())
    truth: list[dict[str, Tensor | None]] = []
    for i in range(len(targets)):
        with torch.enable_grad():
            outputs = forward(model, map_inputs(lambda t, i=i: t[i : i + 1], inputs))  # type: ignore[misc]
            loss = losses(outputs, targets[i : i + 1]).sum()
            gradients: tuple[Tensor | None, ...] = (None,) * len(names)
            if loss.requires_grad:
                gradients = torch.autograd.grad(loss, [parameters[name] for name in names], allow_unused=True)
        truth.append({name: None if g is None else g.to_dense() for name, g in zip(names, gradients, strict=True)})
    return truth
