import numpy as np
import pytest
import torch

import recollect as rc
from recollect.pursuit.elimination import eliminate
from tests.oracles import fit_from_scratch


def objective(G: np.ndarray, g: np.ndarray, regularization: float) -> float:
    gamma = fit_from_scratch(G, g, regularization, "zero")
    return float(np.square(gamma @ G - g).sum() + regularization * np.square(gamma).sum())


@pytest.mark.parametrize("seed", range(5))
def test_each_drop_costs_least_of_all_that_could_be_made(seed: int) -> None:
    G = torch.randn(25, 30, generator=torch.Generator().manual_seed(seed)).double() + 0.3
    g = G.sum(0) * 3
    left = list(range(25))
    while len(left) > 14:
        costs = [objective(G[[j for j in left if j != i]].numpy(), g.numpy(), 0.5) for i in left]
        left.remove(left[int(np.argmin(costs))])
    kept, gamma = eliminate(G @ G.T, G @ g, 14, 0.5, uniform=False, nonnegative=False)
    assert kept.tolist() == left
    assert np.abs(gamma.numpy() - fit_from_scratch(G[kept].numpy(), g.numpy(), 0.5, "zero")).max() < 1e-9


@pytest.mark.parametrize("center", ["uniform", "zero"])
def test_weights_are_those_of_the_rows_that_are_left(center: str) -> None:
    G = torch.randn(40, 60, generator=torch.Generator().manual_seed(0)).double() + 0.3
    g = 5 * G.sum(0)
    kept, gamma = eliminate(G @ G.T, G @ g, 25, 2.0, uniform=center == "uniform", nonnegative=False)
    assert np.abs(gamma.numpy() - fit_from_scratch(G[kept].numpy(), g.numpy(), 2.0, center)).max() < 1e-9


def test_rows_that_want_a_negative_weight_go_first() -> None:
    G = torch.randn(40, 60, generator=torch.Generator().manual_seed(1)).double()
    g = G[:20].sum(0) - 4 * G[20:25].sum(0)
    kept, gamma = eliminate(G @ G.T, G @ g, 24, 0.1, uniform=False, nonnegative=True)
    assert not set(range(20, 25)) & set(kept.tolist())
    assert float(gamma.min()) >= 0


@pytest.mark.parametrize("hold_count", [True, False])
def test_dropping_matches_as_well_as_picking(hold_count: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    G = (torch.randn(220, 300, generator=generator) * torch.logspace(0, -2, 300) + 0.05).float()
    options = {"target": 20 * G.double().sum(0), "count": 4400, "hold_count": hold_count}
    dropped, picked = rc.pursue(G, 150, **options), rc.pursue(G, 150, exact=True, **options)  # type: ignore[arg-type]
    assert len(dropped) == 150
    assert dropped.error <= 1.02 * picked.error
    assert bool((dropped.weights > 0).all())
    if hold_count:
        assert float(dropped.weights.sum()) == pytest.approx(4400, rel=0.02)
