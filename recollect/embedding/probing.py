"""The few examples that ways of computing gradients are tried on, and what a model and a loss must be like for that."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from recollect.batch import Inputs, forward, map_inputs
from recollect.embedding.plain import gradients_of
from recollect.losses import LossFunction
from recollect.randomness import seeded
from recollect.warning import warn

PROBES = 3
"""How many real examples, the first, each rule is compared with autograd on."""

_MIXED = (1, 3, 0, 4, 2)  # five more, spread over all and out of order: shows what depends on order or on number

Truth: TypeAlias = list[dict[str, Tensor | None]]


class Probe(NamedTuple):
    """A few examples that ways of computing gradients are tried on, and the gradients of each by autograd.

    Each loss is multiplied by another factor, which tells examples apart that are alike.

    Attributes:
        truth: the gradients of each example, times its factor; none of parameters that its loss does not depend on.
        largest: number in the gradients of each parameter, whatever its sign.
    """

    inputs: Inputs
    targets: Tensor
    truth: Truth = []  # noqa: RUF012
    largest: Mapping[str, float] = {}

    @property
    def n(self) -> int:
        return len(self.targets)

    def weigh(self, losses: Tensor) -> Tensor:
        """Losses of these examples, or of them several times, each times its factor."""
        factors = torch.linspace(1, 2, self.n, dtype=losses.dtype, device=losses.device)
        return losses * factors.repeat(len(losses) // self.n)

    def knowing(self, alone: Truth) -> "Probe":
        """With the gradients of each example alone."""
        factors = self.weigh(torch.ones(self.n)).tolist()
        truth: Truth = [
            {name: None if g is None else f * g for name, g in example.items()}
            for f, example in zip(factors, alone, strict=True)
        ]
        sizes: dict[str, list[float]] = {}
        for example in truth:
            for name, gradient in example.items():
                if gradient is not None:
                    sizes.setdefault(name, []).append(largest_of(gradient))
        largest = {name: max(some) if all(map(math.isfinite, some)) else math.inf for name, some in sizes.items()}
        return self._replace(truth=truth, largest=largest)

    def is_finite(self) -> bool:
        return all(map(math.isfinite, self.largest.values()))


def probes_of(inputs: Inputs, targets: Tensor) -> list[Probe]:
    """The first examples, and some of all that there are, neither ascending nor descending.

    Where there are fewer, some come again: one example alone does not show which dimension is that of the examples.
    """
    n = len(targets)
    spread = torch.linspace(0, n - 1, len(_MIXED), dtype=torch.float64).round().long()

    def some(rows: Tensor) -> Probe:
        return Probe(map_inputs(lambda t: t[rows.to(t.device)], inputs), targets[rows.to(targets.device)])

    return [some(torch.arange(PROBES) % n), some(spread[list(_MIXED)])]


def check_real(parameters: Mapping[str, Tensor]) -> None:
    """Refuse complex parameters: their gradients are no rows of real numbers."""
    for name, parameter in parameters.items():
        if parameter.is_complex():
            raise ValueError(
                f"parameters whose gradients are matched must be real, got {parameter.dtype} in {name!r}: make it of "
                "torch.view_as_real, and let forward take torch.view_as_complex of it"
            )


def check_repeatable(model: nn.Module, inputs: Inputs, targets: Tensor, losses: LossFunction) -> None:
    """Refuse a model or a loss that draws random numbers: its gradients would differ from call to call."""
    results, drawn = [], False
    for seed in (0, 1):
        with seeded(seed), torch.no_grad():
            before = torch.get_rng_state()
            results.append(losses(forward(model, inputs), targets))
            drawn |= not torch.equal(torch.get_rng_state(), before)
    # Where nothing was drawn, losses may still differ by rounding.
    one, other = results
    if not (torch.equal(one, other) if drawn else torch.allclose(one, other, rtol=1e-3, equal_nan=True)):
        raise ValueError(
            "the model and the loss must give the same for the same examples, got other losses when called again: "
            "draw no random numbers in evaluation mode (`if self.training`)"
        )


def check_alone(model: nn.Module, inputs: Inputs, targets: Tensor, losses: LossFunction) -> bool:
    """Refuse a loss that mixes examples, and tell of a model that does: gradients would depend on who comes along.

    Returns whether the model does not.
    So does a loss whose outputs (n, 1) and targets (n,) become (n, n) where they meet.
    """

    def one_by_one(first: Callable[[int], Tensor]) -> Tensor:
        return torch.cat([losses(first(i), targets[i : i + 1]) for i in range(len(targets))])

    with torch.no_grad():
        outputs = forward(model, inputs)
        together = losses(outputs, targets)
        if not _close(together, one_by_one(lambda i: outputs[i : i + 1])):
            raise ValueError(
                "the loss must look at each example by itself, got other losses for some examples together than one by "
                f"one: let it not divide by their number, and outputs of shape {tuple(outputs.shape)} and targets of "
                f"shape {tuple(targets.shape)} fit each other"
            )
        alone = one_by_one(lambda i: forward(model, map_inputs(lambda t: t[i : i + 1], inputs)))
    by_itself = _close(together, alone)
    if not by_itself:
        warn(
            "each example should pass through the model by itself, got other losses for some examples together than "
            "one by one: gradients depend on the other examples of a batch; let BatchNorm layers keep statistics"
        )
    return by_itself


def check_sums(model: nn.Module, names: list[str], probe: Probe, losses: LossFunction) -> None:
    """Tell of a model that mixes examples on the way back, as a table does that divides by how often rows are used.

    Each example comes twice, so that whatever it has in common with others shows.
    """
    if not probe.is_finite():
        return  # whoever plans says so
    parameters = dict(model.named_parameters())
    with torch.enable_grad():
        outputs = forward(model, map_inputs(lambda t: torch.cat([t, t]), probe.inputs))
        total = probe.weigh(losses(outputs, torch.cat([probe.targets, probe.targets]))).sum()
    largest = max(probe.largest.values(), default=0.0)
    for name, together in zip(names, gradients_of(total, [parameters[name] for name in names]), strict=True):
        known = [gradient for example in probe.truth if (gradient := example[name]) is not None]
        alone = 2 * torch.stack(known).sum(0) if known else torch.zeros_like(together)
        rounding = 16 * torch.finfo(together.dtype).eps * largest
        if largest_of(together - alone) > max(0.02 * probe.largest.get(name, 0.0), rounding):
            warn(
                f"gradients of some examples should add up to that of all, got others in {name!r}: they depend on the "
                "other examples of a batch; let tables (nn.Embedding) be made without scale_grad_by_freq"
            )
            return


def _close(some: Tensor, others: Tensor) -> bool:
    """Whether these losses differ by rounding alone, be it that of half precision; what is not finite is told later."""
    largest = float(some.abs().max())
    return not math.isfinite(largest) or torch.allclose(some, others, rtol=0.02, atol=0.02 * largest, equal_nan=True)


def largest_of(value: Tensor) -> float:
    """Number of a tensor, whatever its sign; NaN if there is any."""
    if not value.numel():
        return 0.0
    low, high = map(float, value.aminmax())
    return max(-low, high)
