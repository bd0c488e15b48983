import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import orthogonal_mp_gram
from torch import Tensor

import recollect as rc
from recollect.checks import check_count, check_seed
from recollect.dictionary import Factored, InMemory, Joined, OnDisk, taken
from recollect.pursuit.factor import GrowingCholesky
from recollect.pursuit.fit import RidgeFit
from recollect.pursuit.proposals import Near, Pool
from tests.oracles import fit_from_scratch, pursue_from_scratch, pursue_least_squares_from_scratch


def random_rows(n: int, dim: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, generator=generator, dtype=torch.float64)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, Tensor, int, float, str]:
    """Candidates with duplicates and zero rows, a target, a size, a lambda and a centre."""
    seed = draw(st.integers(0, 10_000))
    n, dim = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    G = random_rows(n, dim, seed) + draw(st.sampled_from([0.0, 0.5]))
    for _ in range(draw(st.integers(0, 5))):
        i, j = draw(st.integers(0, n - 1)), draw(st.integers(0, n - 1))
        G[i] = G[j] if draw(st.booleans()) else 0.0
    if not G.any():
        G[0, 0] = 1.0
    target = G.sum(0) if draw(st.booleans()) else random_rows(1, dim, seed + 1)[0]
    size = draw(st.integers(1, n))
    regularization = draw(st.sampled_from([0.01, 0.1, 1.0, 10.0]))
    return G, target, size, regularization, draw(st.sampled_from(["uniform", "zero"]))


@pytest.mark.parametrize("seed", range(8))
def test_zero_centre_chooses_what_scikit_learn_chooses_on_the_shifted_gram_matrix(seed: int) -> None:
    """Ridge pursuit equals plain pursuit on K + lambda I where no correlation is negative at its maximum."""
    G = random_rows(60, 30, seed).abs()
    g = G.sum(0)
    regularization = 0.3 * float(G.square().sum(1).mean())
    K = (G @ G.T).numpy() + regularization * np.eye(60)
    weights = orthogonal_mp_gram(K, (G @ g).numpy(), n_nonzero_coefs=20)
    coreset = rc.pursue(G, 20, rule="inner-product", center="zero", exact=True, nonnegative=False, regularization=0.3)
    assert set(coreset.indices.tolist()) == set(np.flatnonzero(weights).tolist())
    assert np.abs(weights[coreset.indices] - coreset.weights.numpy()).max() < 1e-8


@given(problems())
def test_weights_solve_the_regularised_normal_equations(problem: tuple[Tensor, Tensor, int, float, str]) -> None:
    G, g, size, regularization, center = problem
    for exact in (True, False):
        coreset = rc.pursue(
            G, size, target=g, regularization=regularization, relative=False, center=center, nonnegative=False,
            exact=exact,
        )  # type: ignore[call-overload, misc, unused-ignore] # fmt: skip
        chosen = G[coreset.indices].numpy()
        truth = fit_from_scratch(chosen, g.numpy(), regularization, center)
        assert len(coreset) == size == len(set(coreset.indices.tolist()))
        assert np.abs(coreset.weights.numpy() - truth).max() <= 1e-8 * max(1.0, np.abs(truth).max())
        residual = g.numpy() - truth @ chosen
        assert coreset.error == pytest.approx(np.linalg.norm(residual) / np.linalg.norm(g), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("center", ["uniform", "zero"])
@pytest.mark.parametrize("seed", range(5))
def test_exact_pursuit_is_algorithm_1(center: str, seed: int) -> None:
    G = random_rows(80, 40, seed) + 0.3
    regularization = 0.05 * float(G.square().sum(1).mean())
    chosen, weights = pursue_from_scratch(G.numpy(), G.sum(0).numpy(), 25, regularization, center)
    options = {"rule": "inner-product", "regularization": 0.05, "center": center, "exact": True, "nonnegative": False}
    coreset = rc.pursue(G, 25, **options)  # type: ignore[arg-type]
    assert coreset.indices.tolist() == chosen
    assert np.abs(coreset.weights.numpy() - weights).max() < 1e-8


def test_exact_pursuit_picks_one_row_per_scan_at_every_size() -> None:
    scans = []

    class Counting(InMemory):
        def products(self, vectors: Tensor) -> Tensor:
            scans.append(1)
            return super().products(vectors)

    for exact in (True, False):
        scans.clear()
        rc.pursue(Counting(random_rows(300, 100)), 80, exact=exact, nonnegative=False)
        assert (len(scans) >= 80) == exact


def test_clipped_weights_are_those_of_the_fit_with_zeros_for_negative_ones() -> None:
    G, g = random_rows(60, 40), torch.linspace(-1, 1, 40).double()
    free, clipped = (rc.pursue(G, 30, target=g, regularization=0.0, nonnegative=n) for n in (False, "clip"))
    assert (free.weights < 0).any()
    assert torch.equal(clipped.indices, free.indices)
    assert torch.equal(clipped.weights, free.weights.clamp(min=0))


@pytest.mark.parametrize("center", ["uniform", "zero"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("regularization", "pool"), [(0.05, 8), (1e-3, 8), (1e-3, 1)])
def test_exact_least_squares_picks_are_the_best_of_all_that_could_be_added(
    center: str, seed: int, regularization: float, pool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a pool of one as well: the scan alone knows what is left of each row."""
    monkeypatch.setattr("recollect.pursuit.proposals.POOL_FOR_ONE", pool)
    G = (random_rows(60, 40, seed) + 0.3) * torch.logspace(0, -1, 60, dtype=torch.float64)[:, None]
    square = float(G.square().sum(1).mean())
    chosen, weights = pursue_least_squares_from_scratch(
        G.numpy(), G.sum(0).numpy(), 20, regularization * square, center
    )
    options = {"regularization": regularization, "center": center, "exact": True, "nonnegative": False}
    coreset = rc.pursue(G, 20, rule="least-squares", **options)  # type: ignore[arg-type]
    assert coreset.indices.tolist() == chosen
    assert np.abs(coreset.weights.numpy() - weights).max() < 1e-8


@pytest.mark.parametrize("rule", ["least-squares", "inner-product"])
@pytest.mark.parametrize("center", ["uniform", "zero"])
def test_picks_in_a_pool_are_those_of_exact_pursuit_on_the_pool(
    center: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a pool of everything, many picks per scan are exactly one pick per scan."""
    monkeypatch.setattr("recollect.pursuit.proposals.POOL_PER_PICK", 10_000)
    monkeypatch.setattr("recollect.pursuit.proposals.CHOSEN_PER_PICK", {rule: 2})
    G = random_rows(300, 400) + 0.2
    options = {"center": center, "rule": rule, "count": 300}
    for hold_count, regularization in ((True, 0.02), (False, 0.02), (False, 3.0)):
        options |= {"hold_count": hold_count, "regularization": regularization}
        exact = rc.pursue(G, 90, exact=True, **options)  # type: ignore[arg-type]
        pooled = rc.pursue(G, 90, exact=False, **options)  # type: ignore[arg-type]
        assert pooled.indices.tolist() == exact.indices.tolist()
        assert torch.allclose(pooled.weights, exact.weights, atol=1e-8)


@pytest.mark.parametrize("count", [None, 1500.0])
def test_what_is_known_of_near_candidates_is_what_a_fit_from_scratch_tells(
    count: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    propose, differences = Near.pool, []

    def weights_from_scratch(fit: RidgeFit) -> Tensor:
        chosen, g, lambda_ = fit.rows, fit.problem.goal(), fit.problem.regularization
        total = chosen.sum(0)
        u = float(total @ g / (total @ total)) if len(chosen) else 0.0
        A = chosen @ chosen.T + lambda_ * torch.eye(len(chosen))
        weights: Tensor = torch.linalg.solve(A, chosen @ g + lambda_ * u)
        return weights

    def watched(near: Near, fit: RidgeFit, picks: int, *, anew: bool) -> Pool:
        pool = propose(near, fit, picks, anew=anew)
        chosen, rows, lambda_ = fit.rows, near._rows, fit.problem.regularization
        products = chosen @ rows.T
        fitted = products * torch.linalg.solve(chosen @ chosen.T + lambda_ * torch.eye(len(chosen)), products)
        truth = rows.square().sum(1) + lambda_ - fitted.sum(0)
        products_with_rest = rows @ (fit.problem.goal() - weights_from_scratch(fit) @ chosen)
        differences.append(float((near._left - truth).abs().max()))
        differences.append(float((near._c(fit) - products_with_rest).abs().max()))
        return pool

    monkeypatch.setattr(Near, "pool", watched)
    rc.pursue(random_rows(1500, 120) + 0.2, 90, count=count)
    assert len(differences) > 60
    assert max(differences) < 1e-9


def test_candidates_in_clusters_are_matched_nearly_as_well_as_by_one_pick_per_scan() -> None:
    """Those that score highest are all of one cluster, and once some of it are picked, others are wanted."""
    ratios = []
    for seed in range(4):
        G = 3 * random_rows(10, 300, seed).repeat(400, 1) + random_rows(4000, 300, seed + 100)
        ratios.append(rc.pursue(G, 40).error / rc.pursue(G, 40, exact=True).error)
    assert sum(ratios) / len(ratios) < 1.1


@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize("regularization", [1e-3, 1e-5])
def test_weights_of_float32_rows_are_as_good_as_in_float64(nonnegative: bool, regularization: float) -> None:
    """Whichever precision the factor is kept in: refinement makes up for it, also where weights are held at zero."""
    G = (random_rows(1500, 400) * torch.logspace(0, -3, 400, dtype=torch.float64) + 0.01).float()
    g = (G[:800].double().sum(0) - G[800:1100].double().sum(0)).numpy()  # some weights want to be negative
    coreset = rc.pursue(G, 300, target=torch.from_numpy(g), regularization=regularization, nonnegative=nonnegative)
    assert len(coreset) == 300
    assert nonnegative == bool((coreset.weights > 0).all())
    chosen = G[coreset.indices].double().numpy()
    truth = fit_from_scratch(chosen, g, regularization * float(G.double().square().sum(1).mean()), "uniform")
    assert np.abs(coreset.weights.numpy() - truth).max() < 1e-6 * np.abs(truth).max()
    assert coreset.error == pytest.approx(np.linalg.norm(g - truth @ chosen) / np.linalg.norm(g), rel=1e-6)


def test_a_tiny_lambda_is_not_lost_in_the_precision_of_float32_rows() -> None:
    G = (random_rows(300, 60) * torch.logspace(0, -5, 60, dtype=torch.float64)).float()
    g, square = G.double().sum(0).numpy(), float(G.double().square().sum(1).mean())
    for regularization in (1e-10, 1e-8):
        coreset = rc.pursue(G, 50, regularization=regularization, nonnegative=False)
        chosen = G[coreset.indices].double().numpy()
        truth = fit_from_scratch(chosen, g, regularization * square, "uniform")
        assert np.abs(coreset.weights.numpy() - truth).max() < 1e-4 * np.abs(truth).max()


@pytest.mark.parametrize("regularization", [1e-4, 3e-4, 5e-4])
def test_a_small_lambda_is_not_lost_where_many_more_rows_than_dimensions_are_chosen(regularization: float) -> None:
    G = (random_rows(1, 10, seed=1) + 0.3 * random_rows(2000, 10)).float()
    g, square = G.double().sum(0).numpy(), float(G.double().square().sum(1).mean())
    coreset = rc.pursue(G, 1000, regularization=regularization, rule="inner-product", nonnegative=False)
    assert len(coreset) == 1000
    truth = fit_from_scratch(G[coreset.indices].double().numpy(), g, regularization * square, "uniform")
    assert np.abs(coreset.weights.numpy() - truth).max() < 1e-6 * np.abs(truth).max()


def test_a_factor_grown_by_blocks_solves_like_one_made_at_once() -> None:
    X = random_rows(700, 800)
    A = X @ X.T + torch.eye(700, dtype=torch.float64)
    truth = torch.linalg.cholesky(A)
    factor, n = GrowingCholesky(torch.float64, A.device), 0
    for m in (1, 1, 3, 128, 100, 200, 7, 260):
        W = factor.solve(A[:n, n : n + m])
        factor.extend(W, torch.linalg.cholesky(A[n : n + m, n : n + m] - W.T @ W))
        n += m
    V = random_rows(700, 5, seed=1)
    assert n == 700
    assert torch.allclose(factor.solve(V), torch.linalg.solve_triangular(truth, V, upper=False), rtol=1e-10)
    assert torch.allclose(factor.solve_transposed(V), torch.linalg.solve_triangular(truth.T, V, upper=True), rtol=1e-10)


@pytest.mark.parametrize("rule", ["least-squares", "inner-product"])
def test_several_picks_per_scan_match_nearly_as_well_as_one(rule: str) -> None:
    """Also where all directions are alike, so that every pick changes which rows are the best."""
    ratios = []
    for seed in range(2):
        G = (random_rows(3000, 400, seed) + 0.3).float()
        exact, fast = (rc.pursue(G, 200, rule=rule, exact=exact) for exact in (True, False))  # type: ignore[arg-type]
        ratios.append(fast.error / exact.error)
    assert sum(ratios) / len(ratios) <= 1.1


@pytest.mark.parametrize("rule", ["least-squares", "inner-product"])
def test_a_pool_is_left_as_soon_as_rows_outside_are_better(rule: str) -> None:
    """Sixty kinds of seventy rows that are nearly alike: a pool is full of one kind, of which one row is enough."""
    kinds = torch.eye(60, dtype=torch.float64) * torch.linspace(1, 0.5, 60, dtype=torch.float64)
    G = kinds.repeat_interleave(70, 0) + 0.001 * random_rows(4200, 60)
    coreset = rc.pursue(G, 60, rule=rule)  # type: ignore[arg-type]
    assert sorted(i // 70 for i in coreset.indices.tolist()) == list(range(60))


@pytest.mark.parametrize("rule", ["least-squares", "inner-product"])
def test_as_many_rows_as_asked_for_have_positive_weights(rule: str) -> None:
    G = (random_rows(800, 150) + 0.2).float()
    options = {"rule": rule, "target": G[:500].sum(0) - 5 * G[500:550].sum(0)}
    free = rc.pursue(G, 120, nonnegative=False, **options)  # type: ignore[arg-type]
    coreset = rc.pursue(G, 120, **options)  # type: ignore[arg-type]
    assert free.weights.min() < 0 < coreset.weights.min()
    assert len(coreset) == len(set(coreset.indices.tolist())) == 120


def test_fewer_rows_are_kept_only_where_no_other_would_help() -> None:
    G = torch.cat([torch.eye(3), -torch.eye(3)]).double()
    coreset = rc.pursue(G, 6, target=torch.tensor([3.0, 2.0, 1.0]), regularization=0.0)
    assert coreset.indices.tolist() == [0, 1, 2]
    assert coreset.error < 1e-12


@pytest.mark.parametrize("rule", ["least-squares", "inner-product"])
def test_the_count_is_held_where_it_is_given(rule: str) -> None:
    """Without it, the weights add up to whatever matches best: here far less, since the rows nearly cancel."""
    G = random_rows(2000, 60)
    options = {"rule": rule, "target": G.sum(0)}
    free = rc.pursue(G, 40, **options)  # type: ignore[arg-type]
    held = rc.pursue(G, 40, count=2000, **options)  # type: ignore[arg-type]
    loose = rc.pursue(G, 40, count=2000, hold_count=False, **options)  # type: ignore[arg-type]
    assert float(free.weights.sum()) < 1000
    assert float(held.weights.sum()) == pytest.approx(2000, rel=0.05)
    assert torch.equal(free.weights, loose.weights)
    residual = G.sum(0) - held.weights @ G[held.indices]
    assert held.error == pytest.approx(float(residual.norm() / G.sum(0).norm()))  # the count is no part of it


@pytest.mark.slow
@pytest.mark.parametrize("hold_count", [True, False])
def test_weights_add_up_to_what_was_seen_after_many_small_updates_with_noisy_labels(hold_count: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(3000, 5, generator=generator), torch.randint(0, 2, (3000,), generator=generator)
    arriving = rc.GradientEmbedding(lambda: rc.models.mlp(5, 2), dim=10).embed(x, y).split(10)
    rows, target, parts = arriving[0][:0], torch.zeros(arriving[0].shape[1], dtype=torch.float64), []
    for k, batch in enumerate(arriving):
        rows, target = torch.cat([rows, batch]), target + batch.double().sum(0)
        if len(rows) > 50:
            coreset = rc.pursue(rows, 50, target=target, count=10 * (k + 1), hold_count=hold_count)
            rows = rows[coreset.indices]
            parts.append(float(coreset.weights.sum()) / (10 * (k + 1)))
    assert hold_count == (min(parts) > 0.95)
    assert hold_count == (max(parts) - min(parts) < 0.05)


@pytest.mark.parametrize("factor", [1e-4, 0.5, 3.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scaling_all_embeddings_changes_neither_indices_nor_weights(factor: float, dtype: torch.dtype) -> None:
    G = (random_rows(200, 50) + 0.3).to(dtype)
    plain, scaled = rc.pursue(G, 30), rc.pursue(factor * G, 30)
    assert plain.indices.tolist() == scaled.indices.tolist()
    assert torch.allclose(plain.weights, scaled.weights, rtol=1e-4 if dtype == torch.float32 else 1e-9)


def test_absolute_regularization_depends_on_the_scale() -> None:
    G = random_rows(50, 20) + 0.3
    plain, scaled = (rc.pursue(f * G, 10, relative=False, regularization=1.0) for f in (1.0, 100.0))
    assert not torch.allclose(plain.weights, scaled.weights, rtol=1e-3)


@given(problems())
def test_nonnegative_weights_solve_their_own_normal_equations(
    problem: tuple[Tensor, Tensor, int, float, str],
) -> None:
    G, g, size, regularization, center = problem
    options = {"target": g, "regularization": regularization, "relative": False, "center": center}
    dropped = rc.pursue(G, size, nonnegative=True, **options)  # type: ignore[arg-type]
    clipped = rc.pursue(G, size, nonnegative="clip", **options)  # type: ignore[arg-type]
    free = rc.pursue(G, size, nonnegative=False, **options)  # type: ignore[arg-type]
    assert (dropped.weights >= 0).all()
    assert torch.equal(clipped.weights, free.weights.clamp(min=0))
    if len(dropped):
        truth = fit_from_scratch(G[dropped.indices].numpy(), g.numpy(), regularization, center)
        assert np.abs(dropped.weights.numpy() - truth).max() <= 1e-8 * max(1.0, np.abs(truth).max())
    assert len(dropped) <= size
    alone, together = (rc.pursue(G, size, nonnegative=n, exact=True, **options) for n in (False, True))  # type: ignore[arg-type]
    if len(alone) and (alone.weights > 1e-5 * alone.weights.mean()).all():
        assert torch.equal(alone.indices, together.indices)  # where no weight is negative, nothing is dropped


def test_tolerance_stops_at_the_first_size_that_is_good_enough() -> None:
    G = random_rows(200, 30) + 0.3
    coreset = rc.pursue(G, None, tolerance=0.05, exact=True, nonnegative=False)
    assert coreset.error <= 0.05
    assert rc.pursue(G, len(coreset) - 1, exact=True, nonnegative=False).error > 0.05
    assert len(rc.pursue(G, 3, tolerance=0.05)) == 3


def test_the_target_may_be_anything() -> None:
    coreset = rc.pursue(torch.eye(3), 2, target=torch.tensor([0.0, 2.0, 5.0]), regularization=0.0)
    assert coreset.indices.tolist() == [2, 1]
    assert torch.allclose(coreset.weights, torch.tensor([5.0, 2.0], dtype=torch.float64))
    assert coreset.error < 1e-12


def test_without_regularization_dependent_rows_are_passed_over() -> None:
    G = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [2.0, 0.0]])
    for exact in (True, False):
        by_product = rc.pursue(G, 5, rule="inner-product", regularization=0.0, exact=exact)
        assert sorted(by_product.indices.tolist()) == [2, 4]
        coreset = rc.pursue(G, 5, regularization=0.0, exact=exact)
        assert sorted(coreset.indices.tolist()) == [0, 2]  # the first of those that gain the same
        assert coreset.error < 1e-12


def test_equal_rows_share_the_weight() -> None:
    coreset = rc.pursue(torch.ones(10, 3), 4)
    assert coreset.weights.tolist() == pytest.approx([2.5] * 4)


def test_late_picks_do_not_drown_in_rounding_errors() -> None:
    """The target is five orders of magnitude above late correlations; float32 rows are enough all the same."""
    generator = torch.Generator().manual_seed(0)
    G = 0.05 * torch.randn(3000, 200, generator=generator) + 3.0
    single, double = rc.pursue(G, 150, exact=True), rc.pursue(G.double(), 150, exact=True)
    assert single.error <= 1.02 * double.error


def test_rows_of_several_parts_come_in_the_order_that_they_are_asked_for() -> None:
    G, order = random_rows(10, 4), torch.tensor([9, 2, 0, 5, 3, 7])
    assert torch.equal(Joined(InMemory(G[:4]), InMemory(G[4:])).rows(order), G[order])


def test_several_parts_are_one_dictionary() -> None:
    G = random_rows(50, 20) + 0.3
    parts = Joined(InMemory(G[:7]), InMemory(G[7:]))
    assert rc.pursue(parts, 45).indices.tolist() == rc.pursue(G, 45).indices.tolist()
    assert torch.allclose(parts.norms(), G.norm(dim=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_on_disk_are_chosen_as_rows_in_memory(dtype: torch.dtype, tmp_path: Path) -> None:
    G = (random_rows(2500, 40) + 0.3).to(dtype)
    on_disk = OnDisk.write(tmp_path / "rows.npy", G.split(700))
    assert np.array_equal(np.load(tmp_path / "rows.npy"), G.numpy())
    here, there = rc.pursue(G, 100), rc.pursue(on_disk, 100)
    assert torch.equal(here.indices, there.indices)
    assert torch.allclose(here.weights, there.weights, rtol=1e-9)


@pytest.mark.parametrize("content", [b"", b"not numpy at all", b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'"])
def test_a_file_that_is_not_of_embeddings_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "rows.npy").write_bytes(content)
    with pytest.raises(ValueError, match="must be a NumPy file of embeddings"):
        OnDisk(tmp_path / "rows.npy")


def test_empty_blocks_are_no_rows_of_a_file_and_others_must_be_alike(tmp_path: Path) -> None:
    nothing, some = torch.empty(0, 3), torch.arange(6.0).reshape(2, 3)
    written = OnDisk.write(tmp_path / "rows.npy", [nothing, some, nothing, 2 * some])
    assert torch.equal(written.rows(torch.arange(4)), torch.cat([some, 2 * some]))
    for other in (torch.ones(2, 4), some.double()):
        with pytest.raises(ValueError, match=r"all rows must have the 3 numbers of float32 that the first have, got"):
            OnDisk.write(tmp_path / "rows.npy", [some, other])
    with pytest.raises(ValueError, match=r"there must be rows to write, got none"):
        OnDisk.write(tmp_path / "rows.npy", [nothing])
    assert len(OnDisk(tmp_path / "rows.npy")) == 4  # as it was
    assert OnDisk.write(tmp_path / "rows.npy", [some.bfloat16()]).dtype == torch.float32


def test_a_truncated_file_of_embeddings_is_refused(tmp_path: Path) -> None:
    path = OnDisk.write(tmp_path / "rows.npy", [torch.ones(10, 4)]).path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="must hold 10 rows, got a file that ends before: it is truncated"):
        OnDisk(path)
    for wrong in (np.ones((3, 4), dtype=np.int64), np.ones((0, 4)), np.ones((3, 0))):
        np.save(tmp_path / "wrong.npy", wrong)
        with pytest.raises(ValueError, match="must hold rows of float32 or float64 numbers"):
            OnDisk(tmp_path / "wrong.npy")


@pytest.mark.parametrize("bias", [True, False])
def test_factors_are_chosen_as_the_outer_products_they_stand_for(bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    deltas = torch.randn(3, 200, 4, generator=generator, dtype=torch.float64)
    h = torch.rand(3, 200, 7, generator=generator, dtype=torch.float64)
    dense = (deltas[:, :, :, None] * h[:, :, None, :]).flatten(2)
    dense = (torch.cat([dense, deltas], 2) if bias else dense).transpose(0, 1).reshape(200, -1)
    factored = Factored(deltas, h, bias=bias)
    assert torch.equal(factored.rows(torch.arange(200)), dense)
    some = torch.tensor([3, 150, 4])
    assert torch.equal(taken(factored, some).rows(torch.arange(3)), dense[some])
    vectors = torch.randn(dense.shape[1], 5, generator=generator, dtype=torch.float64)
    assert torch.allclose(factored.products(vectors), dense @ vectors)
    assert torch.allclose(factored.products(vectors[:, 0]), dense @ vectors[:, 0])
    assert torch.allclose(factored.sum(), dense.sum(0))
    assert torch.allclose(factored.norms(), dense.norm(dim=1))
    assert rc.pursue(factored, 60).indices.tolist() == rc.pursue(dense, 60).indices.tolist()


@pytest.mark.parametrize("rule", ["least-squares", "inner-product"])
@pytest.mark.parametrize("exact", [True, False])
def test_pursuit_ends_when_only_dependent_rows_are_left(exact: bool, rule: str) -> None:
    G = random_rows(300, 10) @ random_rows(10, 80, seed=1)
    options = {"rule": rule, "regularization": 0.0, "nonnegative": False, "exact": exact}
    coreset = rc.pursue(G, 100, **options)  # type: ignore[arg-type]
    assert len(coreset) == 10
    assert coreset.error < 1e-9


def test_selecting_out_of_repeated_rows_without_regularization_ends() -> None:
    x, y = random_rows(20, 3).float(), torch.arange(20) % 2
    coreset = rc.select(lambda: rc.models.mlp(3, 2), x.repeat(5, 1), y.repeat(5), 50, regularization=0.0)
    assert len({i % 20 for i in coreset.indices.tolist()}) == len(coreset) <= 20
    assert coreset.error < 1e-4


SCALES = [1e-42, 1e-23, 1e-10, 1.0, 1e10, 1e18, 1e30]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"regularization": 0.0},
        {"regularization": 1e-12, "relative": False},
        {"regularization": 1000.0, "relative": False},
        {"regularization": 0.05, "relative": False, "nonnegative": "clip"},
    ],
)
def test_every_scale_of_embeddings_and_lambda_gives_finite_weights(scale: float, options: dict[str, object]) -> None:
    repeated = random_rows(20, 60).repeat(10, 1) + 0.3
    for G in (random_rows(200, 60) + 0.3, repeated):
        for dtype in (torch.float32, torch.float64):
            coreset = rc.pursue((scale * G).to(dtype), 80, **options)  # type: ignore[arg-type]
            assert 0 < len(coreset) == len(set(coreset.indices.tolist()))
            assert torch.isfinite(coreset.weights).all()
            assert coreset.error < 0.5


@pytest.mark.parametrize("scale", [2.0**-80, 2.0**90])
def test_scaling_by_a_power_of_two_changes_not_a_bit(scale: float) -> None:
    G = (random_rows(500, 60) + 0.3).float()
    plain, scaled = rc.pursue(G, 100), rc.pursue(scale * G, 100)
    assert torch.equal(plain.indices, scaled.indices)
    assert torch.equal(plain.weights, scaled.weights)
    g = G.double().sum(0)
    other = rc.pursue(G, 100, target=scale * g)
    assert torch.equal(plain.indices, other.indices)
    assert torch.equal(plain.weights * scale, other.weights)


def test_the_paper_s_settings_end_on_unscaled_features() -> None:
    x, y = 1e6 * random_rows(30, 5).float().repeat(10, 1), torch.arange(300) % 3
    coreset = rc.select(lambda: rc.models.mlp(5, 3), x, y, 60, **rc.PAPER)
    assert torch.isfinite(coreset.weights).all()
    assert coreset.error < 0.5


@pytest.mark.parametrize("size", [1e2, 1e6, 1e20, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_outlier_is_kept_and_the_others_are_matched_as_if_it_were_not_there(
    size: float, dtype: torch.dtype
) -> None:
    """An outlier sets neither lambda nor the centre, and its part of the target does not round away the rest."""
    G = (random_rows(400, 60) + 0.3).to(dtype)
    others = rc.pursue(G[1:], 49)
    G[0] *= size
    if size > 1e5:
        with pytest.warns(UserWarning, match=r"carried by many rows, got 1 of 400 that dwarf the others") as caught:
            coreset = rc.pursue(G, 50)
        assert f"({others.error:.2g} for them alone)" in str(caught[0].message)
        assert caught[0].filename == __file__  # whoever called, not where it was noticed
    else:
        coreset = rc.pursue(G, 50)
    assert coreset.indices[0] == 0
    assert coreset.weights[0] == 1
    assert coreset.indices[1:].tolist() == (others.indices + 1).tolist()
    assert torch.allclose(coreset.weights[1:], others.weights, rtol=1e-6)


def test_an_outlier_that_is_set_apart_is_one_of_those_that_are_counted() -> None:
    G = random_rows(400, 60) + 0.3
    others = rc.pursue(G[1:], 49, count=399)
    G[0] *= 1e3
    assert torch.allclose(rc.pursue(G, 50, count=400).weights[1:], others.weights, rtol=1e-9)


def test_an_outlier_that_a_given_target_holds_once_is_set_apart_as_well() -> None:
    G = random_rows(400, 60) + 0.3
    G[0] *= 1e3
    assert rc.pursue(G, 50, target=G.sum(0)).weights[0] == 1


@pytest.mark.parametrize("asked", [0.3, 3, 20])
def test_an_outlier_that_stands_for_others_like_it_gets_the_weight_that_the_target_asks_for(asked: float) -> None:
    G = random_rows(400, 60) + 0.3
    others = rc.pursue(G, 50).error
    G[7] *= 1e3
    coreset = rc.pursue(G, 50, target=G.sum(0) + (asked - 1) * G[7])
    assert coreset.weights[coreset.indices == 7].item() == pytest.approx(asked, rel=0.02)
    assert coreset.error < others


def test_several_outliers_share_what_the_target_asks_of_those_like_them() -> None:
    G = (random_rows(400, 60) + 0.3).float()
    G[:3] = 1e3 * G[0]
    coreset = rc.pursue(G, 50, target=G.double().sum(0) + 9 * G[0])
    assert coreset.weights[coreset.indices < 3].sum().item() == pytest.approx(12, rel=0.02)


def test_no_outlier_is_set_apart_where_the_algorithm_is_to_be_followed_to_the_letter() -> None:
    G = random_rows(400, 60) + 0.3
    G[0] *= 1e3
    coreset = rc.pursue(G, 20, exact=True)
    (weight,) = coreset.weights[coreset.indices == 0].tolist()
    assert weight == pytest.approx(1, rel=0.05) and weight != 1


def test_rows_are_no_outliers_where_all_others_are_zero() -> None:
    G = torch.zeros(500, 4, dtype=torch.float64)
    G[[7, 8, 9]] = torch.tensor([[2.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], dtype=torch.float64)
    coreset = rc.pursue(G, 8, regularization=0.0)
    assert sorted(coreset.indices.tolist()) == [7, 8, 9]
    assert rc.pursue(G, 1, regularization=0.0).indices.tolist() == [7]
    assert torch.allclose(coreset.weights, torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("size", [1, 3, 20])
def test_several_outliers_leave_finite_weights_at_every_size(size: int) -> None:
    G = (random_rows(400, 60) + 0.3).float()
    G[:3] *= 1e20
    with pytest.warns(UserWarning, match="got 3 of 400"):
        coreset = rc.pursue(G, size)
    assert torch.isfinite(coreset.weights).all()
    assert set(coreset.indices.tolist()) & {0, 1, 2}


def test_an_outlier_that_the_target_does_not_hold_does_not_spoil_the_fit() -> None:
    G = random_rows(400, 60) + 0.3
    g = G.sum(0)
    G[0] *= 1e6
    coreset = rc.pursue(G, 50, target=g)
    assert coreset.weights[coreset.indices == 0].sum() < 1e-3
    assert coreset.error < 0.05


def test_a_target_of_nothing_but_outliers_is_that_of_their_rows() -> None:
    G = random_rows(400, 60)
    G[:2] *= 1e6
    with pytest.warns(UserWarning, match="carried by many rows, got 2 of 400 that dwarf the others"):
        coreset = rc.pursue(G, 20, target=G[:2].double().sum(0))
    assert coreset.indices[:2].tolist() == [0, 1]
    assert coreset.error < 1e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "x"}, "rule must be 'least-squares' or 'inner-product', got 'x'"),
        ({"regularization": -1}, "regularization must be a number of at least 0, got -1"),
        ({"relative": "no"}, "relative must be True or False, got 'no'"),
        ({"center": "mean"}, "center must be 'uniform' or 'zero', got 'mean'"),
        ({"tolerance": "small"}, "tolerance must be a number of at least 0, got 'small'"),
        ({"nonnegative": 2}, "nonnegative must be True, False or 'clip', got 2"),
        ({"hold_count": 1}, "hold_count must be True or False, got 1"),
        ({"exact": "yes"}, "exact must be True or False, got 'yes'"),
    ],
)
def test_a_memory_refuses_settings_of_the_pursuit_before_it_has_taken_anything_in(
    options: dict[str, Any], message: str
) -> None:
    calls: list[Callable[[], object]] = [
        lambda: rc.pursue(torch.eye(3), 2, **options),
        lambda: rc.GradientMatching(lambda: rc.models.mlp(2, 2), 5, **options),
        lambda: rc.LocalGradientMatching(5, **options),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call()


def test_weights_that_cannot_be_finite_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.pursuit.fit.RidgeFit.solve", lambda *_: random_rows(1, 3)[0] * torch.nan)
    with pytest.raises(ValueError, match="weights must be finite, got NaN or infinity"):
        rc.pursue(random_rows(20, 5), 3)


def test_rows_that_need_no_weight_are_dropped_like_those_that_want_a_negative_one() -> None:
    G = torch.eye(4, dtype=torch.float64)
    g = torch.tensor([4.0, 2.0, 1e-12, -1.0])
    assert rc.pursue(G, 4, target=g, regularization=0.0).indices.tolist() == [0, 1]
    assert len(rc.pursue(G, 4, target=g, regularization=0.0, nonnegative=False)) == 4


def test_rows_that_were_dropped_are_not_tried_again() -> None:
    """Otherwise two that need no weight would take turns for ever."""
    g = torch.tensor([4.0, 2.0, 1e-12, 1e-12, -1.0], dtype=torch.float64)
    coreset = rc.pursue(torch.eye(5, dtype=torch.float64), 3, target=g, regularization=0.0)
    assert coreset.indices.tolist() == [0, 1]


def test_joined_rows_live_where_the_rows_of_their_parts_do() -> None:
    class Elsewhere(InMemory):
        def rows(self, indices: Tensor) -> Tensor:
            return super().rows(indices).to("meta")

    parts = Joined(Elsewhere(torch.ones(3, 2)), Elsewhere(torch.ones(4, 2)))
    for indices in ([0, 5, 2], [0, 1], [6]):
        rows = parts.rows(torch.tensor(indices))
        assert (rows.device.type, rows.shape) == ("meta", (len(indices), 2))


def test_numpy_numbers_are_numbers() -> None:
    G = random_rows(30, 5)
    plain = rc.pursue(G, 3, regularization=0.5, tolerance=0.25)
    numpy = rc.pursue(G, np.int64(3), regularization=np.float32(0.5), tolerance=np.float64(0.25))  # type: ignore[arg-type]
    assert torch.equal(plain.weights, numpy.weights)
    assert check_count("epochs", np.int32(3)) == 3
    assert check_seed(np.uint8(0)) == 0
    assert type(check_count("epochs", np.int32(3))) is type(check_seed(np.uint8(0))) is int


def test_a_coreset_tells_its_size_error_and_weights_in_one_line() -> None:
    coreset = rc.Coreset(torch.tensor([4, 2]), torch.tensor([1.5, 3.0], dtype=torch.float64), 0.01234567)
    assert repr(coreset) == "Coreset(2 rows, error 0.01235, weights 1.5 to 3 that add up to 4.5)"
    assert repr(rc.Coreset(coreset.indices[:0], coreset.weights[:0], 0.0)) == "Coreset(0 rows, error 0)"


@pytest.mark.parametrize(
    "name", ["size", "count", "regularization", "rule", "center", "tolerance", "nonnegative", "target"]
)
@pytest.mark.parametrize(
    "value", ["much", b"1", 1j, [1.0], object(), float("nan"), -(10**400), 10**400, torch.ones(2), np.ones(2), dict]
)
def test_exotic_options_get_one_sentence(name: str, value: object) -> None:
    arguments: dict[str, object] = {"size": 2, name: value}
    with pytest.raises(ValueError, match=rf"^{name} must [^\n]*$"):
        rc.pursue(torch.ones(5, 3), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "embeddings",
    ["rows", None, [[1.0], []], np.array([["a"]]), torch.ones(2, 2, dtype=torch.complex64),
     torch.ones(2, 2).to_sparse(), torch.ones(2, 2, device="meta"), torch.full((2, 2), 1e200, dtype=torch.float64)],
)  # fmt: skip
def test_exotic_embeddings_get_one_sentence(embeddings: object) -> None:
    with pytest.raises(ValueError, match=r"^embeddings must [^\n]*$"):
        rc.pursue(embeddings, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((torch.ones(3, 2), 4), {}, "size must be between 1 and the 3 candidates, got 4: pass a smaller size"),
        ((torch.ones(3, 2), 0), {}, "size must be a whole number of at least 1, or a fraction of all up to 1, got 0"),
        (
            (torch.ones(3, 2), 1.5),
            {},
            "size must be a whole number of at least 1, or a fraction of all up to 1, got 1.5",
        ),
        ((torch.ones(3, 2), None), {}, "size or tolerance must be given"),
        ((torch.ones(3), 1), {}, "embeddings must be a matrix"),
        ((torch.zeros(3, 2), 1), {}, "embeddings must not all be zero"),
        ((torch.tensor([[1.0, torch.nan]]), 1), {}, "embeddings must be finite"),
        ((torch.ones(3, 2), 1), {"target": torch.ones(3)}, "target must have the 2 entries of a row"),
        ((torch.ones(3, 2), 1), {"regularization": -1.0}, "regularization must be a number of at least 0"),
        ((torch.ones(3, 2), 1), {"rule": "best"}, "rule must be 'least-squares' or 'inner-product', got 'best'"),
        ((torch.ones(3, 2), 1), {"count": -1}, "count must be a number of at least 0, got -1"),
        ((torch.ones(3, 2), 1), {"center": "mean"}, "center must be 'uniform' or 'zero', got 'mean'"),
        ((torch.ones(3, 2), 1), {"tolerance": -1.0}, "tolerance must be a number of at least 0"),
        ((torch.ones(3, 2), 1), {"nonnegative": "drop"}, "nonnegative must be True, False or 'clip', got 'drop'"),
    ],
)
def test_bad_input_gets_one_clear_sentence(
    arguments: "tuple[Tensor, int]", options: "dict[str, object]", message: str
) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        rc.pursue(*arguments, **options)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_choices_and_batches_can_be_compared_by_identity() -> None:
    coreset, other = (rc.pursue(random_rows(9, 4), 3) for _ in range(2))
    batch = rc.Batch.arriving(torch.zeros(3, 1), torch.zeros(3))
    assert coreset == coreset != other
    assert batch == batch != rc.Batch.arriving(torch.zeros(3, 1), torch.zeros(3))
    assert len({coreset, other}) == 2


def test_tables_and_lists_of_numbers_are_matrices() -> None:
    G = torch.randn(30, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    names = ["products", *"abcdefg"]  # a column may be called as what a dictionary can do
    expected = rc.pursue(G, 5)
    for same in (G.tolist(), pd.DataFrame(G.numpy(), columns=names), pl.DataFrame(G.numpy(), schema=names)):
        coreset = rc.pursue(same, 5)
        assert torch.equal(coreset.indices, expected.indices) and torch.equal(coreset.weights, expected.weights)
    with pytest.raises(ValueError, match="embeddings must be numbers"):
        rc.pursue([["a", "b"], ["c", "d"]], 1)


@pytest.mark.parametrize("scale", [1e3, 1e4, 1e5])
@pytest.mark.parametrize("size", [30, 100])  # of which the larger is what is left once others have been dropped
@pytest.mark.parametrize("seed", range(3))
def test_outliers_that_are_nearly_parallel_and_stand_for_several_do_not_hide_the_others(
    seed: int, size: int, scale: float
) -> None:
    source = torch.Generator().manual_seed(seed)
    G = torch.randn(120, 30, generator=source)
    G[:2] = scale * (torch.randn(30, generator=source) + 1e-3 * torch.randn(2, 30, generator=source))
    weights = 5 * torch.rand(120, generator=source, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they carry the target
        coreset = rc.pursue(G, size, target=weights @ G.double())
    others = float((weights[2:] @ G[2:].double()).norm() / (weights @ G.double()).norm())
    assert len(coreset) == size
    assert coreset.error < 0.2 * others


@pytest.mark.parametrize("scale", [1e7, 1e8, 1e9])
@pytest.mark.filterwarnings("ignore:the target should be carried by many rows")
def test_huge_outliers_that_are_as_good_as_the_same_end_in_no_error(scale: float) -> None:
    source = torch.Generator().manual_seed(0)
    G = torch.randn(120, 30, generator=source)
    G[:2] = scale * (torch.randn(30, generator=source) + 1e-7 * torch.randn(2, 30, generator=source))
    coreset = rc.pursue(G, 100, target=5 * torch.rand(120, generator=source, dtype=torch.float64) @ G.double())
    assert coreset.error < 1e-5
