"""Which candidates come into question for the next picks: all of them by one scan, or those near in the last look."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from recollect.pursuit.factor import GrowingCholesky, GrowingRows
from recollect.pursuit.problem import Problem, Rule
from recollect.rows import Form, Outer

CHOSEN_PER_PICK = {"inner-product": 4, "least-squares": 16}  # a scan allows one pick for each so many chosen so far
PICKS_PER_SCAN = 128  # at most
POOL_PER_PICK = 2
POOL_AT_LEAST = 64  # where there is more than one pick: a few candidates would soon be outdone by those outside
POOL_FOR_ONE = 8  # where scores are quotients, which a scan in float32 cannot always rank
PICKS_PER_LOOK = (8, 128)  # at least and at most, before least squares looks at all candidates again
NEAR_PER_PICK = 6  # rows that are kept near for each pick until then
CHOSEN_PER_LOOK, NEAR_AT_LEAST = 6, 512  # look again once a sixth more are chosen; so many rows are near at least
CHOSEN_PER_LOOK_OF_FACTORS = 4  # the same for factors, whose products take a fraction of the time
CANDIDATES_PER_NEAR = 5  # of factors, one candidate in five is near,
NEAR_FACTORS = (1024, 2048)  # but no fewer and no more than these


def picks_per_scan(chosen: int, rule: Rule, exact: bool) -> int:
    """How many rows are picked at most before the next scan, once so many are chosen."""
    return 1 if exact else max(1, min(chosen // CHOSEN_PER_PICK[rule], PICKS_PER_SCAN))


class Fit(Protocol):
    """What proposals look at of a fit that grows by them."""

    open: Tensor
    factor: GrowingCholesky

    def __len__(self) -> int: ...

    @property
    def rows(self) -> Tensor: ...

    @property
    def residual(self) -> Tensor: ...

    @property
    def uniform(self) -> float: ...

    def along_ones(self, W: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Pool:
    """Candidates of which some are picked.

    Attributes:
        indices: which they are, ascending.
        rows: they themselves.
        W: L^-1 G_I rows^T; None for a pool of one, which is picked without it.
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

    def pool(self, fit: Fit, picks: int, *, anew: bool) -> Pool:
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

    def pool(self, fit: Fit, picks: int, *, anew: bool) -> Pool:
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

    def _look(self, fit: Fit) -> None:
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

    def _c(self, fit: Fit) -> Tensor:
        """The products of the near rows with the residual."""
        return self._p - self._problem.regularization * fit.uniform * self._q

    def _outdone(self, fit: Fit, c: Tensor) -> bool:
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
    """How many of the best candidates are in a pool from which this many are picked at most."""
    return POOL_FOR_ONE if picks == 1 else max(POOL_AT_LEAST, POOL_PER_PICK * picks)
