"""How the gradients of each parameter are computed: decided once, on first sight of data."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recollect.batch import Inputs, forward, map_inputs
from recollect.embedding.layers import RULES, Rule
from recollect.embedding.passes import gradients_by_autograd, listen
from recollect.losses import LossFunction

PROBES = 3
"""How many real examples each rule is compared with autograd on."""

Layers = str | tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Which gradients are computed how; the same for every draw."""

    sizes: dict[str, int]  # parameter -> entries
    rules: dict[str, Rule]  # layer -> its rule
    rest: list[str]  # parameters without a rule, left to torch.func


def make_plan(model: nn.Module, layers: Layers, inputs: Inputs, targets: Tensor, losses: LossFunction) -> Plan:
    """Decide for each parameter how its gradients are computed.

    A layer's rule is used where it reproduces autograd's gradients of single examples on real data. Tied
    or reused parameters, layers that are bypassed or mix examples, and whatever has no rule, are
    left to torch.func. So a rule can be fast without having to foresee every model.
    """
    inputs, targets = map_inputs(lambda t: t[:PROBES], inputs), targets[:PROBES]
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise ValueError("the model must have at least one trainable parameter, got none")
    owners = _selected(model, layers, inputs)
    names = [name for name in trainable if owner(name) in owners]
    if not names:
        raise ValueError(f"layers must name modules with trainable parameters, got {layers!r}")

    truth = gradients_by_autograd(model, names, inputs, targets, losses)
    used = [name for name in names if any(example[name] is not None for example in truth)]
    if not used:
        raise ValueError(
            "the loss must depend on the model's trainable parameters, got no gradient: "
            "does the model or the loss detach its result?"
        )
    candidates = _candidates(model, used, set(trainable))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    found = _gradients_by_rules(model, candidates, inputs, targets, losses)
    rules = {
        layer: rule
        for layer, rule in candidates.items()
        if all(_agrees(found.get(name), name, truth) for name in names if owner(name) == layer)
    }
    rest = [name for name in used if owner(name) not in rules]
    return Plan({name: trainable[name].numel() for name in names}, rules, rest)


def owner(parameter: str) -> str:
    """The module a parameter belongs to.

    Example:
        >>> owner("head.fc.weight")
        'head.fc'
    """
    return parameter.rpartition(".")[0]


def _selected(model: nn.Module, layers: Layers, inputs: Inputs) -> set[str]:
    """Names of the modules whose own parameters count."""
    modules = dict(model.named_modules())
    if layers == "all":
        return set(modules)
    if layers == "last":
        return {_last_linear(model, inputs)}
    wanted: Sequence[str] = [layers] if isinstance(layers, str) else layers
    for name in wanted:
        if name not in modules:
            known = ", ".join(repr(m) for m in modules if m)
            raise ValueError(f"layers must be 'all', 'last' or among {known}, got {name!r}")
    return {name for name in modules if any(name == w or name.startswith(f"{w}.") for w in wanted)}


def _last_linear(model: nn.Module, inputs: Inputs) -> str:
    """The linear layer that is called last."""
    order: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, name=name: order.append(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        with torch.no_grad():
            forward(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not order:
        raise ValueError("layers='last' needs a model with a linear layer, got none: name the layers to use")
    return order[-1]


def _candidates(model: nn.Module, used: list[str], trainable: set[str]) -> dict[str, Rule]:
    """Layers with a rule whose parameters all count and are theirs alone."""
    seen: set[int] = set()
    tied: set[int] = set()
    for parameter in (p for _, p in model.named_parameters(remove_duplicate=False)):
        (tied if id(parameter) in seen else seen).add(id(parameter))
    candidates: dict[str, Rule] = {}
    for layer, module in model.named_modules():
        own = dict(module.named_parameters(prefix=layer, recurse=False))
        rule = RULES.get(type(module))
        if (
            rule is not None
            and rule.applies(module)
            and not trainable.isdisjoint(own.keys() & set(used))
            and trainable.issuperset(own)
            and tied.isdisjoint(map(id, own.values()))
        ):
            candidates[layer] = rule
    return candidates


def _gradients_by_rules(
    model: nn.Module, candidates: dict[str, Rule], inputs: Inputs, targets: Tensor, losses: LossFunction
) -> dict[str, Tensor]:
    """What the rules make of a pass, by parameter; a rule that cannot read its layer's layout leaves nothing."""
    n = len(targets)
    found: dict[str, Tensor] = {}
    failed: set[str] = set()
    for layer, call in listen(model, candidates, inputs, targets, losses):
        if call.delta is None:
            continue
        try:
            pieces = candidates[layer].gradient(model.get_submodule(layer), call.input, call.delta, n)
        except RuntimeError:  # such as examples that are not first
            failed.add(layer)
            continue
        for short, piece in pieces.items():
            name = f"{layer}.{short}" if layer else short
            found[name] = found.get(name, torch.zeros_like(piece)) + piece
    return {name: value for name, value in found.items() if owner(name) not in failed}


def _agrees(found: Tensor | None, name: str, truth: list[dict[str, Tensor | None]]) -> bool:
    """Whether these are the true gradients of one parameter, to single precision."""
    true = [example[name] for example in truth]
    largest = max((float(value.abs().max()) for value in true if value is not None), default=0.0)
    for i, value in enumerate(true):
        if value is None:
            if found is not None and found[i].any():
                return False
        elif found is None or not torch.allclose(found[i], value, rtol=1e-3, atol=1e-4 * largest):
            return False
    return True
