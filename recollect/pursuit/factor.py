"""What grows with the fit: rows in a buffer, and the Cholesky factor of their Gram matrix."""

import torch
from torch import Tensor

from recollect.numerics import lazy_zeros

FACTOR_ROWS = 256  # in a block of the factor

_ROOM = 1024  # rows in a buffer to begin with: what is not used takes no memory


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
        if self._blocks and len(self._blocks[-1][1]) + m <= FACTOR_ROWS:  # few large blocks instead of many small
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


def cholesky_of_independent(A: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
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
