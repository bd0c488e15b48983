"""Embeddings to indices and weights: regularised orthogonal matching pursuit (Alg. 1, Sec. 2.3, App. A.3).

Letters as in the paper, with one embedding per *row*: G the candidates, g the target, I the chosen rows, gamma
their weights, r = g - gamma G_I the residual, lambda the regularisation, u the best uniform weight.

How several rows are picked per scan. A scan (r against all candidates) is bound by memory bandwidth, so one
scan proposes a pool of candidates and several picks are made inside it, each exactly as Alg. 1 would if the pool
were all there is. With L the Cholesky factor of K + lambda I for the rows chosen so far,
K = G_I G_I^T, the pool V = G_I R^T becomes W = L^-1 V, and

    A = R R^T + lambda I - W^T W        is what is left of the pool's Gram matrix once I is fitted,
    c = p - lambda u q                  are the pool's inner products with the residual,

where p are those for a zero centre and q = W^T L^-1 1. A pick k eliminates row k of A and updates p and q
by the same row, so a pick costs a few vector operations on the pool. Picking goes on while the best score in the pool
is at least what the best candidate outside had in the scan; then it is time to look again. Since r is computed anew in
float64 after each round and c starts from it, rounding errors do not add up, and float32 embeddings are enough.

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

from recollect.dictionary import Dictionary, InMemory, lazy_zeros
from recollect.progress import progress_bar

Center: TypeAlias = Literal["uniform", "zero"]
Nonnegative: TypeAlias = bool | Literal["clip"]

CHOSEN_PER_PICK = 8  # one pick per scan for so many chosen so far
PICKS_PER_SCAN = 128  # at most
POOL_PER_PICK = 4

_DEPENDENT = 1e-12  # a row is dependent if less than this part of its squared norm is left
_BLOCK = 1024  # rows are copied this many at a time


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
    mean_square = dictionary.mean_square()
    if mean_square == 0:
        raise ValueError("embeddings must not all be zero: there is nothing to match")
    limit = n if size is None else size
    fit = RidgeFit(dictionary, g, regularization * (mean_square if relative else 1.0), center, limit)
    norm = float(g.norm())

    with progress_bar("choosing examples", limit, show=progress) as bar:
        while len(fit) < limit:
            r = fit.residual()
            if tolerance is not None and float(r.norm()) <= tolerance * norm:
                break
            room = min(limit - len(fit), n - len(fit.taken))
            if room == 0:
                break  # only dependent rows are left
            picks = 1 if exact else max(1, min(len(fit) // CHOSEN_PER_PICK, PICKS_PER_SCAN))
            before = len(fit)
            fit.grow(r, min(picks, room))
            bar.advance(len(fit) - before)
    return fit.coreset(nonnegative, norm)


class RidgeFit:
    """The regularised least-squares fit of g by the chosen rows, grown a few rows at a time.

    Minimises |gamma G_I - g|^2 + lambda |gamma - u 1|^2, where u minimises |u 1 G_I - g|^2 or is zero. Keeps
    M = L^-1, where L L^T = K + lambda I, and z_b = M b, z_1 = M 1 for b = G_I g, so that
    gamma = M^T (z_b + lambda u z_1). With the inverse kept, growing is matrix products only.
    """

    def __init__(self, dictionary: Dictionary, g: Tensor, regularization: float, center: Center, size: int) -> None:
        self._dictionary, self._g = dictionary, g
        self._lambda, self._center = regularization, center
        self._n, self._limit = 0, size
        self.taken: list[int] = []  # chosen or passed over: not to be proposed again
        self._indices: list[int] = []
        # Chosen rows, as they came for the pool, and in float64 for the fit.
        self._rows = torch.empty(0, dictionary.dim, dtype=dictionary.dtype, device=g.device)
        self._rows64 = g.new_empty(0, dictionary.dim)
        self._K, self._M = g.new_empty(0, 0), g.new_empty(0, 0)
        self._b, self._z_b, self._z_1 = (g.new_empty(0) for _ in range(3))

    def __len__(self) -> int:
        return self._n

    def _make_room(self, capacity: int) -> None:
        """Buffers double, up to what can be needed, so that growing costs little."""
        if capacity <= len(self._b):
            return
        n, D = self._n, self._dictionary.dim
        capacity = max(capacity, min(self._limit, max(2 * len(self._b), 64)))
        self._rows = _enlarged(self._rows[:n], capacity, D)
        self._rows64 = _enlarged(self._rows64[:n], capacity, D) if self._rows.dtype != torch.float64 else self._rows
        self._K = _enlarged(self._K[:n, :n], capacity, capacity)
        self._M = _enlarged(self._M[:n, :n], capacity, capacity)
        self._b, self._z_b, self._z_1 = (_enlarged(v[:n], capacity) for v in (self._b, self._z_b, self._z_1))

    def weights(self) -> Tensor:
        n = self._n
        z = self._z_b[:n] + self._lambda * self._uniform() * self._z_1[:n]
        return self._M[:n, :n].T @ z

    def residual(self) -> Tensor:
        """What is left to match, g - gamma G_I: from scratch and in float64."""
        return self._g - self.weights() @ self._rows64[: self._n]

    def _uniform(self) -> float:
        """The best uniform weight u: <sum of rows, g> / |sum of rows|^2."""
        if self._center == "zero" or not self._n:
            return 0.0
        n = self._n
        square = float(self._K[:n, :n].sum())
        return float(self._b[:n].sum()) / square if square > 0 else 0.0

    def grow(self, r: Tensor, picks: int) -> None:
        """Add up to `picks` rows out of one scan; rows found to be dependent are passed over."""
        n_candidates = len(self._dictionary) - len(self.taken)
        taken = torch.tensor(self.taken, dtype=torch.long, device=self._g.device)
        pool, scores = self._dictionary.best(r, min(POOL_PER_PICK * picks, n_candidates), taken)
        rows = self._dictionary.rows(pool)
        if picks == 1:
            order = [int((rows.double() @ r).argmax())]  # in float64: the scan only proposes
        else:
            order = self._picks_in_pool(rows, scores.double(), picks)
        chosen = [int(pool[k]) for k in order]
        self.taken += chosen
        self._append(chosen, rows[order])

    def _picks_in_pool(self, R: Tensor, c: Tensor, picks: int) -> list[int]:
        """Alg. 1 with the pool as its whole dictionary; see the module's introduction."""
        n = self._n
        V = (self._rows[:n] @ R.T).double()  # (n, pool); float32 is enough, as only differences are taken of it
        W = self._M[:n, :n] @ V
        gram = (R @ R.T).double()
        A = gram - W.T @ W
        A.diagonal().add_(self._lambda)
        least = _DEPENDENT * gram.diagonal()
        b = (R @ self._g.to(R.dtype)).double()
        to_chosen = V.sum(0)  # 1^T G_I g_k, for the uniform weight
        sum_b, square = float(self._b[:n].sum()), float(self._K[:n, :n].sum())
        q = W.T @ self._z_1[:n]
        p = c + self._lambda * self._uniform() * q
        floor = float(c.min()) if len(R) < len(self._dictionary) - len(self.taken) else -math.inf
        order: list[int] = []
        while len(order) < picks:
            c = c.masked_fill(A.diagonal() <= least, -torch.inf)
            k = int(c.argmax())
            if c[k] == -torch.inf or (order and float(c[k]) < floor):
                break  # nothing is left, or something outside the pool may well be better
            order.append(k)
            pivot = math.sqrt(float(A[k, k]))
            row = A[k] / pivot
            p -= row * (float(p[k]) / pivot)
            q += row * ((1 - float(q[k])) / pivot)
            A.addr_(row, row, alpha=-1)
            sum_b += float(b[k])
            square += 2 * float(to_chosen[k]) + float(gram[k, k])
            to_chosen += gram[k]
            u = sum_b / square if self._center == "uniform" and square > 0 else 0.0
            c = p - self._lambda * u * q
            c[order] = -torch.inf
        return order

    def _append(self, indices: list[int], rows: Tensor) -> None:
        """Extend K, M and what is kept of them by a block of rows, in float64 throughout (App. A.3)."""
        n, R = self._n, rows.double()
        V, C, b = self._rows64[:n] @ R.T, R @ R.T, R @ self._g
        W = self._M[:n, :n] @ V
        A = C - W.T @ W
        A.diagonal().add_(self._lambda)
        L, independent = _cholesky_of_independent(A, _DEPENDENT * C.diagonal())
        if not len(independent):
            return
        if len(independent) < len(indices):
            indices = [indices[int(i)] for i in independent]
            rows, R, V, W = rows[independent], R[independent], V[:, independent], W[:, independent]
            C, b = C[independent][:, independent], b[independent]
        m = len(indices)
        self._make_room(n + m)
        inverse = torch.linalg.solve_triangular(L, torch.eye(m, dtype=L.dtype, device=L.device), upper=False)
        new = slice(n, n + m)
        self._rows[new], self._rows64[new] = rows, R
        self._K[:n, new], self._K[new, :n], self._K[new, new] = V, V.T, C
        self._M[new, :n] = -inverse @ (W.T @ self._M[:n, :n])
        self._M[new, new] = inverse
        self._b[new] = b
        self._z_b[new] = inverse @ (b - W.T @ self._z_b[:n])
        self._z_1[new] = inverse @ (1 - W.T @ self._z_1[:n])
        self._n = n + m
        self._indices += indices

    def coreset(self, nonnegative: Nonnegative, norm: float) -> Coreset:
        """The chosen rows with weights solved for afresh, so that nothing of the growing is left in them."""
        keep = torch.arange(self._n, device=self._g.device)
        self._M, self._rows64 = self._M.new_empty(0), self._rows64.new_empty(0)  # large, and no longer needed
        weights = self._solve(keep)
        if nonnegative is True:
            while len(keep) and bool((weights < 0).any()):
                keep = keep[weights >= 0]
                weights = self._solve(keep)
        elif nonnegative == "clip":
            weights = weights.clamp(min=0)
        r = self._g.clone()
        for rows, part in zip(keep.split(_BLOCK), weights.split(_BLOCK), strict=True):
            r -= part @ self._rows[rows].double()
        indices = torch.tensor(self._indices, dtype=torch.long, device=self._g.device)[keep]
        return Coreset(indices, weights, float(r.norm()) / norm if norm else 0.0)

    def _solve(self, keep: Tensor) -> Tensor:
        """Weights of some of the chosen rows: (K + lambda I) gamma = b + lambda u 1."""
        if not len(keep):
            return self._b[:0]
        n, b = self._n, self._b[keep]
        K = self._K[:n, :n].clone() if len(keep) == n else self._K[keep[:, None], keep]
        if self._center == "uniform" and float(K.sum()) > 0:
            b = b + self._lambda * float(b.sum() / K.sum())
        K.diagonal().add_(self._lambda)
        L, failed = torch.linalg.cholesky_ex(K)
        if failed:  # dependent to working precision: the least-squares solution of least norm
            solution: Tensor = torch.linalg.lstsq(K, b[:, None], driver="gelsd").solution[:, 0]
            return solution
        return torch.cholesky_solve(b[:, None], L)[:, 0]


def _enlarged(old: Tensor, *shape: int) -> Tensor:
    new = lazy_zeros(*shape, dtype=old.dtype, device=old.device)
    new[tuple(slice(0, length) for length in old.shape)] = old
    return new


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
