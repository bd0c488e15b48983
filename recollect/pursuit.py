"""Embeddings to indices and weights: regularised orthogonal matching pursuit (Alg. 1, Sec. 2.3, App. A.3).

Letters as in the paper, with one embedding per *row*: G the candidates, g the target, I the chosen rows, gamma
their weights, r = g - gamma G_I the residual, lambda the regularisation, u the best uniform weight.

How several rows are picked per scan. A scan (r against all candidates) is bound by memory bandwidth, so one
scan proposes a pool of candidates and several picks are made inside it, each exactly as Alg. 1 would if the pool
were all there is. With L the Cholesky factor of K + lambda I for the rows chosen so far,
K = G_I G_I^T, the pool R has W = L^-1 G_I R^T, and

    A = R R^T + lambda I - W^T W        is what is left of the pool's Gram matrix once I is fitted,
    c = p - lambda u q                  are the pool's inner products with the residual,

where p are those for a zero centre and q = W^T L^-1 1. A pick k eliminates row k of A and updates p and q
by the same row, so a pick costs a few vector operations on the pool; a row of A is brought up to date when it is
picked. Picking goes on while the best score in the pool is at least what the best candidate outside had in the scan;
then it is time to look again. One might think that the scores outside fall as well while rows are picked, and go on for
longer: they hardly do, and an error of up to 1.4 times that of one pick per scan is the price. Nor are there ever more
picks than a part of what is chosen, which for least squares has to be the smaller one: its scores change faster. The
columns of W that belong to the picks are the next rows of L.

Least squares (`rule`). A row k lowers the objective by c_k^2 / A_kk, so c_k / sqrt(A_kk) is the score. Inside a pool
A_kk is there. To have it for all candidates takes their products with each chosen row, and of these the rows of W: as
much work as everything else together, and more. Their plain norms are not good enough to propose a pool: the error is
1.1 to 1.4 times that of one pick per scan. They are good enough to say which rows may come into question soon. So
there are two levels (`Near`): a scan of all candidates finds several hundred that score high by their norms, for
these A_kk is known and kept up to date, and pools are proposed out of them until a sixth more rows are chosen, or
none of them scores as high by its norm as those that were left out did. At half the time, the fitted error is 3 to
6 % above that of knowing A_kk for all, and the one at fresh draws is level.

Rows as factors. A last-layer gradient is the outer product of two short vectors, and everything above asks of rows for
nothing but their products with each other and with vectors. So they are never formed (`rows.Outer`): products of rows
cost C + H multiplications per initialisation instead of C * H, and only g, r and the sum of the chosen are vectors.

Where most candidates stay, all are fitted and the least useful dropped (`elimination.py`): less work than picking
nearly all of them one by one, at an error that is 1 to 4 % lower (150 of 200, 750 of 1000).

Since r is computed anew in float64 at each scan and both c and the change of the weights start from it, rounding
errors do not add up, and float32 is enough for embeddings and for L, as long as lambda is not tiny. The final weights
are refined until they solve the equations in float64.

Differs from the paper:
- `relative` scales lambda with the mean squared norm of the candidates.
- `exact=False` picks several rows per scan. `exact=True` is Alg. 1 to the letter.
- A row that depends linearly on chosen ones (lambda = 0) is passed over, where Alg. 1 would divide by zero.
- `nonnegative=True` replaces rows whose weight is negative or as good as zero, where the paper clips them.
- `rule="least-squares"` divides scores by what is left of a row, and drops rows instead of picking them where most
  stay. `rule="inner-product"` is Alg. 1.
- `count` holds the sum of the weights, by one more entry that all rows share.
- Outliers, at most ten rows that hold nine tenths of all squared norms, are set aside with weight one; otherwise they
  would set lambda and the centre for all.
"""

import math
import sys
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from recollect.arrays import as_tensor
from recollect.checks import check_number, check_size
from recollect.dictionary import Dictionary, InMemory, Mapped, factors_of
from recollect.elimination import eliminate
from recollect.numerics import lazy_zeros, power_of_two, sum_rows
from recollect.progress import Bar, progress_bar
from recollect.rows import Form, Outer, Plain

Center: TypeAlias = Literal["uniform", "zero"]
Rule: TypeAlias = Literal["least-squares", "inner-product"]
Nonnegative: TypeAlias = bool | Literal["clip"]

CHOSEN_PER_PICK = {"inner-product": 4, "least-squares": 16}  # one pick per scan for so many chosen so far
PICKS_PER_SCAN = 128  # at most
POOL_PER_PICK = 2
POOL_AT_LEAST = 64  # where there is more than one pick: a few candidates would soon be outdone by those outside
POOL_FOR_ONE = 8  # where scores are quotients, which a scan in float32 cannot always rank
PICKS_PER_LOOK = (8, 128)  # at least and at most, before least squares looks at all candidates again
NEAR_PER_PICK = 6  # rows that are kept near for each pick until then
CHOSEN_PER_LOOK, NEAR_AT_LEAST = 6, 512  # a look once so many chosen have become one more, and how many are near
CHOSEN_PER_LOOK_OF_FACTORS = 4  # products of near ones take a fraction of the time
NEAR_FACTORS = (1024, 2048)  # at least, and at most where there are many candidates, of which one in so many is near:
CANDIDATES_PER_NEAR = 5
MOST = 0.6  # of the candidates stay: the others are dropped, instead of these picked
DROP_FROM = 2500  # candidates at most: a drop costs a pass over a matrix of that size
HOLD = 0.1  # the entry that holds the count, over the root of the mean squared norm

_DEPENDENT = 1e-12  # a row is dependent if less than this part of its squared norm is left
_SINGLE = 1e-4  # lambda over the mean squared norm from which on a float32 factor will do
_SOLVED = 1e-10  # weights are solved for until they change by less than this part: the next change is 1e-5 of that
_STEPS = 20  # at most; two or three are usual
_NOISE = 1e-7  # less than this part of a squared norm cannot be told from nothing by a scan in float32
_PADDING = 16  # entries: a cache line
_USELESS = 1e-6  # a weight that is less than this part of the mean is as good as zero
_HANDFUL = 10  # outliers at most
_ONE_IN = 50  # at most so many of the rows are outliers
_DWARFED = 0.9  # part of the squared norms that outliers hold
_CARRIED = 0.1  # of the target is left without the outliers: they carry it
_BLOCK = 32  # rows are turned into float64 this many at a time, so that they stay in the cache
_FEW = 2**22  # numbers that are turned into float64 all at once: 32 MB
_ROOM = 1024  # rows in a buffer to begin with: what is not used takes no memory
_FACTOR_ROWS = 256  # in a block of the factor


@dataclass(frozen=True, repr=False)
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


def pursue(
    embeddings: Tensor | np.ndarray | Dictionary,
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

    The same call gives the same bits; with another number of threads the rows are the same, while the weights may
    differ in the last bits. A handful of rows beside which all others are small are kept with weight one and set aside,
    so that the others are matched as if they were alone; if the target is little but these rows, a warning says so.

    Args:
        embeddings: one row per candidate.
        size: how many rows to choose at most; None if only `tolerance` decides.
        target: what to approximate; the sum of all rows by default.
        count: how many examples the target sums over, if the weights are to add up to about that.
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
    dictionary = _as_dictionary(embeddings)
    n = len(dictionary)
    limit = n if size is None else check_size(size, n, "candidates")
    regularization = check_number("regularization", regularization)
    count = check_number("count", count) if count is not None and hold_count else None
    _check_options(size, rule, center, tolerance, nonnegative)
    norms = _checked_norms(dictionary)
    total = dictionary.sum() if target is None else _as_target(target, dictionary)

    outliers = _outliers(norms)
    ordinary = _without(n, outliers)
    rest = total
    if len(outliers):  # what they add to the target is theirs to give, with weight one
        rest = _sum(dictionary, ordinary) if target is None else total - sum_rows(dictionary.rows(outliers))
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
        _precision(dictionary, lambda_, square, float(norms.max()) / unit, exact),
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
            fit = RidgeFit(problem, _without(n, apart))
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
        alone = f" ({missing / float(problem.g.norm()):.2g} for them alone)" if aside else ""
        warnings.warn(
            f"the target should be carried by many rows, got {len(outliers)} of {n} that dwarf the others, so that the "
            f"error says little about these{alone}: look for outliers or unscaled features",
            stacklevel=2,
        )
    return Coreset(torch.cat([apart, fit.indices]), weights, missing / norm if norm else 0.0)


def _can_drop(problem: "Problem", n: int, square: float) -> bool:
    """Whether so many of the n rows stay that it is better to drop the others, by the rule that looks at the fit."""
    many = MOST * n <= problem.size and n <= DROP_FROM
    return many and problem.rule == "least-squares" and not problem.exact and problem.regularization >= _SINGLE * square


def _drop_to_size(problem: "Problem", apart: Tensor, nonnegative: bool) -> "RidgeFit":
    """The fit of what is left once the least useful rows have been dropped."""
    candidates = _without(len(problem.dictionary), apart).nonzero()[:, 0]
    rows, goal = problem.rows(candidates), problem.goal()
    b = problem.form.along(rows, goal)
    size, uniform = min(problem.size, len(rows)), problem.center == "uniform"
    K = problem.form.gram(rows)
    left, gamma = eliminate(K, b, size, problem.regularization, uniform=uniform, nonnegative=nonnegative)
    # Should a weight still be negative, what replaces the row is found without looking at what is left of all rows.
    fit = RidgeFit(replace(problem, rule="inner-product"), _without(len(problem.dictionary), apart))
    fit.start(candidates[left].tolist(), rows[left], K[left][:, left], gamma)
    return fit


def _fill(fit: "RidgeFit", enough: float, bar: Bar, *, helpful: bool = False) -> None:
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


def picks_per_scan(chosen: int, rule: Rule, exact: bool) -> int:
    """How many rows are picked at most before the next scan, once so many are chosen."""
    return 1 if exact else max(1, min(chosen // CHOSEN_PER_PICK[rule], PICKS_PER_SCAN))


@dataclass(frozen=True)
class Problem:
    """What is to be matched with what, in units in which rows and target have norms of about one.

    To hold the count, every row has one more entry, `constant`, which is to add up to `constant * count`.
    """

    dictionary: Dictionary
    g: Tensor
    norms: Tensor
    unit: float  # of the rows
    regularization: float
    center: Center
    rule: Rule
    size: int
    dtype: torch.dtype  # of the factor
    exact: bool
    constant: float
    count: float

    def goal(self) -> Tensor:
        """The target with the entry for the count, padded so that rows stay aligned in memory."""
        if not self.constant:
            return self.g
        goal = torch.nn.functional.pad(self.g, (0, _PADDING))
        goal[self.dictionary.dim] = self.constant * self.count
        return goal

    @cached_property
    def form(self) -> Form:
        """In which form rows are computed with."""
        if (kept := factors_of(self.dictionary)) is not None:
            return kept.form._replace(constant=self.constant, padding=_PADDING if self.constant else 0)
        return Plain()

    @property
    def width(self) -> int:
        """Of rows in that form."""
        form = self.form
        return form.width if isinstance(form, Outer) else len(self.goal())

    def rows(self, indices: Tensor) -> Tensor:
        if (kept := factors_of(self.dictionary)) is not None:
            factors = kept.packed(indices).to(self.dtype)
            kept.form.factors(factors)[0].mul_(1 / self.unit)
            return factors
        dim = self.dictionary.dim
        rows = lazy_zeros(
            len(indices), dim + (_PADDING if self.constant else 0), dtype=self.dtype, device=self.g.device
        )
        # In memory a few at a time, so that they stay in the cache; elsewhere each call has its price.
        here = isinstance(self.dictionary, InMemory)
        pieces = (part.split(_BLOCK if here else len(part) or 1) for part in (rows, indices))
        for out, some in zip(*pieces, strict=True):
            torch.mul(self.dictionary.rows(some), 1 / self.unit, out=out[:, :dim])
        if self.constant:
            rows[:, dim] = self.constant
        return rows

    def products(self, vectors: Tensor) -> Tensor:
        """The products of all rows with a vector or with the columns of a matrix."""
        dim = self.dictionary.dim
        # Half of the unit goes to either side: neither the vectors nor the products leave the range of float32.
        half = power_of_two(math.sqrt(self.unit))
        length = power_of_two(float(vectors[:dim].norm()))
        products = self.dictionary.products(vectors[:dim] / (half * length)).double() * (half * length / self.unit)
        return products + self.constant * vectors[dim] if self.constant else products

    def squares(self) -> Tensor:
        """What of each candidate would be left to fit, were nothing chosen: its squared norm and lambda."""
        return self.norms.square() + self.constant**2 + self.regularization

    def scores(self, c: Tensor, left: Tensor, indices: Tensor | None = None) -> Tensor:
        """Inner products over the root of what is left, which rounding may have made too small, of all or of some."""
        norms = self.norms if indices is None else self.norms[indices]
        least = _NOISE * (norms.square() + self.regularization) + sys.float_info.min
        return c / torch.maximum(left, least).sqrt()


class RidgeFit:
    """The regularised least-squares fit of g by the chosen rows, grown a few rows at a time.

    Minimises |gamma G_I - g|^2 + lambda |gamma - u 1|^2, where u minimises |u 1 G_I - g|^2 or is zero. The gradient of
    that, s = G_I r + lambda (u 1 - gamma), is solved for with the Cholesky factor and added to gamma: exact if the
    factor is, and otherwise much closer than before, since r is computed in float64.

    Attributes:
        residual: what is left to match, r = g - gamma G_I, from scratch and in float64, once somebody asks.
        open: which candidates are neither chosen nor passed over.
        rows: the chosen ones, in the problem's form.
        factor: L.
    """

    def __init__(self, problem: Problem, open_: Tensor) -> None:
        self.problem, self.open = problem, open_.clone()
        self._form, self._g, self._dtype = problem.form, problem.goal(), problem.dtype
        self._lambda, self._center = problem.regularization, problem.center
        self._residual, self._stale = self._g, False
        self._indices: list[int] = []
        self._rows = GrowingRows(problem.size, self._g.new_empty(0, problem.width, dtype=self._dtype))
        self._sum = torch.zeros_like(self._g)  # of the chosen rows
        self._gamma = self._g.new_empty(0)
        self.factor = GrowingCholesky(self._dtype, self._g.device)
        by_norm = problem.rule == "least-squares" and not problem.exact
        self._proposals: Near | Scan = Near(problem) if by_norm else Scan(problem)

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def rows(self) -> Tensor:
        return self._rows.all

    @property
    def residual(self) -> Tensor:
        if self._stale:
            s = self._form.along(self.rows, self._residual.to(self._dtype)).double()
            s += self._lambda * (self.uniform - self._gamma)
            self._gamma = self._gamma + self.factor.solve_transposed(self.factor.solve(s[:, None]))[:, 0]
            self._residual, self._stale = self._g - self._form.combined(self._gamma, self.rows), False
        return self._residual

    @property
    def uniform(self) -> float:
        """u, for the rows that are chosen."""
        return self._uniform(self._sum)

    def along_ones(self, W: Tensor) -> Tensor:
        """What a pool and near rows call q, W^T L^-1 1, in float64."""
        return (W.T @ self.factor.solve(W.new_ones(len(W), 1)))[:, 0].double()

    def _uniform(self, total: Tensor) -> float:
        """The best uniform weight u for rows with this sum: <sum, g> / |sum|^2."""
        square = float(total @ total)
        return float(total @ self._g) / square if self._center == "uniform" and square > 0 else 0.0

    def grow(self, picks: int, *, helpful: bool = False) -> bool:
        """Add up to `picks` rows out of one pool, only if some row would help to match; says whether it did.

        Rows found to be dependent are passed over. At least one row is closed: there are picks, or the whole pool is
        passed over.
        """
        pool = self._proposals.pool(self, picks, anew=helpful)
        if helpful and float(pool.c.max()) <= 0:
            return False
        order, passed_over = ([0], []) if len(pool.indices) == 1 else self._picks_in_pool(pool, picks)
        self.open[pool.indices[order + passed_over]] = False
        single = self._dtype == torch.float32  # in float64 lambda may be too small to go on with what has followed
        W = pool.W[:, order] if pool.W is not None and single else None
        self._append(pool.indices[order], pool.rows[order], W)
        return True

    def _picks_in_pool(self, pool: "Pool", picks: int) -> tuple[list[int], list[int]]:
        """Alg. 1 with the pool as its whole dictionary; see the module's introduction.

        Returns the picks, and those that depend on them and on what was chosen before.
        """
        R, W, c, q = pool.rows, pool.W, pool.c, pool.q
        assert W is not None
        gram = self._form.products(R, R)
        A = (gram - W.T @ W).double()
        gram = gram.double()
        A.diagonal().add_(self._lambda)
        least = _DEPENDENT * gram.diagonal()
        b, to_chosen = (self._form.along(R, v.to(R.dtype)).double() for v in (self._g, self._sum))
        sum_b, square = float(self._sum @ self._g), float(self._sum @ self._sum)
        q = q.clone()
        p = c + self._lambda * self.uniform * q
        floor = pool.outside if len(R) < int(self.open.sum()) else -math.inf
        order: list[int] = []
        eliminated = A.new_empty(picks, len(A))  # rows of A's own Cholesky factor
        left = A.diagonal().clone()
        while len(order) < picks:
            score = c / left.clamp(min=sys.float_info.min).sqrt() if self.problem.rule == "least-squares" else c
            score = score.masked_fill(left <= least, -torch.inf)
            k = int(score.argmax())
            if score[k] == -torch.inf or (order and float(score[k]) < floor):
                break  # nothing is left, or something outside the pool may well be better
            before = eliminated[: len(order)]
            pivot = math.sqrt(float(left[k]))
            row = torch.addmv(A[k], before.T, before[:, k], alpha=-1).div_(pivot)
            eliminated[len(order)] = row
            order.append(k)
            left.addcmul_(row, row, value=-1)
            p.add_(row, alpha=-float(p[k]) / pivot)
            q.add_(row, alpha=(1 - float(q[k])) / pivot)
            sum_b += float(b[k])
            square += 2 * float(to_chosen[k]) + float(gram[k, k])
            to_chosen = to_chosen + gram[k]
            u = sum_b / square if self._center == "uniform" and square > 0 else 0.0
            c = p - self._lambda * u * q
            c[order] = -torch.inf
        dependent = (left <= least).nonzero()[:, 0].tolist()
        return order, [k for k in dependent if k not in order]

    def start(self, indices: list[int], rows: Tensor, K: Tensor, gamma: Tensor) -> None:
        """Begin, and end, with these rows, their products with each other, and weights that are nearly right."""
        self.open[torch.tensor(indices, device=self.open.device)] = False
        self._indices, self._gamma = indices, gamma
        self._rows.extend(rows)
        self._sum = self._form.sum(rows)
        A = K.clone()
        A.diagonal().add_(self._lambda)
        self.factor.extend(rows.new_empty(0, len(rows)), torch.linalg.cholesky(A))

    def _append(self, indices: Tensor, rows: Tensor, W: Tensor | None = None) -> None:
        """Extend the fit by a block of rows (App. A.3), for which W may be known."""
        W = self.factor.solve(self._form.products(self.rows, rows)) if W is None else W
        C = self._form.products(rows, rows).double()
        A = C - (W.T @ W).double()
        A.diagonal().add_(self._lambda)
        L, independent = _cholesky_of_independent(A, _DEPENDENT * C.diagonal())
        if not len(independent):
            return
        if len(independent) < len(indices):
            indices, rows, W = indices[independent], rows[independent], W[:, independent]
        self._proposals.follow(indices, rows, W, L)
        self._rows.extend(rows)
        self._sum += self._form.sum(rows)
        self.factor.extend(W, L)
        self._indices += indices.tolist()
        self._gamma = torch.cat([self._gamma, self._gamma.new_zeros(len(indices))])
        self._stale = True

    @property
    def indices(self) -> Tensor:
        """The chosen rows in the order they were picked."""
        return torch.tensor(self._indices, dtype=torch.long, device=self._g.device)

    def residual_of(self, gamma: Tensor) -> Tensor:
        """What these weights leave of the target, without the entry for the count."""
        return (self._g - self._form.combined(gamma, self.rows))[: self.problem.dictionary.dim]

    def without(self, dropped: Tensor) -> "RidgeFit":
        """The fit of the other rows alone; those dropped stay closed."""
        fit = RidgeFit(self.problem, self.open)
        for places in (~dropped).nonzero()[:, 0].split(_FACTOR_ROWS):
            fit._append(self.indices[places], self.rows[places])
        return fit

    def solve(self) -> Tensor:
        """The weights to working accuracy."""
        gamma, u = self._gamma, self.uniform
        last = math.inf
        chosen = self.rows.double() if self.rows.numel() <= _FEW else self.rows  # once, if that is little
        for _ in range(_STEPS):
            r = self._g - self._form.combined(gamma, chosen)
            s = self._form.along(chosen, r) + self._lambda * (u - gamma)
            step = self.factor.solve_transposed(self.factor.solve(s[:, None]))[:, 0]
            length = float(step.norm())
            if not length < last / 2:
                break  # as near as rounding allows
            gamma, last = gamma + step, length
            if length <= _SOLVED * float(gamma.norm()):
                break
        return gamma


@dataclass(frozen=True)
class Pool:
    """Candidates of which some are picked.

    Attributes:
        indices: which they are, ascending.
        rows: they themselves.
        W: L^-1 G_I rows^T; None if there is one of them, for which nobody asks.
        c: their inner products with the residual.
        q: W^T L^-1 1.
        outside: the best score that those outside have, at most.
    """

    indices: Tensor
    rows: Tensor
    W: Tensor | None
    c: Tensor
    q: Tensor
    outside: float


class Scan:
    """Proposes a pool out of all candidates, each time anew: by inner products, or by least squares to the letter."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._left = problem.squares() if problem.rule == "least-squares" else None
        self._directions: GrowingRows | None = None  # V = L^-1 G_I: a row's products with them are its entries of W
        self._seen = 0  # directions that `left` knows of

    def pool(self, fit: RidgeFit, picks: int, *, anew: bool) -> Pool:
        """The candidates with the best scores."""
        problem = self._problem
        if self._left is None:
            scores = c = problem.products(fit.residual)
        else:  # what is left of the candidates, and the scan, in one go
            V = fit.residual.new_empty(0, len(fit.residual))
            if self._directions is not None:
                V = self._directions.all[self._seen :].double()
            products = problem.products(torch.cat([V, fit.residual[None]]).T)
            self._left -= products[:, :-1].square().sum(1)
            self._seen += len(V)
            c = products[:, -1]
            scores = problem.scores(c, self._left)
        one = picks == 1 and self._left is None
        scores = scores.masked_fill(~fit.open, -torch.inf)
        some = min(1 if one else pool_size(picks), int(fit.open.sum()))
        indices = scores.topk(some).indices.sort().values
        rows = problem.rows(indices)
        exact_c = problem.form.along(rows, fit.residual) if picks == 1 else c[indices]  # the scan only proposes
        W = None if one else fit.factor.solve(problem.form.products(fit.rows, rows))
        q = exact_c if W is None else fit.along_ones(W)
        return Pool(indices, rows, W, exact_c, q, float(scores[indices].min()))

    def follow(self, indices: Tensor, rows: Tensor, W: Tensor, L: Tensor) -> None:
        """The fit grows by these rows, and its factor by [W^T, L]."""
        del indices
        if self._left is None:
            return
        formed = self._problem.form.formed(rows)
        if self._directions is None:
            self._directions = GrowingRows(self._problem.size, formed[:0])
        V = torch.linalg.solve_triangular(L, (formed - W.T @ self._directions.all).double(), upper=False)
        self._directions.extend(V)


class Near:
    """Proposes a pool by least squares out of rows that came near when all candidates were last looked at.

    For them alone is it known what is left once the chosen are fitted; all others are judged by their norms. Their
    products with the residual, c = p - lambda u q, follow the fit as in a pool, without a look at the residual.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, self._squares = problem, problem.squares()
        self._until = 0  # so many are chosen, then it is time to look again
        self._W: GrowingRows | None = None  # of the near ones, which are known from the first look on
        self._left = self._p = self._q = self._squares[:0]

    def pool(self, fit: RidgeFit, picks: int, *, anew: bool) -> Pool:
        """The near candidates with the best scores."""
        wanted = pool_size(picks)
        known = not (anew or len(fit) >= self._until or int(fit.open[self._indices].sum()) < wanted)
        c = self._c(fit) if known else None
        if c is None or self._outdone(fit, c):
            self._look(fit)
            c = self._c(fit)
        is_open = fit.open[self._indices]
        scores = self._problem.scores(c, self._left, self._indices).masked_fill_(~is_open, -torch.inf)
        best = scores.topk(min(wanted, int(is_open.sum()))).indices.sort().values
        rows = self._rows[best]
        assert self._W is not None
        exact_c = self._problem.form.along(rows, fit.residual) if picks == 1 else c[best]
        W, q = self._W.all[:, best], self._q[best]
        return Pool(self._indices[best], rows, W, exact_c, q, float(scores[best].min()))

    def follow(self, indices: Tensor, rows: Tensor, W: Tensor, L: Tensor) -> None:
        """The fit grows by these rows, and its factor by [W^T, L]."""
        if self._W is None:
            return
        products = self._problem.form.products(rows, self._rows).addmm_(W.T, self._W.all, alpha=-1)
        new = torch.linalg.solve_triangular(L, products.double(), upper=False)
        self._W.extend(new)
        self._left = self._left - new.square().sum(0)
        mine = torch.searchsorted(self._indices, indices)
        both = torch.stack([self._p, self._q - 1], 1)
        both -= new.T @ torch.linalg.solve_triangular(L, both[mine], upper=False)
        self._p, self._q = both[:, 0], both[:, 1] + 1

    def _look(self, fit: RidgeFit) -> None:
        """Find out which of all candidates are near now."""
        picks, some = look(len(fit), self._problem.form, len(self._squares))
        self._rows, self._W = self._squares[:0], None  # whose room others will take
        scores = self._problem.scores(self._problem.products(fit.residual), self._squares)
        scores.masked_fill_(~fit.open, -torch.inf)
        n_open = int(fit.open.sum())
        self._until = len(fit) + picks
        self._indices = scores.topk(min(some, n_open)).indices.sort().values
        self._outside = float(scores[self._indices].min()) if some < n_open else -math.inf
        self._rows = self._problem.rows(self._indices)
        W = fit.factor.solve(self._problem.form.products(fit.rows, self._rows))
        self._left = self._squares[self._indices] - W.double().square().sum(0)
        self._W = GrowingRows(self._problem.size, W)
        self._q = fit.along_ones(W)
        c = self._problem.form.along(self._rows, fit.residual.to(self._rows.dtype)).double()
        self._p = c + self._problem.regularization * fit.uniform * self._q

    def _c(self, fit: RidgeFit) -> Tensor:
        """The products of the near rows with the residual."""
        return self._p - self._problem.regularization * fit.uniform * self._q

    def _outdone(self, fit: RidgeFit, c: Tensor) -> bool:
        """Whether all of them score less, by their norms, than those outside did."""
        scores = self._problem.scores(c, self._squares[self._indices], self._indices)
        return float(scores.masked_fill_(~fit.open[self._indices], -torch.inf).max()) < self._outside


def look(chosen: int, form: Form, candidates: int) -> tuple[int, int]:
    """How many rows least squares picks at most before it looks at all candidates again, and how many it keeps near."""
    per_look, at_least = CHOSEN_PER_LOOK, NEAR_AT_LEAST
    if isinstance(form, Outer):
        per_look = CHOSEN_PER_LOOK_OF_FACTORS
        at_least = _between(*NEAR_FACTORS, candidates // CANDIDATES_PER_NEAR)
    picks = _between(*PICKS_PER_LOOK, chosen // per_look)
    return picks, max(NEAR_PER_PICK * picks, at_least)


def _between(least: int, most: int, value: int) -> int:
    return min(max(value, least), most)


def pool_size(picks: int) -> int:
    """Out of how many of the best so many are picked."""
    return POOL_FOR_ONE if picks == 1 else max(POOL_AT_LEAST, POOL_PER_PICK * picks)


class GrowingRows:
    """Rows below one another, in a buffer that doubles, up to what can be needed, so that growing costs little."""

    def __init__(self, limit: int, empty: Tensor) -> None:
        self._limit, self._buffer, self.all = limit, empty, empty

    def extend(self, rows: Tensor) -> None:
        """Append these; they are rounded to what the others are."""
        n, total = len(self.all), len(self.all) + len(rows)
        if total > len(self._buffer):
            capacity = max(total, min(self._limit, max(2 * len(self._buffer), _ROOM)))
            width, dtype, device = self.all.shape[1], self.all.dtype, self.all.device
            self._buffer = lazy_zeros(capacity, width, dtype=dtype, device=device)
            self._buffer[:n] = self.all
        self._buffer[n:total] = rows
        self.all = self._buffer[:total]


class GrowingCholesky:
    """A lower triangular factor L that grows by blocks of rows, kept as blocks with their diagonal part inverted.

    Solving is matrix products only, nothing is copied as it grows, and the empty half takes no memory.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._blocks: list[tuple[Tensor, Tensor]] = []  # to the left of the diagonal; inverse of what is on it

    def extend(self, W: Tensor, diagonal: Tensor) -> None:
        """Append the rows [W^T, diagonal]."""
        left, m = W.T, len(diagonal)
        inverse = torch.linalg.solve_triangular(
            diagonal, torch.eye(m, dtype=diagonal.dtype, device=diagonal.device), upper=False
        )
        if self._blocks and len(self._blocks[-1][1]) + m <= _FACTOR_ROWS:  # few large blocks instead of many small
            above, upper = self._blocks.pop()
            k = len(upper)
            corner = -inverse @ left[:, -k:].double() @ upper.double()
            inverse = torch.cat(
                [
                    torch.cat([upper.double(), inverse.new_zeros(k, m)], 1),
                    torch.cat([corner, inverse], 1),
                ]
            )
            left = torch.cat([above, left[:, :-k]])
        self._blocks.append((left.contiguous(), inverse.to(self._dtype)))

    def solve(self, V: Tensor) -> Tensor:
        """L^-1 V for the columns of V."""
        out = torch.empty(V.shape, dtype=self._dtype, device=self._device)
        for left, inverse in self._blocks:
            start, stop = left.shape[1], left.shape[1] + len(left)
            out[start:stop] = inverse @ (V[start:stop].to(self._dtype) - left @ out[:start])
        return out.to(V.dtype)

    def solve_transposed(self, V: Tensor) -> Tensor:
        """L^-T V for the columns of V."""
        out = V.to(self._dtype, copy=True)
        for left, inverse in reversed(self._blocks):
            start, stop = left.shape[1], left.shape[1] + len(left)
            out[start:stop] = inverse.T @ out[start:stop]
            out[:start] -= left.T @ out[start:stop]
        return out.to(V.dtype)


def _cholesky_of_independent(A: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """Cholesky factor of the largest leading set of rows of which none depends on those before it."""
    L, failed = torch.linalg.cholesky_ex(A)
    if not failed and bool((L.diagonal() ** 2 > least).all()):
        return L, torch.arange(len(A), device=A.device)
    kept: list[int] = []
    for k in range(len(A)):  # seldom: only without regularisation
        L, failed = torch.linalg.cholesky_ex(A[[*kept, k]][:, [*kept, k]])
        if not failed and float(L[-1, -1]) ** 2 > float(least[k]):
            kept.append(k)
    chosen = torch.tensor(kept, dtype=torch.long, device=A.device)
    return torch.linalg.cholesky(A[chosen][:, chosen]), chosen


def _precision(dictionary: Dictionary, lambda_: float, square: float, longest: float, exact: bool) -> torch.dtype:
    """float32 for the factor where lambda is well above what it cannot tell apart, otherwise float64."""
    single = dictionary.dtype == torch.float32 and not exact and _SINGLE * square <= lambda_ <= square / _SINGLE**3
    return torch.float32 if single and longest < 1e6 else torch.float64


def _outliers(norms: Tensor) -> Tensor:
    """The handful of rows, if any, beside which all others together are small: lambda and weights are not theirs."""
    most = min(_HANDFUL, len(norms) // _ONE_IN)
    largest = norms.topk(most)
    squares = (norms / norms.max()).square()
    enough = squares[largest.indices].cumsum(0) >= _DWARFED * float(squares.sum())
    found = largest.indices[: int(enough.int().argmax()) + 1] if bool(enough.any()) else largest.indices[:0]
    return found if int((norms > 0).sum()) > len(found) else found[:0]


def _without(n: int, some: Tensor) -> Tensor:
    """True for each of n candidates but some."""
    return torch.ones(n, dtype=torch.bool, device=some.device).index_fill(0, some, False)


def _sum(dictionary: Dictionary, which: Tensor) -> Tensor:
    """The sum of some rows, without what others beside them would round away."""
    total = torch.zeros(dictionary.dim, dtype=torch.float64, device=which.device)
    for indices in which.nonzero()[:, 0].split(1024):
        total += sum_rows(dictionary.rows(indices))
    return total


def _as_dictionary(embeddings: Tensor | np.ndarray | Dictionary) -> Dictionary:
    if isinstance(embeddings, np.memmap):
        return Mapped(embeddings)
    if isinstance(embeddings, np.ndarray) and embeddings.dtype.kind in "fiub":
        embeddings = as_tensor(embeddings, "embeddings")
    if not isinstance(embeddings, Tensor):
        if not hasattr(embeddings, "products"):
            raise ValueError(f"embeddings must be a matrix of numbers or a dictionary, got {type(embeddings).__name__}")
        return embeddings  # type: ignore[return-value]
    if embeddings.ndim != 2 or not len(embeddings) or not embeddings.shape[1]:
        raise ValueError(f"embeddings must be a matrix with one row per candidate, got shape {tuple(embeddings.shape)}")
    if embeddings.is_complex() or embeddings.is_meta or embeddings.layout != torch.strided:
        kind = f"{embeddings.dtype} on {embeddings.device}, {embeddings.layout}"
        raise ValueError(f"embeddings must be a dense matrix of real numbers, got {kind}")
    if embeddings.dtype not in (torch.float32, torch.float64):
        embeddings = embeddings.float()
    return InMemory(embeddings.detach())


def _checked_norms(dictionary: Dictionary) -> Tensor:
    norms = dictionary.norms()
    if not bool(torch.isfinite(norms).all()):
        raise ValueError("embeddings must be finite, with norms below 1e150, got NaN, infinity or more")
    if not bool(norms.any()):
        raise ValueError("embeddings must not all be zero: there is nothing to match")
    return norms


def _as_target(target: Tensor, dictionary: Dictionary) -> Tensor:
    try:
        g = torch.as_tensor(target).detach()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"target must be a row of numbers, got {type(target).__name__}") from None
    if g.is_complex() or g.is_meta or g.layout != torch.strided:
        raise ValueError(f"target must be a dense row of real numbers, got {g.dtype} on {g.device}, {g.layout}")
    g = g.double()
    if g.shape != (dictionary.dim,):
        raise ValueError(f"target must have the {dictionary.dim} entries of a row, got shape {tuple(g.shape)}")
    if not math.isfinite(float(g.norm())):
        raise ValueError("target must be finite, with a norm below 1e150, got NaN, infinity or more")
    return g


def _check_options(size: object, rule: object, center: object, tolerance: object, nonnegative: object) -> None:
    if size is None and tolerance is None:
        raise ValueError("size or tolerance must be given, got neither")
    if not isinstance(rule, str) or rule not in get_args(Rule):
        raise ValueError(f"rule must be 'least-squares' or 'inner-product', got {rule!r}")
    if not isinstance(center, str) or center not in ("uniform", "zero"):
        raise ValueError(f"center must be 'uniform' or 'zero', got {center!r}")
    if tolerance is not None:
        check_number("tolerance", tolerance)
    if not isinstance(nonnegative, bool | str) or nonnegative not in (True, False, "clip"):
        raise ValueError(f"nonnegative must be True, False or 'clip', got {nonnegative!r}")
