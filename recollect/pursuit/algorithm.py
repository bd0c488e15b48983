"""Alg. 1 as a function: from candidates and a target to indices and weights."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from recollect.checks import check_number, check_size
from recollect.numerics import full_precision
from recollect.progress import Bar, progress_bar
from recollect.pursuit.arguments import as_dictionary, as_target, check_options, checked_norms
from recollect.pursuit.elimination import eliminate
from recollect.pursuit.fit import RidgeFit
from recollect.pursuit.outliers import set_apart, without
from recollect.pursuit.problem import SINGLE, Center, Nonnegative, Problem, Rule, above_rounding, scaled
from recollect.pursuit.proposals import picks_per_scan
from recollect.warning import warn

MOST = 0.6  # of the candidates stay: the others are dropped, instead of these picked
DROP_FROM = 2500  # candidates at most: a drop costs a pass over a matrix of that size

_USELESS = 1e-6  # a weight that is less than this part of the mean is as good as zero


@dataclass(frozen=True, repr=False, eq=False)  # tensors do not compare as one
class Coreset:
    """Chosen rows, their weights, and how well they match.

    Attributes:
        indices: row numbers in the order they were picked, not sorted; by row where most candidates stay.
        weights: one per row, in float64. The weighted sum of the rows approximates the *sum* over all examples. Where
            the count is held (`hold_count`, as in memories), the weights add up to about the number of examples; as
            `select` chooses by default, they may add up to less, the more so the fewer are kept.
        error: norm of the residual over norm of the target.
    """

    indices: Tensor
    weights: Tensor
    error: float

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        """How many, how good, and how the weights spread, in one line."""
        if not len(self):
            return f"Coreset(0 rows, error {self.error:.4g})"
        w = self.weights
        spread = f"weights {float(w.min()):.4g} to {float(w.max()):.4g} that add up to {float(w.sum()):.6g}"
        return f"Coreset({len(self)} rows, error {self.error:.4g}, {spread})"


@full_precision()
def pursue(
    embeddings: Any,
    size: int | None,
    *,
    target: Tensor | None = None,
    count: float | None = None,
    rule: Rule = "least-squares",
    regularization: float = 0.001,
    relative: bool = True,
    center: Center = "uniform",
    tolerance: float | None = None,
    nonnegative: Nonnegative = True,
    hold_count: bool = True,
    exact: bool = False,
    progress: bool = False,
) -> Coreset:
    """Choose rows whose weighted sum approximates the target (Alg. 1).

    Results are reproducible; another number of threads may change the last bits of the weights. A few rows that dwarf
    all others, and that the target holds once each, are kept with weight one and left out of the fit, so that the
    others are matched as if they were alone (not with `exact`). A warning says so if the target is little else.

    Args:
        embeddings: one row per candidate: a tensor, an array (also one mapped from a file), a table of numbers, or a
            dictionary.
        size: how many rows to choose at most, a whole number or a fraction; None if only `tolerance` decides.
        target: what to approximate; the sum of all rows by default.
        count: how many examples the target sums over; the weights are pulled towards adding up to it.
        rule: "least-squares" picks the row that improves the fit most once all weights are refitted;
            "inner-product" the one with the largest product with what is left to match, as in the paper: rows with
            large norms come first.
        regularization: lambda, how strongly the weights are pulled towards `center`.
        relative: lambda is a multiple of the candidates' mean squared norm, so that scaling them
            changes nothing; otherwise it is absolute, as in the paper.
        center: "uniform" pulls towards the best equal weight for all (Sec. 2.3), "zero" towards zero.
        tolerance: stop as soon as the matching error is this small.
        nonnegative: True drops rows with negative weights and picks others until `size` have positive ones or no other
            row would help; "clip" sets them to zero, as in the paper; False leaves them.
        hold_count: False lets the weights add up to whatever matches best, also where `count` is given.
        exact: scan all candidates for each pick, instead of picking several per scan; slower.
        progress: show a progress bar in a terminal.

    Example:
        >>> G = torch.eye(3)
        >>> pursue(G, 2, target=torch.tensor([0.0, 2.0, 5.0]), regularization=0.0).indices
        tensor([2, 1])
    """
    dictionary = as_dictionary(embeddings)
    limit = len(dictionary) if size is None else check_size(size, len(dictionary), "candidates")
    check_options(
        rule=rule,
        regularization=regularization,
        relative=relative,
        center=center,
        tolerance=tolerance,
        nonnegative=nonnegative,
        hold_count=hold_count,
        exact=exact,
    )
    if size is None and tolerance is None:
        raise ValueError("size or tolerance must be given, got neither")
    count = check_number("count", count) if count is not None and hold_count else None
    norms = checked_norms(dictionary)
    total = None if target is None else as_target(target, dictionary)

    apart, ordinary, g, total, carried = set_apart(dictionary, norms, total, 0 if exact else limit)
    problem = scaled(
        dictionary,
        g,
        norms,
        ordinary,
        without(len(dictionary), apart),
        regularization=float(regularization),
        relative=relative,
        center=center,
        rule=rule,
        size=limit - len(apart),
        exact=exact,
        count=None if count is None else count - len(apart),
    )
    norm = float(total.norm()) / problem.unit / problem.weight_unit
    enough = -1.0 if tolerance is None else tolerance * norm
    with progress_bar("choosing examples", limit, show=progress) as bar:
        bar.advance(len(apart))
        fit, weights = _choose(problem, apart, enough, nonnegative, bar)

    missing = float(fit.residual_of(weights).norm())
    weights = torch.cat([weights.new_ones(len(apart)), weights * problem.weight_unit])
    if not (bool(torch.isfinite(weights).all()) and math.isfinite(missing)):
        raise ValueError("weights must be finite, got NaN or infinity: scale the embeddings or raise regularization")
    if carried:
        length = float(problem.g.norm())
        alone = f" ({missing / length:.2g} for them alone)" if len(apart) and length else ""
        few = f"{int((~ordinary).sum())} of {len(dictionary)}"
        warn(
            f"the target should be carried by many rows, got {few} that dwarf the others, so that the error says "
            f"little about these{alone}: look for outliers or unscaled features"
        )
    return Coreset(torch.cat([apart, fit.indices]), weights, missing / norm if norm else 0.0)


def _choose(
    problem: Problem, apart: Tensor, enough: float, nonnegative: Nonnegative, bar: Bar
) -> tuple[RidgeFit, Tensor]:
    """The fit of the chosen rows, none of which is set apart, and their weights."""
    open_ = without(len(problem.dictionary), apart)
    if enough < 0 and _can_drop(problem, open_):
        fit = _drop_to_size(problem, open_, nonnegative is True)
    else:
        fit = RidgeFit(problem, open_)
    _fill(fit, enough, bar)
    weights = fit.solve()
    if nonnegative == "clip":
        return fit, weights.clamp(min=0)
    # Rows that were dropped stay taken, so that this ends.
    while nonnegative and bool((useless := weights <= _USELESS * weights.clamp(min=0).mean()).any()):
        fit = fit.without(useless)
        _fill(fit, enough, bar, helpful=True)
        weights = fit.solve()
    return fit, weights


def _can_drop(problem: Problem, open_: Tensor) -> bool:
    """Whether so many of the rows stay that it is better to drop the others, by the rule that looks at the fit."""
    n = int(open_.sum())
    many = 0 < MOST * n <= problem.size and n <= DROP_FROM
    if not many or problem.rule != "least-squares" or problem.exact:
        return False
    longest = float(problem.norms[open_].max())
    enough = problem.regularization >= SINGLE * problem.square
    return enough and above_rounding(problem.regularization, longest, problem.dtype)


def _drop_to_size(problem: Problem, open_: Tensor, nonnegative: bool) -> RidgeFit:
    """The fit of what is left once the least useful rows have been dropped."""
    candidates = open_.nonzero()[:, 0]
    rows, goal = problem.rows(candidates), problem.goal()
    b = problem.form.along(rows, goal)
    size, uniform = min(problem.size, len(rows)), problem.center == "uniform"
    K = problem.form.gram(rows)
    left, gamma = eliminate(K, b, size, problem.regularization, uniform=uniform, nonnegative=nonnegative)
    # Should a weight still be negative, what replaces the row is found without looking at what is left of all rows.
    fit = RidgeFit(replace(problem, rule="inner-product"), open_)
    fit.start(candidates[left].tolist(), rows[left], K[left][:, left], gamma)
    return fit


def _fill(fit: RidgeFit, enough: float, bar: Bar, *, helpful: bool = False) -> None:
    """Grow to the size asked for, or until what is left is small enough, or no candidate is left (or helpful)."""
    # Each pass closes at least one candidate: there are at most as many passes as candidates.
    problem = fit.problem
    while (room := min(problem.size - len(fit), int(fit.open.sum()))) > 0:
        if enough >= 0 and float(fit.residual[: problem.dictionary.dim].norm()) <= enough:
            break
        before = len(fit)
        if not fit.grow(min(picks_per_scan(before, problem.rule, problem.exact), room), helpful=helpful):
            break
        bar.advance(len(fit) - before)
