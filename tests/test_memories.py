"""What is particular to each memory."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.utils.data import DataLoader

import recollect as rc
from recollect.memories.herding import fair_shares, herd


def numbers(n: int) -> tuple[Tensor, Tensor]:
    return torch.arange(float(n))[:, None], torch.zeros(n, dtype=torch.long)


@pytest.mark.parametrize("how", ["whole", "in pieces", "saved in between", "merged"])
def test_a_reservoir_keeps_each_item_with_probability_m_over_n(how: str, tmp_path: Path) -> None:
    n, m, streams = 60, 15, 800
    inputs, targets = numbers(n)
    counts = np.zeros(n)
    for seed in range(streams):
        memory = rc.Reservoir(m, seed=2 * seed)
        if how == "merged":
            other = rc.Reservoir(m, seed=2 * seed + 1)
            memory.update(inputs[:25], targets[:25])
            other.update(inputs[25:], targets[25:])
            memory = memory.merge(other)
        else:
            for rows in torch.arange(n).split(n if how == "whole" else 7):
                memory.update(inputs[rows], targets[rows])
                if how == "saved in between" and seed < 150:
                    memory.save(tmp_path)
                    memory = rc.load_memory(tmp_path)  # type: ignore[assignment]
        assert len(memory) == m
        assert torch.equal(memory.batch.inputs[:, 0].long(), memory.batch.ids)
        counts[memory.batch.ids] += 1
    expected = streams * m / n
    # Without replacement, the squared deviations add up to a chi-square scaled by 1 - m/n.
    statistic = ((counts - expected) ** 2).sum() / (expected * (1 - m / n))
    assert 1e-3 < stats.chi2.sf(statistic, n - 1) < 1 - 1e-6


def test_a_reservoir_does_not_depend_on_how_the_stream_is_cut() -> None:
    inputs, targets = numbers(200)
    whole, pieces = rc.Reservoir(20, seed=3), rc.Reservoir(20, seed=3)
    whole.update(inputs, targets)
    for rows in torch.arange(200).split(7):
        pieces.update(inputs[rows], targets[rows])
    assert torch.equal(whole.batch.ids, pieces.batch.ids)


def test_other_processes_can_read_the_dataset() -> None:
    memory = rc.Reservoir(5)
    memory.update(*numbers(50))
    parts = list(DataLoader(memory.dataset, batch_size=2, num_workers=1, generator=torch.Generator()))
    assert torch.equal(torch.cat([part.inputs for part in parts]), memory.batch.inputs)
    assert torch.equal(torch.cat([part.weights for part in parts]), memory.batch.weights)


def test_reservoirs_with_the_same_seed_cannot_be_merged() -> None:
    memories = [rc.Reservoir(5, seed=1) for _ in range(2)]
    for memory in memories:
        memory.update(*numbers(10))
    with pytest.raises(ValueError, match="memories to be merged must have different seeds, got 1 twice"):
        memories[0].merge(memories[1])


def test_class_balance_is_kept_and_old_classes_make_room() -> None:
    memory = rc.ClassBalanced(12)
    generator = torch.Generator().manual_seed(0)
    for first in (0, 2, 4):
        targets = first + torch.randint(0, 2, (100,), generator=generator)
        memory.update(torch.zeros(100, 1), targets)
        counts = torch.bincount(memory.batch.targets)[: first + 2]
        assert counts.max() - counts.min() <= 1
        assert len(memory) == 12


def test_a_rare_class_is_admitted_as_long_as_it_is_under_its_share() -> None:
    memory = rc.ClassBalanced(10)
    memory.update(torch.zeros(100, 1), torch.zeros(100, dtype=torch.long))
    memory.update(torch.zeros(3, 1), torch.ones(3, dtype=torch.long))
    assert torch.bincount(memory.batch.targets).tolist() == [7, 3]


def test_class_balance_needs_class_numbers() -> None:
    with pytest.raises(ValueError, match="targets must be whole class numbers"):
        rc.ClassBalanced(3).update(torch.zeros(5, 1), torch.zeros(5))


def test_a_sliding_window_keeps_the_last() -> None:
    memory = rc.SlidingWindow(5)
    for rows in torch.arange(20).split(3):
        memory.update(torch.zeros(len(rows), 1), rows)
    assert memory.batch.ids.tolist() == [15, 16, 17, 18, 19]
    assert memory.batch.weights.tolist() == [4.0] * 5


def test_herding_is_the_greedy_choice() -> None:
    """Against the definition: at each step the row that brings the mean closest to the target."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    mean = features.mean(0)
    chosen: list[int] = []
    for _ in range(8):
        rest = [i for i in range(30) if i not in chosen]
        chosen.append(min(rest, key=lambda i: float((features[[*chosen, i]].mean(0) - mean).norm())))
    assert herd(features, mean, 8).tolist() == chosen


def test_herding_tracks_class_means_exactly() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(300, 3, generator=generator)
    targets = torch.arange(300) % 2
    memory = rc.Herding(40)
    for rows in torch.arange(300).split(50):
        memory.update(inputs[rows], targets[rows])
    for label in (0, 1):
        mine = memory.batch.targets == label
        error = (memory.batch.inputs[mine].mean(0) - inputs[targets == label].mean(0)).norm()
        assert float(error) < 0.05
        assert float(memory.batch.weights[mine].sum()) == pytest.approx(150)


def test_herding_with_a_function_of_the_inputs(tmp_path: Path) -> None:
    memory = rc.Herding(4, features=lambda inputs: inputs[:, :1] ** 2)
    memory.update(*numbers(20))
    memory.save(tmp_path)
    with pytest.raises(ValueError, match="features must be passed to load_memory"):
        rc.load_memory(tmp_path)
    resumed = rc.load_memory(tmp_path, features=lambda inputs: inputs[:, :1] ** 2)
    for m in (memory, resumed):
        m.update(*numbers(20))
    assert torch.equal(memory.batch.ids, resumed.batch.ids)
    with pytest.raises(ValueError, match="features must return one vector per example"):
        rc.Herding(4, features=lambda inputs: inputs[:, 0]).update(*numbers(20))


@pytest.mark.parametrize(
    ("counts", "capacity", "shares"),
    [([10, 10, 10], 9, [3, 3, 3]), ([1, 10, 10], 9, [1, 4, 4]), ([1, 1], 9, [1, 1]), ([5, 5, 5], 4, [2, 1, 1])],
)
def test_shares_are_fair(counts: list[int], capacity: int, shares: list[int]) -> None:
    assert fair_shares(counts, capacity) == shares


def test_gss_prefers_gradients_that_point_elsewhere() -> None:
    """Of many near-copies and a few examples whose gradients are opposite, the few are kept."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 2)
    generator = torch.Generator().manual_seed(0)
    common = torch.tensor([3.0, 0.0]) + 0.01 * torch.randn(200, 2, generator=generator)
    rare = torch.tensor([3.0, 0.0]) + 0.01 * torch.randn(6, 2, generator=generator)
    memory = rc.GSS(8)
    memory.update(common, torch.zeros(200, dtype=torch.long), model=model)
    memory.update(rare, torch.ones(6, dtype=torch.long), model=model)
    assert int((memory.batch.targets == 1).sum()) >= 2
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("kind", [rc.GSS, rc.LocalGradientMatching])
def test_local_memories_need_a_model(kind: "type[rc.Memory]") -> None:
    with pytest.raises(ValueError, match="needs its model, got None: pass model="):
        kind(5).update(*numbers(10))


def test_the_local_target_is_the_weighted_kept_plus_what_arrived() -> None:
    """With everything kept before, local matching at one model equals selection with that model as the only draw."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = rc.models.mlp(1, 2, hidden=(8,))
    inputs, targets = torch.linspace(-2, 2, 40)[:, None], torch.arange(40) % 2
    memory = rc.LocalGradientMatching(10, dim=50)
    memory.update(inputs[:8], targets[:8], model=model)
    memory.update(inputs[8:], targets[8:], model=model)
    coreset = rc.select(lambda: copy.deepcopy(model), inputs, targets, 10, inits=1, dim=50)
    assert sorted(coreset.indices.tolist()) == memory.batch.ids.tolist()


def test_options_about_initialisation_have_no_meaning_for_the_local_memory() -> None:
    with pytest.raises(ValueError, match="inits has no meaning"):
        rc.LocalGradientMatching(5, inits=3)
