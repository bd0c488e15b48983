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

Least squares (`rule`). For a zero centre, a row k lowers the objective by c_k^2 / A_kk, so c_k / sqrt(A_kk) is the
score. For the uniform centre the true gain is (c_k + lambda u)^2 / A_kk - lambda u^2; the score leaves out what lambda
adds, which is little while lambda is small beside A_kk. Inside a pool A_kk is there. To have it for all candidates
takes their products with each chosen row, and of these the rows of W: as much work as everything else together, and
more. Their plain norms are not good enough to propose a pool: the error is 1.1 to 1.4 times that of one pick per scan.
They are good enough to say which rows may come into question soon. So there are two levels (`Near`): a scan of all
candidates finds several hundred that score high by their norms, for these A_kk is known and kept up to date, and pools
are proposed out of them until a sixth more rows are chosen, or none of them scores as high by its norm as those that
were left out did. At half the time, the fitted error is 3 to 6 % above that of knowing A_kk for all, and the one at
fresh draws is level.

Rows as factors. A last-layer gradient is the outer product of two short vectors, and everything above asks of rows for
nothing but their products with each other and with vectors. So they are never formed (`rows.Outer`): products of rows
cost C + H multiplications per initialisation instead of C * H, and only g, r and the sum of the chosen are vectors.

Where most candidates stay, all are fitted and the least useful dropped (`elimination.py`): less work than picking
nearly all of them one by one, at an error that is 1 to 4 % lower (150 of 200, 750 of 1000).

Since r is computed anew in float64 at each scan and both c and the change of the weights start from it, rounding
errors do not add up, and float32 is enough for embeddings and for L, as long as lambda is not tiny and no row is far
longer than the others: rounding of its products must stay below lambda. The final weights are refined until they solve
the equations in float64.

Differs from the paper:
- `relative` scales lambda with the mean squared norm of the candidates.
- `exact=False` picks several rows per scan. `exact=True` is Alg. 1 to the letter.
- A row that depends linearly on chosen ones (lambda = 0) is passed over, where Alg. 1 would divide by zero.
- `nonnegative=True` replaces rows whose weight is negative or as good as zero, where the paper clips them.
- `rule="least-squares"` divides scores by what is left of a row, and drops rows instead of picking them where most
  stay. `rule="inner-product"` is Alg. 1.
- `count` holds the sum of the weights, by one more entry that all rows share.
- Outliers, at most ten rows that hold nine tenths of all squared norms, never set lambda. Where the target holds each
  of them once, they are set aside with weight one; otherwise they would set the centre for all. Not with `exact=True`.
"""

from recollect.pursuit.algorithm import Coreset, pursue
from recollect.pursuit.arguments import check_options
from recollect.pursuit.problem import Center, Nonnegative, Rule
from recollect.pursuit.proposals import look, picks_per_scan, pool_size

__all__ = ["Center", "Coreset", "Nonnegative", "Rule", "check_options", "look", "picks_per_scan", "pool_size", "pursue"]
