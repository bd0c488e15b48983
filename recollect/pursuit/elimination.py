"""Which of many rows to keep, where most of them stay: the least useful are dropped, one after the other.

The other direction of pursuit, for when `size` is not much less than the number of candidates: all are fitted at once,
and a drop is a few operations on matrices of that size, where a pick would have to look at all the rows again.

With A = K + lambda I for the rows that are left, the weights are gamma = A^-1 (b + lambda u 1), and dropping row i
raises the objective by gamma_i^2 / (A^-1)_ii. The inverse of the smaller A is A^-1 less the outer product of its column
i over (A^-1)_ii, so p = A^-1 b and q = A^-1 1 follow by that column.
"""

import numpy as np
import torch
from torch import Tensor


def eliminate(
    K: Tensor, b: Tensor, size: int, regularization: float, *, uniform: bool, nonnegative: bool
) -> tuple[Tensor, Tensor]:
    """The rows that are left, ascending, once all but `size` have been dropped, and their weights.

    Args:
        K: inner products of all rows, (n, n), in float64.
        b: their products with the target.
        size: how many stay.
        regularization: lambda, above zero.
        uniform: the weights are pulled towards the best equal weight, not towards zero.
        nonnegative: rows whose weight is negative go first.

    Example:
        >>> eliminate(torch.eye(3).double(), torch.tensor([2.0, 0.1, 3.0]).double(), 2, 0.1, uniform=False,
        ...           nonnegative=True)[0]
        tensor([0, 2])
    """
    n = len(K)
    A = K.cpu().clone()
    A.diagonal().add_(regularization)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(A))
    # A drop is a dozen operations on short vectors, which NumPy starts several times faster; they share the memory.
    products, rows = K.cpu().numpy(), inverse.numpy()
    known = b.cpu().numpy()
    p, q = (inverse @ b.cpu()).numpy(), rows.sum(1)
    sum_b, square, to_left = float(known.sum()), float(products.sum()), products.sum(1)
    diagonal = np.einsum("ii->i", rows)  # a view
    gone = np.zeros(n, dtype=bool)
    for _ in range(n - size):
        u = sum_b / square if uniform and square > 0 else 0.0
        gamma = p + regularization * u * q
        cost = gamma * gamma / diagonal
        if nonnegative:
            np.copysign(cost, gamma, out=cost)
        cost[gone] = np.inf
        i = int(cost.argmin())
        gone[i] = True
        column = rows[i] / diagonal[i]
        p, q = p - p[i] * column, q - q[i] * column
        inverse.addr_(inverse[i].clone(), torch.from_numpy(column), alpha=-1)
        diagonal[i] = 1.0  # its row and column are zero now; never divided by zero
        sum_b -= float(known[i])
        square -= 2 * float(to_left[i]) - float(products[i, i])
        to_left = to_left - products[i]
    u = sum_b / square if uniform and square > 0 else 0.0
    left = np.flatnonzero(~gone)
    gamma = (p + regularization * u * q)[left]
    return torch.from_numpy(left).to(K.device), torch.from_numpy(gamma).to(K.device)
