"""k-means per class, against what it must be."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

import recollect as rc
from recollect.memories.clustering import _spread, _thinned, represent, shares


def blobs(seed: int, sizes: tuple[int, ...]) -> tuple[NDArray[np.float32], list[list[int]]]:
    """Groups of rows that lie far from one another, shuffled; and which rows are in which group."""
    random = np.random.default_rng(seed)
    groups = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    rows = random.normal(size=(len(groups), 3)) + 12 * random.permutation(np.eye(3))[groups]
    return rows.astype(np.float32), [np.flatnonzero(groups == i).tolist() for i in range(len(sizes))]


def best_partition(rows: NDArray[np.float32], weights: NDArray[np.float64], k: int) -> list[list[int]]:
    """The clusters with the least sum of weighted squared distances from their means, out of all there are."""
    best, least = None, np.inf
    for labels in itertools.product(range(k), repeat=len(rows)):
        groups = [[i for i, label in enumerate(labels) if label == g] for g in range(k)]
        if not all(groups):
            continue
        cost = 0.0
        for group in groups:
            mean = np.average(rows[group], axis=0, weights=weights[group])
            cost += float((weights[group] * np.square(rows[group] - mean).sum(1)).sum())
        if cost < least:
            best, least = groups, cost
    assert best is not None
    return best


@pytest.mark.parametrize("seed", range(6))
def test_kept_are_nearest_to_the_centres_of_the_best_clusters_and_weigh_as_much(seed: int) -> None:
    rows, _ = blobs(seed, (3, 2, 3))
    weights = np.random.default_rng(seed).permutation(len(rows)) + 1.0  # no ties
    expected = {}
    for group in best_partition(rows, weights, 3):
        mean = np.average(rows[group], axis=0, weights=weights[group])
        expected[group[int(np.square(rows[group] - mean).sum(1).argmin())]] = weights[group].sum()
    chosen, sizes = represent(rows, weights, 3, seed)
    assert dict(zip(chosen.tolist(), sizes.tolist(), strict=True)) == expected


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 60),
    count=st.integers(1, 60),
    kinds=st.integers(1, 40),
)
def test_weights_move_and_none_is_lost(seed: int, n: int, count: int, kinds: int) -> None:
    """Also where many rows are the same: fewer are then kept, never as many as none."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(kinds, 2)).astype(np.float32)[random.integers(0, kinds, n)]
    weights = random.integers(1, 100, n).astype(float)
    chosen, sizes = represent(rows, weights, count, seed)
    assert 1 <= len(chosen) == len(sizes) <= min(count, n)
    assert len(chosen) >= min(count, len(np.unique(rows, axis=0)), n) - (kinds < n)
    assert (np.diff(chosen) > 0).all()
    assert sizes.sum() == weights.sum()
    assert (sizes >= weights[chosen]).all()


def test_starting_rows_are_spread_over_the_groups() -> None:
    rows, groups = blobs(0, (60, 50, 40))
    for seed in range(10):
        start = _spread(rows, np.ones(len(rows)), 3, np.random.default_rng(seed))
        assert [len(set(start) & set(group)) for group in groups] == [1, 1, 1]


def test_what_its_neighbour_stands_in_for_goes_first() -> None:
    rows = np.array([[0.0], [0.1], [5.0], [5.3], [9.0]], dtype=np.float32)
    assert _thinned(rows, np.ones(5), 4).tolist() in ([0, 2, 3, 4], [1, 2, 3, 4])
    assert len({2, 3} & set(_thinned(rows, np.ones(5), 3).tolist())) == 1
    heavy = np.array([1.0, 50.0, 1.0, 1.0, 1.0])
    assert _thinned(rows, heavy, 4).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("counts", "available", "capacity", "expected"),
    [
        ([50.0, 50.0], [50, 50], 10, [5, 5]),
        ([90.0, 10.0], [90, 10], 10, [9, 1]),
        ([10_000.0, 1.0, 1.0], [100, 1, 1], 10, [8, 1, 1]),
        ([500.0, 500.0], [3, 500], 10, [3, 7]),
        ([5.0, 9.0, 7.0], [5, 9, 7], 2, [0, 1, 1]),
        ([2.0, 2.0], [2, 2], 10, [2, 2]),
    ],
)
def test_classes_share_by_what_was_seen(
    counts: list[float], available: list[int], capacity: int, expected: list[int]
) -> None:
    assert shares(counts, available, capacity) == expected


def table(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three classes, of which one is rare; columns of very different scale."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.multinomial(torch.tensor([0.7, 0.28, 0.02]), n, replacement=True, generator=generator)
    inputs = torch.randn(n, 4, generator=generator) + 3 * torch.eye(4)[targets]
    return inputs * torch.tensor([1.0, 1e-4, 1e3, 1.0]), targets


@pytest.mark.parametrize("step", [7, 100, 1000])
def test_each_class_weighs_what_was_seen_of_it_however_the_stream_is_cut(step: int) -> None:
    inputs, targets = table(1000)
    memory = rc.Clustering(40)
    for x, y in zip(inputs.split(step), targets.split(step), strict=True):
        memory.update(x, y)
    assert len(memory) == 40
    for label in range(3):
        mine = memory.batch.targets == label
        assert float(memory.batch.weights[mine].sum()) == float((targets == label).sum())
        assert int(mine.sum()) == pytest.approx(max(1, 40 * float((targets == label).float().mean())), abs=1)


def test_units_do_not_matter_unless_asked() -> None:
    inputs, targets = table(300)
    scales = torch.tensor([1.0, 4.0, 0.5, 2.0])  # powers of two: exact

    def kept(x: Tensor, **options: bool) -> list[int]:
        memory = rc.Clustering(12, **options)
        for part, y in zip(x.split(100), targets.split(100), strict=True):
            memory.update(part, y)
        return memory.batch.ids.tolist()

    assert kept(inputs) == kept(inputs * scales) == kept(inputs, standardize=True)
    assert kept(inputs, standardize=False) != kept(inputs * scales, standardize=False)
    images = inputs.view(300, 1, 2, 2)
    assert kept(images) == kept(inputs, standardize=False) == kept(images * 8)
    assert kept(images, standardize=True) == kept(inputs)


def test_statistics_are_those_of_everything_seen() -> None:
    inputs, targets = table(500)
    memory = rc.Clustering(10)
    for x, y in zip(inputs.split(90), targets.split(90), strict=True):
        memory.update(x, y)
    everything = inputs.double()
    assert torch.allclose(memory._state["mean"], everything.mean(0), rtol=1e-10)
    assert torch.allclose(memory._state["squares"], (everything - everything.mean(0)).square().sum(0), rtol=1e-10)


def test_whole_weights_count_as_copies() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(90, 3, generator=generator), torch.randint(0, 2, (90,), generator=generator)
    counts = torch.randint(1, 5, (90,), generator=generator)
    weighted, copied = rc.Clustering(10), rc.Clustering(10)
    for part in torch.arange(90).split(30):
        weighted.update(inputs[part], targets[part], weights=counts[part])
        rows = part.repeat_interleave(counts[part])
        copied.update(inputs[rows], targets[rows])
    for name in ("mean", "squares"):
        assert torch.allclose(weighted._state[name], copied._state[name])
    for label in (0, 1):
        weights = [float(m.batch.weights[m.batch.targets == label].sum()) for m in (weighted, copied)]
        assert weights == pytest.approx([float(counts[targets == label].sum())] * 2)
    deviation = (weighted._state["squares"] / weighted.total_weight).clone()
    weighted.forget(weighted.batch.ids[:4])
    assert torch.allclose(weighted._state["squares"] / weighted.total_weight, deviation)


def test_quantities_are_clustered_with_the_inputs() -> None:
    """Inputs that are all alike, and targets of two levels of any scale: one row is kept for each."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 2, generator=generator)
    high = torch.arange(200) % 4 == 0
    for scale, shape in ((1e-3, (200,)), (1e6, (200, 1))):
        memory = rc.Clustering(2)
        targets = (scale * (high.float() + 0.01 * torch.randn(200, generator=generator))).view(shape)
        memory.update(inputs * 1e-3, targets)
        memory.update(inputs * 1e-3, targets)
        assert memory.batch.weights.sum() == 400
    alone = rc.Clustering(2, features=torch.zeros_like)
    alone.update(inputs, high.float())
    alone.update(inputs, high.float())
    assert sorted(alone.batch.weights.tolist()) == [100.0, 300.0]


def test_features_of_the_users_decide_what_is_near() -> None:
    inputs = torch.stack([torch.linspace(0, 100, 40), torch.arange(40) % 2 * 1.0], dim=1)
    memory = rc.Clustering(2, features=lambda x: x[:, 1:])
    memory.update(inputs[:20], torch.zeros(20, dtype=torch.long))
    memory.update(inputs[20:], torch.zeros(20, dtype=torch.long))
    assert sorted(memory.batch.inputs[:, 1].tolist()) == [0.0, 1.0]
    assert memory.batch.weights.tolist() == [20.0, 20.0]
    with pytest.raises(ValueError, match="features must return finite floating-point numbers, always 1 per example"):
        memory._features = lambda x: x[:, [0, 1]]
        memory.update(inputs, torch.zeros(40, dtype=torch.long))


def test_more_classes_than_places() -> None:
    memory = rc.Clustering(3)
    memory.update(torch.randn(50, 2, generator=torch.Generator().manual_seed(0)), torch.arange(50).sqrt().long())
    assert len(memory) == 3
    assert float(memory.batch.weights.sum()) == pytest.approx(50)


def test_bad_options_are_refused() -> None:
    for standardize in ("yes", 1, 0.5):
        with pytest.raises(ValueError, match="standardize must be True, False or None, got"):
            rc.Clustering(3, standardize=standardize)
    memory = rc.Clustering(3)
    with pytest.raises(ValueError, match="squares are finite"):
        memory.update(torch.full((5, 1), 1e200, dtype=torch.float64), torch.zeros(5, 1, dtype=torch.float64))
    assert memory.seen == 0


def test_the_number_of_threads_changes_nothing(tmp_path: Path) -> None:
    program = """
import torch, recollect as rc
torch.manual_seed(0)
memory = rc.Clustering(60)
for _ in range(3):
    memory.update(torch.randn(3000, 20), torch.randint(0, 2, (3000,)))
print(memory.batch.ids.tolist(), memory.batch.weights.tolist())
"""
    kept = [
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"OMP_NUM_THREADS": n, "OPENBLAS_NUM_THREADS": n, "PYTHONPATH": str(Path(rc.__file__).parents[1])},
        ).stdout
        for n in ("1", "2")
    ]
    assert kept[0] == kept[1] != ""
