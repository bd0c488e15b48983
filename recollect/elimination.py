"""Which of many rows to keep, where most of them stay: the least useful are dropped, one after the other.

The other direction of pursuit, for when `size` is not much less than the number of candidates: all are fitted at once,
and a drop is a few operations on matrices of that size, where a pick would have to look at all the rows again.

With A = K + lambda I for the rows that are left, the weights are gamma = A^-1 (b + lambda u 1), and dropping row i
raises the objective by gamma_i^2 / (A^-1)_ii. The inverse of the smaller A is A^-1 less the outer product of its column
i over (A^-1)_ii, so p = A^-1 b and q = A^-1 1 follow by that column.
"""

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
    A = K.clone()
    A.diagonal().add_(regularization)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(A))
    p, q = inverse @ b, inverse.sum(1)
    sum_b, square, to_left = float(b.sum()), float(K.sum()), K.sum(1)
    gone = torch.zeros(n, dtype=torch.bool, device=K.device)
    while True:
        u = sum_b / square if uniform and square > 0 else 0.0
        gamma = p + regularization * u * q
        if int(gone.sum()) == n - size:
            left = (~gone).nonzero()[:, 0]
            return left, gamma[left]
        cost = gamma.square() / inverse.diagonal()
        if nonnegative:
            cost = torch.where(gamma < 0, -cost, cost)
        i = int(cost.masked_fill_(gone, torch.inf).argmin())
        gone[i] = True
        column = inverse[i] / float(inverse[i, i])
        p, q = p - float(p[i]) * column, q - float(q[i]) * column
        inverse.addr_(inverse[i].clone(), column, alpha=-1)
        inverse[i, i] = 1.0  # its row and column are zero now; never divided by zero
        sum_b -= float(b[i])
        square -= 2 * float(to_left[i]) - float(K[i, i])
        to_left = to_left - K[i]
