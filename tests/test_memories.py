"""What is particular to each memory."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import recollect as rc
from recollect.embedding.plan import Plan, make_plan
from recollect.memories.herding import fair_shares, herd
from recollect.memories.local_embedding import embed_at
from recollect.randomness import uniform_keys
from tests.second_device import DEVICE, SecondDevice


def numbers(n: int) -> tuple[Tensor, Tensor]:
    return torch.arange(float(n))[:, None], torch.zeros(n, dtype=torch.long)


@pytest.mark.parametrize("how", ["whole", "in pieces", "resumed in between", "merged"])
def test_a_reservoir_keeps_each_item_with_probability_m_over_n(how: str) -> None:
    n, m, streams = 60, 15, 500
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
            for rows in torch.arange(n).split(n if how == "whole" else 13):
                memory.update(inputs[rows], targets[rows])
                if how == "resumed in between":
                    state = memory.state_dict()
                    memory = rc.Reservoir(m, seed=2 * seed)
                    memory.load_state_dict(state)
        assert len(memory) == m
        assert torch.equal(memory.batch.inputs[:, 0].long(), memory.batch.ids)
        counts[memory.batch.ids] += 1
    assert is_uniform(counts, streams, m)


def is_uniform(counts: NDArray[np.float64], draws: int, m: int) -> bool:
    """Whether m places were drawn out of all at random, so many times, by how often each was."""
    n = len(counts)
    expected = draws * m / n
    # Without replacement, the squared deviations add up to a chi-square scaled by 1 - m/n.
    statistic = ((counts - expected) ** 2).sum() / (expected * (1 - m / n))
    return bool(1e-3 < stats.chi2.sf(statistic, n - 1) < 1 - 1e-6)


@pytest.mark.parametrize(
    ("capacities", "seen", "kept"),
    [
        ((10, 1), (30, 30), 1),
        ((1, 10), (30, 30), 1),
        ((15, 6), (20, 40), 6),
        ((6, 15), (40, 20), 6),
        ((15, 25), (40, 20), 15),  # the second has kept everything
        ((20, 10), (15, 10), 20),  # both have
        ((30, 10), (10, 10), 20),
    ],
)
def test_reservoirs_of_any_capacities_merge_into_a_uniform_sample(
    capacities: tuple[int, int], seen: tuple[int, int], kept: int
) -> None:
    n = sum(seen)
    inputs, targets = numbers(n)
    counts, streams = np.zeros(n), 400
    for seed in range(streams):
        first, second = (rc.Reservoir(capacities[i], seed=2 * seed + i) for i in (0, 1))
        first.update(inputs[: seen[0]], targets[: seen[0]])
        second.update(inputs[seen[0] :], targets[seen[0] :])
        merged = first.merge(second)
        assert len(merged) == kept
        assert merged.seen == n
        assert torch.equal(merged.batch.inputs[:, 0].long(), merged.batch.ids)
        assert float(merged.batch.weights.sum()) == pytest.approx(n)
        counts[merged.batch.ids] += 1
    assert (counts == streams).all() if kept == n else is_uniform(counts, streams, kept)


def test_a_merged_reservoir_goes_on_as_a_uniform_sample() -> None:
    counts, streams = np.zeros(40), 400
    inputs, targets = numbers(40)
    for seed in range(streams):
        parts = [rc.Reservoir(capacity, seed=3 * seed + i) for i, capacity in enumerate((8, 5, 9))]
        for part, rows in zip(parts, torch.arange(30).split(10), strict=True):
            part.update(inputs[rows], targets[rows])
        memory = parts[0].merge(parts[1]).merge(parts[2])
        memory.update(inputs[30:], targets[30:])
        assert memory.capacity == len(memory) == 5
        counts[memory.batch.ids] += 1
    assert is_uniform(counts, streams, 5)


def test_a_reservoir_does_not_depend_on_how_the_stream_is_cut() -> None:
    inputs, targets = numbers(200)
    whole, pieces = rc.Reservoir(20, seed=3), rc.Reservoir(20, seed=3)
    whole.update(inputs, targets)
    for rows in torch.arange(200).split(7):
        pieces.update(inputs[rows], targets[rows])
    assert torch.equal(whole.batch.ids, pieces.batch.ids)


def test_a_weighted_reservoir_stands_for_each_example_as_much_as_it_weighs() -> None:
    """On average over seeds, to within four standard errors, and always in sum: whoever cuts or merges the stream."""
    n, capacity, trials = 24, 6, 600
    weights = torch.arange(1, n + 1).double()
    weights[[3, 20]] = 200.0  # these stay for sure, as they are
    inputs, targets = torch.zeros(n, 1), torch.zeros(n)
    for how in ("at once", "merged"):
        found = torch.zeros(trials, n, dtype=torch.float64)
        for seed in range(trials):
            memory = rc.Reservoir(capacity, seed=2 * seed)
            if how == "at once":
                memory.update(inputs, targets, weights=weights)
            else:
                other = rc.Reservoir(capacity, seed=2 * seed + 1)
                memory.update(inputs[:15], targets[:15], weights=weights[:15])
                other.update(inputs[15:], targets[15:], weights=weights[15:])
                memory = memory.merge(other)
            assert len(memory) == capacity
            assert float(memory.batch.weights.sum()) == pytest.approx(float(weights.sum()), rel=1e-5)
            found[seed, memory.batch.ids] = memory.batch.weights.double()
        assert torch.allclose(found[:, [3, 20]], weights[[3, 20]])
        share = (weights.sum() - 400) / (capacity - 2)  # what the others weigh if they stay, with probability w / share
        bound = 4 * (weights * share / trials).sqrt() + 1e-5 * weights
        assert ((found.mean(0) - weights).abs() <= bound).all()


def test_a_weighted_reservoir_does_not_depend_on_how_the_stream_is_cut() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = 0.5 + torch.rand(60, generator=generator)
    kept = []
    for size in (1, 7, 60):
        memory = rc.Reservoir(5)
        for x, w in zip(torch.arange(60.0)[:, None].split(size), weights.split(size), strict=True):
            memory.update(x, torch.zeros(len(x)), weights=w)
        memory.update(DataLoader(rc.memories.WeightedDataset(memory.batch), 2, collate_fn=_pairs, generator=generator))
        kept.append(memory.batch)
    assert all(torch.equal(batch.ids, kept[0].ids) for batch in kept)
    assert all(torch.equal(batch.weights, kept[0].weights) for batch in kept)


def _pairs(samples: list[rc.memories.Sample]) -> tuple[Tensor, Tensor]:
    return torch.stack([one.inputs for one in samples]), torch.stack([one.targets for one in samples])


def test_a_reservoir_that_is_weighed_later_keeps_its_uniform_sample_as_it_is() -> None:
    counts = torch.zeros(50)
    for seed in range(400):
        memory = rc.Reservoir(5, seed=seed)
        memory.update(torch.zeros(40, 1), torch.zeros(40))
        memory.update(torch.zeros(10, 1), torch.zeros(10), weights=torch.full((10,), 4.0))
        counts[memory.batch.ids] += memory.batch.weights / 400
    assert float(counts[:40].sum()) == pytest.approx(40, rel=0.1)
    assert float(counts[40:].sum()) == pytest.approx(40, rel=0.1)


def test_other_processes_can_read_the_dataset() -> None:
    memory = rc.Reservoir(5)
    memory.update(*numbers(50))
    parts = list(DataLoader(memory.dataset, batch_size=2, num_workers=1, generator=torch.Generator()))
    assert torch.equal(torch.cat([part.inputs for part in parts]), memory.batch.inputs)
    assert torch.equal(torch.cat([part.weights for part in parts]), memory.batch.weights)


def test_reservoirs_on_two_devices_are_merged_on_the_first() -> None:
    memories = [rc.Reservoir(5, seed=seed) for seed in (1, 2)]
    for memory in memories:
        memory.update(*numbers(10))
    merged = memories[0].merge(memories[1])
    with SecondDevice():
        memories[1].to(DEVICE)
        there, here = memories[1].merge(memories[0]), memories[0].merge(memories[1])
        assert there.batch.inputs.device == DEVICE
    assert torch.equal(here.batch.ids, merged.batch.ids) and torch.equal(here.batch.weights, merged.batch.weights)


def test_reservoirs_with_the_same_seed_cannot_be_merged() -> None:
    memories = [rc.Reservoir(5, seed=1) for _ in range(2)]
    for memory in memories:
        memory.update(*numbers(10))
    with pytest.raises(ValueError, match="memories to be merged must have different seeds, got 1 twice"):
        memories[0].merge(memories[1])
    other = rc.Reservoir(5, seed=2)
    other.update(*numbers(10))
    merged = other.merge(memories[0])
    with pytest.raises(ValueError, match="must have different seeds, got one that was merged before twice"):
        merged.merge(memories[1])
    with pytest.raises(ValueError, match="a reservoir can be merged with a reservoir, got SlidingWindow"):
        other.merge(rc.SlidingWindow(3))
    wider = rc.Reservoir(3, seed=9)
    assert other.merge(wider).seen == 10  # which has seen nothing
    wider.update(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"inputs must keep the shape \(1,\)"):
        other.merge(wider)


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


def test_evictions_are_random_among_the_largest_class() -> None:
    """Each of the first ten is evicted as often as the others when five of another class arrive."""
    counts, streams = np.zeros(10), 600
    targets = torch.tensor([0] * 10 + [1] * 5)
    for seed in range(streams):
        memory = rc.ClassBalanced(10, seed=seed)
        memory.update(torch.zeros(15, 1), targets)
        ids = memory.batch.ids
        assert ids[ids >= 10].tolist() == [10, 11, 12, 13, 14]
        counts[ids[ids < 10]] += 1
    assert is_uniform(counts, streams, 5)


def balanced_from_scratch(labels: list[int], keys: list[float], capacity: int) -> list[int]:
    """GDumb's sampler, one example after the other."""
    kept: list[int] = []
    for i, label in enumerate(labels):
        groups = {c: [j for j in kept if labels[j] == c] for c in sorted(set(labels[: i + 1]))}
        if len(kept) < capacity:
            kept.append(i)
        elif len(groups[label]) < capacity / len(groups):
            largest = max(groups.values(), key=len)
            kept.remove(largest[int(keys[i] * len(largest))])
            kept.append(i)
    return sorted(kept)


@pytest.mark.parametrize("seed", range(4))
def test_class_balance_is_gdumbs_sampler(seed: int) -> None:
    labels = (4 * torch.rand(200, generator=torch.Generator().manual_seed(seed)) ** 3).long()  # some classes are rare
    memory = rc.ClassBalanced(10, seed=seed)
    memory.update(torch.zeros(200, 1), labels)
    keys = uniform_keys(seed, torch.arange(200)).tolist()
    assert memory.batch.ids.tolist() == balanced_from_scratch(labels.tolist(), keys, 10)


@pytest.mark.parametrize("seed", range(4))
def test_class_balance_does_not_depend_on_how_the_stream_is_cut(seed: int) -> None:
    labels = torch.randint(0, 30, (300,), generator=torch.Generator().manual_seed(seed))
    inputs = torch.zeros(300, 1)
    kept = []
    for size in (1, 7, 40, 300):
        memory = rc.ClassBalanced(20, seed=seed)
        for rows in torch.arange(300).split(size):
            memory.update(inputs[rows], labels[rows])
        kept.append(memory.batch.ids)
    passing = rc.ClassBalanced(20, seed=seed)
    passing.update(DataLoader(TensorDataset(inputs, labels), 9, generator=torch.Generator()))
    assert all(torch.equal(ids, passing.batch.ids) for ids in kept)


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
    targets = (torch.arange(300) % 3 == 0).long()
    memory = rc.Herding(40)
    for rows in torch.arange(300).split(50):
        memory.update(inputs[rows], targets[rows])
    for label in (0, 1):
        mine = memory.batch.targets == label
        error = (memory.batch.inputs[mine].mean(0) - inputs[targets == label].mean(0)).norm()
        assert float(error) < 0.05
        assert memory.batch.weights[mine].tolist() == [10.0 - 5 * label] * 20


def test_herding_counts_whole_weights_as_copies() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(60, 3, generator=generator), torch.randint(0, 3, (60,), generator=generator)
    counts = torch.randint(1, 5, (60,), generator=generator)
    weighted, copied = rc.Herding(12), rc.Herding(12)
    for part in torch.arange(60).split(20):
        weighted.update(inputs[part], targets[part], weights=counts[part])
        rows = part.repeat_interleave(counts[part])
        copied.update(inputs[rows], targets[rows])
    for name in ("classes", "counts", "sums"):
        assert torch.allclose(weighted._state[name].double(), copied._state[name].double())
    by_class = [[float(m.batch.weights[m.batch.targets == c].sum()) for c in range(3)] for m in (weighted, copied)]
    assert by_class[0] == pytest.approx(by_class[1])
    weighted.forget(weighted.batch.ids[:4])
    gone = counts.sum() - weighted._state["counts"].sum()
    assert int(gone) == int(counts.sum()) - weighted.total_weight


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


def gss_from_scratch(
    rows: NDArray[np.float64], seed: int, capacity: int, comparisons: int
) -> tuple[list[int], list[float]]:
    """Aljundi et al. (2019), Alg. 2, line by line: places kept, and their scores."""
    ids = torch.arange(len(rows))
    subsets = uniform_keys(seed, ids, "comparisons", count=comparisons).tolist()
    rivals, wins = (uniform_keys(seed, ids, what).tolist() for what in ("rival", "win"))
    kept: list[int] = []
    scores: list[float] = []
    for i, g in enumerate(rows):
        c = 1.0
        if kept:
            others = [rows[kept[int(u * len(kept))]] for u in subsets[i]]
            c = 1 + max(float(g @ other / np.linalg.norm(g) / np.linalg.norm(other)) for other in others)
        if len(kept) < capacity:
            kept.append(i)
            scores.append(c)
        elif c < 1:
            # A rival is drawn with probability C_j / sum of C, and replaced with probability C_j / (C_j + c).
            left, j = rivals[i] * sum(scores), 0
            while left >= scores[j] and j < len(scores) - 1:
                left -= scores[j]
                j += 1
            if wins[i] < scores[j] / (scores[j] + c):
                kept[j], scores[j] = i, c
    return kept, scores


@pytest.mark.parametrize("seed", range(4))
def test_gss_is_the_papers_algorithm(seed: int) -> None:
    """Against the algorithm from scratch, at one model, however the stream is cut."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = torch.nn.Linear(3, 4)
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = torch.randn(150, 3, generator=generator), torch.randint(0, 4, (150,), generator=generator)
    embedding = rc.GradientEmbedding(partial(copy.deepcopy, model), inits=1, projection=None)
    rows = embedding.embed(inputs, targets).double().numpy()
    kept, scores = gss_from_scratch(rows, seed, 12, 3)
    whole = rc.GSS(12, comparisons=3, seed=seed)
    whole.update(inputs, targets, model=model)
    assert whole.batch.ids.tolist() == sorted(kept)
    expected = [score for _, score in sorted(zip(kept, scores, strict=True))]
    assert whole._state["scores"].tolist() == pytest.approx(expected, rel=1e-4)
    assert max(kept) > 30 > len([i for i in kept if i >= 12]) > 0  # some have won, long after it was full


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


def test_the_seed_decides_how_local_gradients_are_projected() -> None:
    with torch.random.fork_rng():
        model = torch.nn.Linear(3, 4)
    batch = rc.Batch.arriving(torch.ones(2, 3), torch.tensor([0, 1]))
    first, again, other = (
        embed_at(model, batch.take(torch.arange(0)), batch, {}, seed=seed, dim=5)[0] for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


@pytest.mark.parametrize("kind", [rc.GSS, rc.LocalGradientMatching])
def test_how_gradients_of_a_model_are_computed_is_decided_once(
    kind: "type[rc.Memory]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    def counting(*arguments: Any) -> Plan:
        made.append(arguments)
        return make_plan(*arguments)

    monkeypatch.setattr("recollect.embedding.gradients.make_plan", counting)
    memory: Any = kind(5)
    with torch.random.fork_rng():
        model, wider = rc.models.mlp(1, 4, hidden=(8,)), rc.models.mlp(1, 5, hidden=(8,))
    for _ in range(3):  # trained meanwhile, and saved
        memory.update(*numbers(10), model=model)
        memory.save(tmp_path)
        memory = rc.load_memory(tmp_path)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
    assert len(made) == 1
    model.requires_grad_(False).get_submodule("1").requires_grad_(True)
    for other in (model, wider):  # others are trained, or there are others
        for _ in range(2):
            memory.update(*numbers(10), model=other)
    assert len(made) == 3
    held = memory.batch
    rows, plan = embed_at(wider, held.take(torch.arange(0)), held, memory._state, seed=0, dim=50)
    anew, same = embed_at(wider, held.take(torch.arange(0)), held, {}, seed=0, dim=50)
    assert torch.equal(rows, anew) and torch.equal(plan["plan"], same["plan"])


@pytest.mark.parametrize("local", [True, False])
def test_a_memory_that_stopped_early_does_not_take_the_few_it_holds_for_all(local: bool) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = rc.models.mlp(1, 2, hidden=(8,))
    few = {"dim": 50, "tolerance": 0.2}
    memory = rc.LocalGradientMatching(30, **few) if local else rc.GradientMatching(lambda: model, 30, inits=1, **few)
    for rows in torch.arange(205).split(200):
        memory.update(torch.sin(rows.float())[:, None], rows % 2, model=model)
        assert len(memory) < 25
    assert float(memory.batch.weights.sum()) == pytest.approx(205, rel=0.2)


@pytest.mark.parametrize("local", [True, False])
def test_matching_holds_the_count_of_everything_seen(local: bool) -> None:
    """Over small updates, after which most of what was seen is no candidate any more."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = rc.models.mlp(1, 2, hidden=(8,))
    memory = rc.LocalGradientMatching(10, dim=50) if local else rc.GradientMatching(lambda: model, 10, inits=1, dim=50)
    for rows in torch.arange(300).split(30):
        memory.update(torch.sin(rows.float())[:, None], rows % 2, model=model)
    assert float(memory.batch.weights.sum()) == pytest.approx(300, rel=0.05)


def test_the_local_target_is_the_weighted_kept_plus_what_arrived() -> None:
    """With everything kept before, local matching at one model equals selection with that model as the only draw."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = rc.models.mlp(1, 2, hidden=(8,))
    inputs, targets = torch.linspace(-2, 2, 40)[:, None], torch.arange(40) % 2
    memory = rc.LocalGradientMatching(10, dim=50, hold_count=False)
    memory.update(inputs[:8], targets[:8], model=model)
    memory.update(inputs[8:], targets[8:], model=model)
    coreset = rc.select(lambda: copy.deepcopy(model), inputs, targets, 10, inits=1, dim=50, layers="all")
    assert sorted(coreset.indices.tolist()) == memory.batch.ids.tolist()


def test_local_matching_follows_the_head_that_is_in_use() -> None:
    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.task = torch.nn.Linear(1, 6), 0
            self.heads = torch.nn.ModuleList(torch.nn.Linear(6, 4) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.heads[self.task](self.body(x).relu())  # type: ignore[no-any-return]

    with torch.random.fork_rng():
        model = Heads()
    memory, anew = (rc.LocalGradientMatching(5, layers="last") for _ in range(2))
    memory.update(*numbers(10), model=model)
    memory.forget(memory.batch.ids)
    anew.load_state_dict(memory.state_dict())
    anew._state = {name: value for name, value in anew._state.items() if name not in ("form", "plan")}
    model.task = 1
    for one in (memory, anew):
        one.update(*numbers(10), model=model)
    assert torch.equal(memory.batch.ids, anew.batch.ids)
    assert torch.equal(memory.batch.weights, anew.batch.weights)


def test_local_matching_counts_whole_weights_as_copies() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = rc.models.mlp(1, 2, hidden=(8,))
    inputs, targets = torch.linspace(-2, 2, 40)[:, None], torch.arange(40) % 2
    counts = 1 + torch.arange(40) % 7
    weighted, copied = (rc.LocalGradientMatching(20, dim=50) for _ in range(2))
    weighted.update(inputs, targets, weights=counts, model=model)
    copied.update(inputs.repeat_interleave(counts, 0), targets.repeat_interleave(counts), model=model)
    nothing = weighted.batch.take(torch.arange(0))
    sums = [
        m.batch.weights.double() @ embed_at(model, nothing, m.batch, {}, dim=50, seed=0)[0].double()
        for m in (weighted, copied)
    ]
    assert float((sums[0] - sums[1]).norm() / sums[1].norm()) < 0.02


def test_a_reservoir_stays_uniform_after_some_were_forgotten() -> None:
    kept = torch.zeros(300)
    for seed in range(1500):
        memory = rc.Reservoir(20, seed=seed)
        memory.update(torch.zeros(200, 1), torch.zeros(200))
        memory.forget(range(0, 200, 2))
        memory.update(torch.zeros(100, 1), torch.zeros(100))
        kept[memory.batch.ids] += 1
    assert kept[:200:2].sum() == 0
    old, new = float(kept[1:200:2].mean()), float(kept[200:].mean())
    assert new == pytest.approx(old, rel=0.05)  # each is kept with the same probability, 0.07


@pytest.mark.parametrize("capacity", [4, 50])
def test_herding_takes_weights_after_examples_without_any(capacity: int) -> None:
    inputs, targets = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    memory, doubled = rc.Herding(capacity), rc.Herding(capacity)
    memory.update(inputs[:10], targets[:10])
    memory.update(inputs[10:], targets[10:], weights=torch.full((10,), 2.0))
    doubled.update(inputs, targets, weights=torch.tensor([1.0, 2.0]).repeat_interleave(10))
    assert torch.equal(memory.batch.ids, doubled.batch.ids) or capacity == 4  # fewer are left to choose from
    assert float(memory.batch.weights.sum()) == pytest.approx(30) == memory.total_weight


def test_herding_refuses_weights_beyond_float32_in_one_sentence() -> None:
    inputs = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="weights that are not finite"):
        rc.Herding(4).update(inputs, torch.arange(60) % 2, weights=torch.full((60,), 3e38))


def test_what_comes_after_all_was_forgotten_stands_for_everything() -> None:
    inputs, targets = numbers(12)
    memory = rc.Reservoir(2)
    memory.update(inputs[:10], targets[:10], weights=torch.full((10,), 2.0))
    memory.forget(memory.batch.ids)
    memory.update(inputs[10:], targets[10:], weights=torch.full((2,), 2.0))
    assert float(memory.batch.weights.sum()) == memory.total_weight == 20
