"""The fit of the target by the chosen rows, which grows by a few picks at a time (Eq. (8), App. A.3)."""

import math
import sys

import torch
from torch import Tensor

from recollect.pursuit.factor import FACTOR_ROWS, GrowingCholesky, GrowingRows, cholesky_of_independent
from recollect.pursuit.problem import Problem
from recollect.pursuit.proposals import Near, Pool, Scan

_DEPENDENT = 1e-12  # a row is dependent if less than this part of its squared norm is left
_SOLVED = 1e-10  # weights are solved for until they change by less than this part: the next change is 1e-5 of that
_STEPS = 20  # at most; two or three are usual
_FEW = 2**22  # numbers that are turned into float64 all at once: 32 MB


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

    def _picks_in_pool(self, pool: Pool, picks: int) -> tuple[list[int], list[int]]:
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
        L, independent = cholesky_of_independent(A, _DEPENDENT * C.diagonal())
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
        for places in (~dropped).nonzero()[:, 0].split(FACTOR_ROWS):
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
