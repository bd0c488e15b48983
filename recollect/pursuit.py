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
picked. Picking goes on while the best score in the pool is at least half of what the best candidate outside had in the
scan, since that one's will have fallen too; then it is time to look again. The columns of W that belong to the picks
are the next rows of L.

Since r is computed anew in float64 after each round and both c and the change of the weights start from it, rounding
errors do not add up, and float32 is enough for embeddings and for L, as long as lambda is not tiny. The final weights
are refined until they solve the equations in float64.

Differs from the paper:
- `relative` scales lambda with the mean squared norm of the candidates.
- `exact=False` picks several rows per scan. `exact=True` is Alg. 1 to the letter.
- A row that depends linearly on chosen ones (lambda = 0) is passed over, where Alg. 1 would divide by zero.
- `nonnegative=True` refits without negatively weighted rows, where the paper clips them.
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict

import numpy as np
import torch
from torch import Tensor

from recollect.dictionary import Dictionary, InMemory
from recollect.numerics import lazy_zeros
from recollect.progress import progress_bar

Center: TypeAlias = Literal["uniform", "zero"]
Nonnegative: TypeAlias = bool | Literal["clip"]

CHOSEN_PER_PICK = 4  # one pick per scan for so many chosen so far
PICKS_PER_SCAN = 128  # at most
POOL_PER_PICK = 2
POOL_AT_LEAST = 64  # where there is more than one pick: a few candidates would soon be outdone by those outside
OUTDONE = 0.5  # no pick with less than this part of the best score outside the pool

_DEPENDENT = 1e-12  # a row is dependent if less than this part of its squared norm is left
_SINGLE = 1e-4  # lambda over the mean squared norm from which on a float32 factor will do
_SOLVED = 1e-12  # weights are solved for until they change by less than this part
_STEPS = 20  # at most; two or three are usual
_BLOCK = 32  # rows are turned into float64 this many at a time, so that they stay in the cache
_FACTOR_ROWS = 256  # in a block of the factor


class PursuitOptions(TypedDict, total=False):
    """Keyword arguments of `pursue`, for those who pass them on."""

    regularization: float
    relative: bool
    center: Center
    tolerance: float | None
    nonnegative: Nonnegative
    exact: bool


@dataclass(frozen=True)
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


def pursue(
    embeddings: Tensor | np.ndarray | Dictionary,
    size: int | None,
    *,
    target: Tensor | None = None,
    regularization: float = 0.001,
    relative: bool = True,
    center: Center = "uniform",
    tolerance: float | None = None,
    nonnegative: Nonnegative = True,
    exact: bool = False,
    progress: bool = False,
) -> Coreset:
    """Choose rows whose weighted sum approximates the target (Alg. 1).

    Args:
        embeddings: one row per candidate.
        size: how many rows to choose at most; None if only `tolerance` decides.
        target: what to approximate; the sum of all rows by default.
        regularization: lambda, the pull of the weights towards the centre.
        relative: lambda is a multiple of the candidates' mean squared norm, so that scaling them
            changes nothing; otherwise it is absolute, as in the paper.
        center: "uniform" pulls towards the best equal weight for all (Sec. 2.3), "zero" towards zero.
        tolerance: stop as soon as the relative residual is this small.
        nonnegative: True drops negative weights and refits until none is left, so that fewer than `size` rows may
            remain; "clip" sets them to zero, as in the paper; False leaves them.
        exact: one pick per scan of all candidates instead of several.
        progress: show a progress bar in a terminal.

    Example:
        >>> G = torch.eye(3)
        >>> pursue(G, 2, target=torch.tensor([0.0, 2.0, 5.0]), regularization=0.0).indices
        tensor([2, 1])
    """
    dictionary = _as_dictionary(embeddings)
    n = len(dictionary)
    _check_options(n, size, regularization, center, tolerance, nonnegative)
    g = dictionary.sum() if target is None else _as_target(target, dictionary)
    mean_square = float(dictionary.norms().square().mean())
    if mean_square == 0:
        raise ValueError("embeddings must not all be zero: there is nothing to match")
    limit = n if size is None else size
    lambda_ = regularization * (mean_square if relative else 1.0)
    fit = RidgeFit(dictionary, g, lambda_, center, limit, _precision(dictionary, lambda_, mean_square, exact))
    norm = float(g.norm())

    with progress_bar("choosing examples", limit, show=progress) as bar:
        while len(fit) < limit:
            if tolerance is not None and float(fit.residual.norm()) <= tolerance * norm:
                break
            room = min(limit - len(fit), n - len(fit.taken))
            if room == 0:
                break  # only dependent rows are left
            picks = 1 if exact else max(1, min(len(fit) // CHOSEN_PER_PICK, PICKS_PER_SCAN))
            before = len(fit)
            fit.grow(min(picks, room))
            bar.advance(len(fit) - before)
    return fit.coreset(nonnegative, norm)


class RidgeFit:
    """The regularised least-squares fit of g by the chosen rows, grown a few rows at a time.

    Minimises |gamma G_I - g|^2 + lambda |gamma - u 1|^2, where u minimises |u 1 G_I - g|^2 or is zero. The gradient of
    that, s = G_I r + lambda (u 1 - gamma), is solved for with the Cholesky factor and added to gamma: exact if the
    factor is, and otherwise much closer than before, since r is computed in float64.

    Attributes:
        residual: what is left to match, r = g - gamma G_I, from scratch and in float64.
        taken: chosen or passed over: not to be proposed again.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        g: Tensor,
        regularization: float,
        center: Center,
        size: int,
        dtype: torch.dtype,
    ) -> None:
        self._dictionary, self._g = dictionary, g
        self._lambda, self._center = regularization, center
        self._limit, self._dtype = size, dtype
        self.residual = g
        self.taken: list[int] = []
        self._indices: list[int] = []
        self._rows = torch.empty(0, dictionary.dim, dtype=dtype, device=g.device)  # chosen ones, and room for more
        self._sum = torch.zeros_like(g)  # of the chosen rows
        self._gamma = g.new_empty(0)
        self._factor = GrowingCholesky(dtype, g.device)

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def _chosen(self) -> Tensor:
        return self._rows[: len(self)]

    def _make_room(self, capacity: int) -> None:
        """The buffer doubles, up to what can be needed, so that growing costs little."""
        if capacity > len(self._rows):
            capacity = max(capacity, min(self._limit, max(2 * len(self._rows), 64)))
            larger = lazy_zeros(capacity, self._dictionary.dim, dtype=self._dtype, device=self._g.device)
            larger[: len(self)] = self._chosen
            self._rows = larger

    def _uniform(self, total: Tensor) -> float:
        """The best uniform weight u for rows with this sum: <sum, g> / |sum|^2."""
        square = float(total @ total)
        return float(total @ self._g) / square if self._center == "uniform" and square > 0 else 0.0

    def grow(self, picks: int) -> None:
        """Add up to `picks` rows out of one scan; rows found to be dependent are passed over."""
        n_candidates = len(self._dictionary) - len(self.taken)
        taken = torch.tensor(self.taken, dtype=torch.long, device=self._g.device)
        wanted = POOL_PER_PICK * picks if picks == 1 else max(POOL_AT_LEAST, POOL_PER_PICK * picks)
        pool, scores = self._dictionary.best(self.residual, min(wanted, n_candidates), taken)
        R = self._dictionary.rows(pool).to(self._dtype)
        if picks == 1:
            best = int((R.double() @ self.residual).argmax())  # in float64: the scan only proposes
            pool, R = pool[[best]], R[[best]]
        W = self._factor.solve(self._chosen @ R.T)
        order = [0] if picks == 1 else self._picks_in_pool(R, W, scores.double(), picks)
        chosen = pool[order].tolist()
        self.taken += chosen
        self._append(chosen, R[order], W[:, order])

    def _picks_in_pool(self, R: Tensor, W: Tensor, c: Tensor, picks: int) -> list[int]:
        """Alg. 1 with the pool as its whole dictionary; see the module's introduction."""
        gram = R @ R.T
        A = (gram - W.T @ W).double()
        gram = gram.double()
        A.diagonal().add_(self._lambda)
        least = _DEPENDENT * gram.diagonal()
        b, to_chosen = (R @ torch.stack([self._g, self._sum], 1).to(R.dtype)).double().unbind(1)
        sum_b, square = float(self._sum @ self._g), float(self._sum @ self._sum)
        q = (W.T @ self._factor.solve(W.new_ones(len(W), 1)))[:, 0].double()
        p = c + self._lambda * self._uniform(self._sum) * q
        floor = OUTDONE * float(c.min()) if len(R) < len(self._dictionary) - len(self.taken) else -math.inf
        order: list[int] = []
        eliminated = A.new_empty(picks, len(A))  # rows of A's own Cholesky factor
        left = A.diagonal().clone()
        while len(order) < picks:
            c = c.masked_fill(left <= least, -torch.inf)
            k = int(c.argmax())
            if c[k] == -torch.inf or (order and float(c[k]) < floor):
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
        return order

    def _append(self, indices: list[int], rows: Tensor, W: Tensor) -> None:
        """Extend the fit by a block of rows, of which W = L^-1 G_I rows^T is known (App. A.3)."""
        C = (rows @ rows.T).double()
        A = C - (W.T @ W).double()
        A.diagonal().add_(self._lambda)
        L, independent = _cholesky_of_independent(A, _DEPENDENT * C.diagonal())
        if not len(independent):
            return
        if len(independent) < len(indices):
            indices = [indices[int(i)] for i in independent]
            rows, W = rows[independent], W[:, independent]
        n = len(self)
        self._make_room(n + len(indices))
        self._rows[n : n + len(indices)] = rows
        self._sum += rows.double().sum(0)
        self._factor.extend(W, L)
        self._indices += indices
        self._gamma = torch.cat([self._gamma, self._gamma.new_zeros(len(indices))])
        s = (self._chosen @ self.residual.to(self._dtype)).double()
        s += self._lambda * (self._uniform(self._sum) - self._gamma)
        self._gamma += self._factor.solve_transposed(self._factor.solve(s[:, None]))[:, 0]
        self.residual = self._residual(self._gamma)

    def _residual(self, gamma: Tensor) -> Tensor:
        r = self._g.clone()
        for part, rows in zip(gamma.split(_BLOCK), self._chosen.split(_BLOCK), strict=True):
            r -= part @ rows.double()
        return r

    def coreset(self, nonnegative: Nonnegative, norm: float) -> Coreset:
        """The chosen rows with their weights."""
        dropped = torch.zeros(len(self), dtype=torch.bool, device=self._g.device)
        weights = self._solve(dropped)
        if nonnegative is True:
            while bool((weights < 0).any()):
                dropped |= weights < 0
                weights = self._solve(dropped)
        elif nonnegative == "clip":
            weights = weights.clamp(min=0)
        error = float(self._residual(weights).norm()) / norm if norm else 0.0
        indices = torch.tensor(self._indices, dtype=torch.long, device=self._g.device)
        return Coreset(indices[~dropped], weights[~dropped], error)

    def _solve(self, dropped: Tensor) -> Tensor:
        """The weights to working accuracy, some of them held at zero.

        With w = L^-1 s, a step L^-T w leaves the weights of rows d alone if w is orthogonal to L^-1 e_d.
        """
        L, gamma = self._factor, self._gamma.masked_fill(dropped, 0.0)
        fixed = dropped.nonzero()[:, 0]
        Y = torch.zeros(len(self), len(fixed), dtype=self._dtype, device=self._g.device)
        Y[fixed, torch.arange(len(fixed), device=Y.device)] = 1
        Y = torch.linalg.qr(L.solve(Y)).Q.double()
        u = self._uniform(self._sum - self._chosen[fixed].double().sum(0))
        last = math.inf
        for _ in range(_STEPS):
            r = self._residual(gamma)
            s = torch.cat([rows.double() @ r for rows in self._chosen.split(_BLOCK)]) + self._lambda * (u - gamma)
            w = L.solve(s[:, None])
            step = L.solve_transposed(w - Y @ (Y.T @ w))[:, 0].masked_fill(dropped, 0.0)
            length = float(step.norm())
            if not length < last / 2:
                break  # as near as rounding allows
            gamma, last = gamma + step, length
            if length <= _SOLVED * float(gamma.norm()):
                break
        return gamma


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


def _precision(dictionary: Dictionary, lambda_: float, mean_square: float, exact: bool) -> torch.dtype:
    """float32 for the factor where lambda is well above what it cannot tell apart, otherwise float64."""
    single = dictionary.dtype == torch.float32 and not exact and lambda_ >= _SINGLE * mean_square
    return torch.float32 if single else torch.float64


def _as_dictionary(embeddings: Tensor | np.ndarray | Dictionary) -> Dictionary:
    if isinstance(embeddings, np.ndarray):
        embeddings = torch.from_numpy(embeddings)
    if not isinstance(embeddings, Tensor):
        return embeddings
    if embeddings.ndim != 2 or not len(embeddings) or not embeddings.shape[1]:
        raise ValueError(f"embeddings must be a matrix with one row per candidate, got shape {tuple(embeddings.shape)}")
    if embeddings.dtype not in (torch.float32, torch.float64):
        embeddings = embeddings.float()
    if not torch.isfinite(embeddings.sum()) and not torch.isfinite(embeddings).all():
        raise ValueError("embeddings must be finite, got NaN or infinity")
    return InMemory(embeddings.detach())


def _as_target(target: Tensor, dictionary: Dictionary) -> Tensor:
    g = torch.as_tensor(target).detach().double()
    if g.shape != (dictionary.dim,):
        raise ValueError(f"target must have the {dictionary.dim} entries of a row, got shape {tuple(g.shape)}")
    if not torch.isfinite(g).all():
        raise ValueError("target must be finite, got NaN or infinity")
    return g


def _check_options(
    n: int,
    size: int | None,
    regularization: float,
    center: str,
    tolerance: float | None,
    nonnegative: bool | str,
) -> None:
    if size is None and tolerance is None:
        raise ValueError("size or tolerance must be given, got neither")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= n):
        raise ValueError(
            f"size must be between 1 and the {n} candidates, got {size!r}: pass a smaller size or more data"
        )
    if not (math.isfinite(regularization) and regularization >= 0):
        raise ValueError(f"regularization must be a number of at least 0, got {regularization!r}")
    if center not in ("uniform", "zero"):
        raise ValueError(f"center must be 'uniform' or 'zero', got {center!r}")
    if tolerance is not None and not (math.isfinite(tolerance) and tolerance >= 0):
        raise ValueError(f"tolerance must be a number of at least 0, got {tolerance!r}")
    if nonnegative not in (True, False, "clip"):
        raise ValueError(f"nonnegative must be True, False or 'clip', got {nonnegative!r}")
