"""Alg. 1 as a function: from candidates and a target to indices and weights."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from recollect.checks import check_number, check_size
from recollect.dictionary import Part
from recollect.numerics import full_precision, power_of_two, sum_rows
from recollect.progress import Bar, progress_bar
from recollect.pursuit.arguments import as_dictionary, as_target, check_options, checked_norms
from recollect.pursuit.elimination import eliminate
from recollect.pursuit.fit import RidgeFit
from recollect.pursuit.outliers import find_outliers, without
from recollect.pursuit.problem import SINGLE, Center, Nonnegative, Problem, Rule, precision
from recollect.pursuit.proposals import picks_per_scan
from recollect.warning import warn

MOST = 0.6  # of the candidates stay: the others are dropped, instead of these picked
DROP_FROM = 2500  # candidates at most: a drop costs a pass over a matrix of that size
HOLD = 0.1  # the entry that holds the count, over the root of the mean squared norm

_USELESS = 1e-6  # a weight that is less than this part of the mean is as good as zero
_CARRIED = 0.1  # if less than this part of the target is left without the outliers, they carry it


@dataclass(frozen=True, repr=False, eq=False)  # tensors do not compare as one
class Coreset:
    """Chosen rows, their weights, and how well they match.

    Attributes:
        indices: row numbers in the order they were picked.
        weights: one per row, in float64; they approximate a *sum*, so they add up to about the
            number of examples that the target sums over.
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
    all others are kept with weight one and left out of the fit, so that the others are matched as if they were alone; a
    warning says so if the target is little else.

    Args:
        embeddings: one row per candidate: a tensor, an array (also one mapped from a file), a table of numbers, or a
            dictionary.
        size: how many rows to choose at most, a whole number or a fraction; None if only `tolerance` decides.
        target: what to approximate; the sum of all rows by default.
        count: how many examples the target sums over; the weights are pulled towards adding up to it.
        rule: "least-squares" picks the row that lowers the objective most; "inner-product" the one with the largest
            product with what is left to match, as in the paper: rows with large norms come first.
        regularization: lambda, the pull of the weights towards the centre.
        relative: lambda is a multiple of the candidates' mean squared norm, so that scaling them
            changes nothing; otherwise it is absolute, as in the paper.
        center: "uniform" pulls towards the best equal weight for all (Sec. 2.3), "zero" towards zero.
        tolerance: stop as soon as the relative residual is this small.
        nonnegative: True drops rows with negative weights and picks others until `size` have positive ones or no other
            row would help; "clip" sets them to zero, as in the paper; False leaves them.
        hold_count: False lets the weights add up to whatever matches best, also where `count` is given.
        exact: one pick per scan of all candidates instead of several.
        progress: show a progress bar in a terminal.

    Example:
        >>> G = torch.eye(3)
        >>> pursue(G, 2, target=torch.tensor([0.0, 2.0, 5.0]), regularization=0.0).indices
        tensor([2, 1])
    """
    dictionary = as_dictionary(embeddings)
    n = len(dictionary)
    limit = n if size is None else check_size(size, n, "candidates")
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
    regularization = float(regularization)
    count = check_number("count", count) if count is not None and hold_count else None
    norms = checked_norms(dictionary)
    total = dictionary.sum() if target is None else as_target(target, dictionary)

    outliers = find_outliers(norms)
    ordinary = without(n, outliers)
    rest = total
    if len(outliers):  # what they add to the target is theirs to give, with weight one
        others = Part(dictionary, ordinary.nonzero()[:, 0])  # summed apart: beside outliers they would be rounded away
        rest = others.sum() if target is None else total - sum_rows(dictionary.rows(outliers))
    carried = float(rest.norm()) <= _CARRIED * float(total.norm()) and len(outliers) > 0
    aside = 2 * len(outliers) <= limit and float(rest.norm()) < float(total.norm())
    apart, g = (outliers, rest) if aside else (outliers[:0], total)

    # In units in which ordinary rows and the target have norms of about one; powers of two, so that nothing is rounded.
    square = float(norms[ordinary].square().mean())
    unit = min(max(power_of_two(math.sqrt(square)), 2.0**-126), 2.0**126)  # float32 can be divided by it
    weight_unit = power_of_two(float(g.norm()) / unit)
    square /= unit**2
    lambda_ = regularization * (square if relative else unit**-2)
    norm = float(total.norm()) / unit / weight_unit
    problem = Problem(
        dictionary,
        g / unit / weight_unit,
        norms / unit,
        unit,
        lambda_,
        center,
        rule,
        limit - len(apart),
        precision(dictionary, lambda_, square, float(norms.max()) / unit, exact),
        exact,
        HOLD * math.sqrt(square) if count is not None else 0.0,
        0.0 if count is None else (count - len(apart)) / weight_unit,
    )
    enough = -1.0 if tolerance is None else tolerance * norm
    with progress_bar("choosing examples", limit, show=progress) as bar:
        bar.advance(len(apart))
        if tolerance is None and problem.size and _can_drop(problem, n - len(apart), square):
            fit = _drop_to_size(problem, apart, nonnegative is True)
        else:
            fit = RidgeFit(problem, without(n, apart))
        _fill(fit, enough, bar)
        weights = fit.solve()
        if nonnegative is True:
            # Rows that were dropped stay taken, so that this ends too.
            while bool((useless := weights <= _USELESS * weights.clamp(min=0).mean()).any()):
                fit = fit.without(useless)
                _fill(fit, enough, bar, helpful=True)
                weights = fit.solve()
        elif nonnegative == "clip":
            weights = weights.clamp(min=0)

    missing = float(fit.residual_of(weights).norm())
    weights = torch.cat([weights.new_ones(len(apart)), weights * weight_unit])
    if not (bool(torch.isfinite(weights).all()) and math.isfinite(missing)):
        raise ValueError("weights must be finite, got NaN or infinity: scale the embeddings or raise regularization")
    if carried:
        length = float(problem.g.norm())
        alone = f" ({missing / length:.2g} for them alone)" if aside and length else ""
        warn(
            f"the target should be carried by many rows, got {len(outliers)} of {n} that dwarf the others, so that the "
            f"error says little about these{alone}: look for outliers or unscaled features"
        )
    return Coreset(torch.cat([apart, fit.indices]), weights, missing / norm if norm else 0.0)


def _can_drop(problem: Problem, n: int, square: float) -> bool:
    """Whether so many of the n rows stay that it is better to drop the others, by the rule that looks at the fit."""
    many = MOST * n <= problem.size and n <= DROP_FROM
    return many and problem.rule == "least-squares" and not problem.exact and problem.regularization >= SINGLE * square


def _drop_to_size(problem: Problem, apart: Tensor, nonnegative: bool) -> RidgeFit:
    """The fit of what is left once the least useful rows have been dropped."""
    candidates = without(len(problem.dictionary), apart).nonzero()[:, 0]
    rows, goal = problem.rows(candidates), problem.goal()
    b = problem.form.along(rows, goal)
    size, uniform = min(problem.size, len(rows)), problem.center == "uniform"
    K = problem.form.gram(rows)
    left, gamma = eliminate(K, b, size, problem.regularization, uniform=uniform, nonnegative=nonnegative)
    # Should a weight still be negative, what replaces the row is found without looking at what is left of all rows.
    fit = RidgeFit(replace(problem, rule="inner-product"), without(len(problem.dictionary), apart))
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
