"""How much each class counts, and how many places it has whatever matching says.

With `class_weight` the target is sum_c a_c g_c, where g_c is the sum of the embeddings of class c. The sums are kept
class by class, so that under "balanced", a_c = n / (C n_c) as in scikit-learn, factors follow the frequencies along
the stream and the target is always what it would be had everything come at once.

With `min_per_class` a class that pursuit leaves short of its places is matched by itself: its places go to the rows of
the class that add up best to a_c g_c. What these leave of the target is then matched by the rows of the other classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, SupportsIndex, TypeAlias

import torch
from torch import Tensor

from recollect.checks import check_count, check_number
from recollect.dictionary import SCAN_ROWS, Dictionary, part, taken, weighted_sum
from recollect.losses import IGNORED, LOSSES, LossFunction, cross_entropy, get_loss
from recollect.pursuit import Coreset, pursue
from recollect.warning import warn

ClassWeight: TypeAlias = Literal["balanced"] | Mapping[int, float]
"""By which factor the gradients of a class count; classes that a mapping does not name have factor one."""

Classes: TypeAlias = tuple[ClassWeight | None, int]
"""The options `class_weight` and `min_per_class`."""

COUNTED = "class_weight and min_per_class are about classes"

_ROUNDING = 1e-9  # of all that is counted: less than that is what rounding leaves of nothing


class LostClassWarning(UserWarning):
    """Warns that a class was seen, and that no example of it is kept."""


@dataclass(frozen=True)
class Tally:
    """Which classes were seen, and how often.

    Attributes:
        classes: their numbers, ascending.
        counts: of the examples of each; in float64 where examples stand for several.

    Example:
        >>> seen = Tally.of(torch.tensor([1, 1, 1])).plus(Tally.of(torch.tensor([0])))
        >>> seen.counts, seen.factors("balanced"), seen.factors({1: 5.0})
        (tensor([1, 3]), tensor([2.0000, 0.6667], dtype=torch.float64), tensor([1., 5.], dtype=torch.float64))
    """

    classes: Tensor
    counts: Tensor

    @classmethod
    def of(cls, labels: Tensor, weights: Tensor | None = None) -> Self:
        if weights is None:
            return cls(*labels.unique(return_counts=True))
        classes, places = labels.unique(return_inverse=True)
        return cls(classes, torch.bincount(places, weights.double(), minlength=len(classes)))

    def plus(self, other: "Tally") -> "Tally":
        """The tally of both."""
        classes = torch.cat([self.classes, other.classes]).unique()
        counts = classes.new_zeros(len(classes), dtype=torch.promote_types(self.counts.dtype, other.counts.dtype))
        for tally in (self, other):
            counts[torch.searchsorted(classes, tally.classes)] += tally.counts
        return Tally(classes, counts)

    def places(self, labels: Tensor) -> Tensor:
        """Where the class of each label stands among the classes."""
        return torch.searchsorted(self.classes, labels.contiguous())

    def factors(self, class_weight: ClassWeight | None) -> Tensor:
        """How much an example of each class counts, a_c."""
        if class_weight == "balanced":
            present = self.counts > _ROUNDING * self.counts.sum()  # others have been forgotten
            return torch.where(present, self.counts.sum() / (present.sum() * self.counts.double()), 0.0)
        given: Mapping[int, float] = class_weight or {}
        factors = [given.get(label, 1.0) for label in self.classes.tolist()]
        return torch.tensor(factors, dtype=torch.float64, device=self.classes.device)

    def spread(self, sums: Tensor, part: "Tally") -> Tensor:
        """Sums by the classes of a part, as sums by all classes."""
        out = sums.new_zeros(len(self.classes), *sums.shape[1:])
        out[self.places(part.classes).to(sums.device)] = sums
        return out


def check_classes(class_weight: Any, min_per_class: SupportsIndex) -> Classes:
    """Refuse what cannot say how classes count, or how many places they have.

    Example:
        >>> check_classes({"1": 2}, 0)  # as it comes back from a file
        ({1: 2.0}, 0)
    """
    places = 0 if min_per_class == 0 and not isinstance(min_per_class, bool) else None
    if places is None:
        try:
            places = check_count("min_per_class", min_per_class)
        except ValueError:
            raise ValueError(f"min_per_class must be a whole number of at least 0, got {min_per_class!r}") from None
    if class_weight is None:
        return None, places
    if isinstance(class_weight, str) and class_weight == "balanced":
        return "balanced", places
    if not isinstance(class_weight, Mapping):
        row = hasattr(class_weight, "__len__") and not isinstance(class_weight, str)
        hint = ": pass dict(enumerate(...)) of a row of factors" if row else ""
        raise ValueError(
            f"class_weight must be None, 'balanced' or a dict of factors by class, got {class_weight!r}{hint}"
        )
    factors = {}
    for label, factor in class_weight.items():
        if isinstance(label, bool) or not str(label).removeprefix("-").isdecimal():
            raise ValueError(f"class_weight must name classes by whole numbers, got {label!r}")
        factors[int(label)] = check_number("each factor of class_weight", factor)
        if not factors[int(label)]:
            raise ValueError(f"class_weight must give factors above 0, got {factor!r} for class {label}")
    return factors, places


def class_labels(targets: Tensor, why: str = "this memory balances classes") -> Tensor:
    """Targets as class numbers; refused if they are not."""
    if targets.ndim != 1 or targets.is_floating_point():
        raise ValueError(
            f"targets must be whole class numbers, one per example, got {targets.dtype} of shape "
            f"{tuple(targets.shape)}: {why}, so pass "
            + ("targets.argmax(1)" if targets.ndim == 2 and targets.shape[1] > 1 else "targets.long() of one dimension")
        )
    return targets.long()


def sums_by_class(candidates: Dictionary, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """The sums of the rows of each class, each times its weight, in float64, (classes, dim)."""
    sums = []
    for label in labels.unique():
        mine = (labels == label).nonzero()[:, 0]
        if weights is None:
            sums.append(torch.stack([taken(candidates, rows).sum() for rows in mine.split(SCAN_ROWS)]).sum(0))
        else:
            sums.append(weighted_sum(candidates, mine, weights[mine]))
    return torch.stack(sums)


def pursue_classes(
    candidates: Dictionary,
    labels: Tensor,
    size: int,
    seen: Tally,
    sums: Tensor,
    classes: Classes,
    **options: Any,
) -> Coreset:
    """As `pursue`, towards the sums of all classes, each times its factor, with some places for each class.

    Args:
        candidates: the embeddings.
        labels: the class of each candidate.
        size: how many to choose.
        seen: what the sums are of.
        sums: of the embeddings of each class, in float64.
        classes: by which factor each class counts, and how many of each are chosen at least, as far as there are
            candidates and room.
        options: of `pursue`.
    """
    class_weight, min_per_class = classes
    device = sums.device
    seen = Tally(seen.classes.to(device), seen.counts.to(device))
    places, factors = seen.places(labels.to(device)), seen.factors(class_weight)
    goals, counts = factors[:, None] * sums, factors * seen.counts
    target, count = goals.sum(0), float(counts.sum())
    chosen = pursue(candidates, size, target=target, count=count, **options)
    if not min_per_class:
        return chosen
    shares = _shares(torch.bincount(places, minlength=len(counts)), min_per_class, size)
    apart: dict[int, Coreset] = {}  # classes that are matched by themselves
    while True:  # each pass adds a class to those apart, or is the last
        have = torch.bincount(places[chosen.indices], minlength=len(counts))
        short = [c for c in (have < shares).nonzero()[:, 0].tolist() if c not in apart]
        if not short:
            return chosen
        for c in short:
            mine = (places == c).nonzero()[:, 0]
            own = _own(taken(candidates, mine), int(shares[c]), goals[c], float(counts[c]), options)
            apart[c] = replace(own, indices=mine[own.indices])
        indices = torch.cat([own.indices for own in apart.values()])
        weights = torch.cat([own.weights for own in apart.values()])
        others = torch.isin(places, torch.tensor([*apart], device=device), invert=True).nonzero()[:, 0]
        room = min(size - len(indices), len(others))
        if room:
            left = target - weighted_sum(candidates, indices, weights)
            still = max(0.0, count - float(weights.sum()))
            rest = pursue(part(candidates, others), room, target=left, count=still, **options)
            indices, weights = torch.cat([indices, others[rest.indices]]), torch.cat([weights, rest.weights])
        missing, norm = target - weighted_sum(candidates, indices, weights), float(target.norm())
        chosen = Coreset(indices, weights, float(missing.norm()) / norm if norm else 0.0)


def _shares(available: Tensor, wanted: int, size: int) -> Tensor:
    """How many places each class has: as many as wanted and available, or as many as there is room for."""
    while int((shares := available.clamp(max=wanted)).sum()) > size:
        wanted -= 1
    return shares


def _own(candidates: Dictionary, size: int, target: Tensor, count: float, options: dict[str, Any]) -> Coreset:
    """So many rows of one class that add up to its sum; of equal weight if not so many are of use for that."""
    indices = torch.arange(len(candidates), device=target.device)
    if bool(candidates.norms().any()):
        chosen = pursue(candidates, size, target=target, count=count, **{**options, "tolerance": None})
        if len(chosen) == size:
            return chosen
        others = torch.isin(indices, chosen.indices, invert=True)
        indices = torch.cat([chosen.indices, indices[others]])
    return Coreset(indices[:size], torch.full((size,), count / size, dtype=torch.float64, device=target.device), 0.0)


def are_classes(targets: Tensor, loss: str | LossFunction) -> bool:
    """Whether targets are class numbers: as the loss says or, with a loss of one's own, if whole numbers come again.

    Example:
        >>> are_classes(torch.tensor([0, 1, 1, 0]), lambda outputs, targets: outputs[:, 0])
        True
    """
    known = get_loss(loss)
    if known is cross_entropy:
        return True
    whole = targets.ndim == 1 and not targets.is_floating_point()
    return known not in LOSSES.values() and whole and 2 * len(targets.unique()) <= len(targets)


def warn_of_lost_classes(before: Tensor, kept: Tensor, least: int = 0) -> None:
    """Tell of classes of which nothing stays, if these are targets with classes; so many of each were to stay."""
    if before.ndim != 1 or before.is_floating_point():
        return
    classes = before[before != IGNORED].long().unique()
    lost = classes[torch.isin(classes, kept.long(), invert=True)].tolist()
    if lost:
        named = ", ".join(map(str, lost[:5])) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
        warn(
            f"each class should keep an example, got none left of {len(lost)} of {len(classes)} (class {named}): "
            + ("keep more" if least else "pass min_per_class=1 or class_weight='balanced', or keep more"),
            LostClassWarning,
        )
