"""Which modules' parameters count: those that are named, the last linear layer, or all."""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from recollect.batch import Inputs, forward
from recollect.embedding.probing import Probe

Layers: TypeAlias = str | tuple[str, ...]


def counted_modules(model: nn.Module, layers: Layers, probes: Sequence[Probe]) -> set[str]:
    """Names of the modules whose own parameters count."""
    modules = dict(model.named_modules())
    if layers == "all":
        return set(modules)
    if layers == "auto":
        targets = probes[0].targets
        classes = targets.ndim == 1 and not targets.is_floating_point()
        last = _ends_in(model, probes) if classes else None
        return set(modules) if last is None else {last}
    if layers == "last":
        found = _last_linear(model, probes[0].inputs)
        if found is None:
            raise ValueError("layers='last' needs a model with a linear layer, got none: name the layers to use")
        return {found[0]}
    wanted: Sequence[str] = [layers] if isinstance(layers, str) else layers
    for name in wanted:
        if name not in modules:
            known = ", ".join(repr(m) for m in modules if m)
            raise ValueError(f"layers must be 'auto', 'all', 'last' or among {known}, got {name!r}")
    return {name for name in modules if any(name == w or name.startswith(f"{w}.") for w in wanted)}


def _ends_in(model: nn.Module, probes: Sequence[Probe]) -> str | None:
    """The linear layer whose outputs are the model's, a row for each example; None if there is none to be trained.

    One whose weights are used elsewhere too, as in a language model, is not the last alone. Nor is one beside which
    others have not been used yet: they may be the heads of tasks to come.
    """
    if not any(isinstance(module, nn.Linear) for module in model.modules()) or _has_more(model, probes):
        return None
    found = _last_linear(model, probes[0].inputs)
    if found is None:
        return None
    name, output, result = found
    same = output.data_ptr() == result.data_ptr() and output.shape == result.shape and output.ndim == 2
    weight = model.get_submodule(name).weight
    users = [other for other, p in model.named_parameters(remove_duplicate=False) if p is weight]
    return name if same and weight.requires_grad and len(users) == 1 else None


def _has_more(model: nn.Module, probes: Sequence[Probe]) -> bool:
    """Whether there are trainable parameters that no example has passed through yet."""
    idle = [p for p in model.parameters() if p.requires_grad]
    for probe in probes:
        with torch.enable_grad():
            total = forward(model, probe.inputs).sum()
        if total.requires_grad and idle:
            found = torch.autograd.grad(total, idle, allow_unused=True)
            idle = [p for p, gradient in zip(idle, found, strict=True) if gradient is None]
    return bool(idle)


def _last_linear(model: nn.Module, inputs: Inputs) -> tuple[str, Tensor, Tensor] | None:
    """The linear layer that is called last, its output and the model's; None if none is called.

    There may be some that are not, as those of which attention takes the weights alone.
    """
    calls: list[tuple[str, Tensor]] = []
    hooks = [
        module.register_forward_hook(lambda *seen, name=name: calls.append((name, seen[-1])))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        with torch.no_grad():
            result = forward(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return (*calls[-1], result) if calls else None


def owner(parameter: str) -> str:
    """The module a parameter belongs to.

    Example:
        >>> owner("head.fc.weight")
        'head.fc'
    """
    return parameter.rpartition(".")[0]
