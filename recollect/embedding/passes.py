"""Passes through a model that bring out per-example gradients."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from recollect.batch import Inputs, forward, functional_forward, map_inputs
from recollect.embedding.layers import Call
from recollect.losses import LossFunction, check_losses


def listen(
    model: nn.Module,
    layers: Iterable[str],
    inputs: Inputs,
    targets: Tensor,
    losses: LossFunction,
    scale: float = 1.0,
) -> list[tuple[str, Call]]:
    """One forward and one backward pass that note what flows through the layers; the loss is scaled.

    No parameter may require a gradient: backward then computes the gradients at the layers' outputs alone, and
    nothing at all before the first layer listened to. Outputs are remembered by their edges in the graph, which stay
    right if an activation overwrites them in place.
    """
    calls: list[tuple[str, Call]] = []
    edges: list[GradientEdge] = []
    anchor = torch.zeros((), device=targets.device, requires_grad=True)

    def listener(layer: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def hook(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if not output.requires_grad:
                output = _Anchored.apply(output, anchor)  # type: ignore[no-untyped-call]
            calls.append((layer, Call(args[0].detach())))
            edges.append(get_gradient_edge(output))
            return output

        return hook

    hooks = [model.get_submodule(layer).register_forward_hook(listener(layer)) for layer in layers]
    try:
        with torch.enable_grad():
            each = losses(forward(model, inputs), targets)
            if each.requires_grad:
                deltas = torch.autograd.grad(each, edges, torch.full_like(each, scale), allow_unused=True)
                for (_, call), delta in zip(calls, deltas, strict=True):
                    call.delta = delta
    finally:
        for hook in hooks:
            hook.remove()
    return calls


class _Anchored(torch.autograd.Function):
    """Makes a tensor require a gradient as if it had been computed from the anchor, without copying it.

    It is marked as changed in place, not returned as a view, so that an in-place activation may follow.
    """

    @staticmethod
    def forward(ctx, output, anchor):  # type: ignore[no-untyped-def]
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx, delta):  # type: ignore[no-untyped-def]
        return None, None


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
    except RuntimeError:  # something that vmap cannot batch: one example at a time
        examples = [(map_inputs(lambda t, i=i: t[i], inputs), targets[i]) for i in range(len(targets))]  # type: ignore[misc]
        pieces = [grad(one)(chosen, *example) for example in examples]
        return {name: torch.stack([piece[name] for piece in pieces]) for name in names}


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
        truth.append(dict(zip(names, gradients, strict=True)))
    return truth
