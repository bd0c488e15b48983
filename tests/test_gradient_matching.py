import inspect
import math
import warnings
from collections.abc import Callable
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import recollect as rc
from recollect.candidates import shortlisted
from recollect.dictionary import Dictionary, remembered
from tests.networks import NETWORKS

make_model = partial(rc.models.mlp, 4, 3, hidden=(16,))


def examples(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def test_the_target_is_the_sum_of_exactly_the_embeddings_computed() -> None:
    inputs, targets = examples(90)
    memory = rc.GradientMatching(make_model, 10, inits=3, dim=50)
    embedding = rc.GradientEmbedding(make_model, layers="auto", projection="auto", inits=3, dim=50)
    total = torch.zeros(153, dtype=torch.float64)  # 3 x 16 weights and 3 biases at each of 3 draws
    for i in range(0, 90, 30):
        memory.update(inputs[i : i + 30], targets[i : i + 30])
        total += embedding.dictionary(inputs[i : i + 30], targets[i : i + 30]).sum()
        assert float((memory.target - total).norm() / total.norm()) < 1e-12


@pytest.mark.parametrize("projection", ["sparse", "kronecker", None])
@pytest.mark.parametrize("sizes", [[1] * 90, [7, 50, 33], [89, 1]])
def test_the_target_does_not_depend_on_how_the_stream_is_cut(sizes: list[int], projection: str) -> None:
    inputs, targets = examples(90)
    memories = [
        rc.GradientMatching(make_model, 10, inits=2, dim=50, projection=projection)  # type: ignore[arg-type]
        for _ in range(2)
    ]
    memories[0].update(inputs, targets)
    for x, y in zip(inputs.split(sizes), targets.split(sizes), strict=True):
        memories[1].update(x, y)
    difference = (memories[0].target - memories[1].target).norm() / memories[0].target.norm()
    assert float(difference) < 1e-6


def test_one_update_is_the_one_shot_selection() -> None:
    inputs, targets = examples(80)
    memory = rc.GradientMatching(make_model, 10, inits=3, seed=4)
    memory.update(inputs, targets)
    coreset = rc.select(make_model, inputs, targets, 10, inits=3, seed=4, hold_count=True)
    order = coreset.indices.argsort()
    assert torch.equal(memory.batch.ids, coreset.indices[order])
    assert torch.equal(memory.batch.weights, coreset.weights[order].float())


def test_old_examples_can_be_dropped_and_reweighted() -> None:
    inputs, targets = examples(60)
    memory = rc.GradientMatching(make_model, 10, inits=3)
    memory.update(inputs[:30], targets[:30])
    before = dict(zip(memory.batch.ids.tolist(), memory.batch.weights.tolist(), strict=True))
    memory.update(inputs[30:], targets[30:])
    after = dict(zip(memory.batch.ids.tolist(), memory.batch.weights.tolist(), strict=True))
    stayed = before.keys() & after.keys()
    assert stayed != before.keys()
    assert stayed
    assert all(before[i] != after[i] for i in stayed)


def test_the_kept_match_the_whole_stream_better_than_a_reservoir() -> None:
    inputs, targets = examples(600)
    order = inputs[:, 0].argsort()
    inputs, targets = inputs[order], targets[order]
    ours, theirs = rc.GradientMatching(make_model, 40), rc.Reservoir(40)
    for i in range(0, 600, 100):
        for memory in (ours, theirs):
            memory.update(inputs[i : i + 100], targets[i : i + 100])
    errors = [rc.matching_error(make_model, (inputs, targets), m.batch) for m in (ours, theirs)]
    assert errors[0] < 0.5 * errors[1]


def test_embeddings_of_the_kept_are_reused_not_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    dictionary = rc.GradientEmbedding.dictionary

    def counting(self: rc.GradientEmbedding, inputs: Tensor, targets: Tensor, **options: Any) -> Dictionary:
        counts.append(len(targets))
        return dictionary(self, inputs, targets, **options)

    monkeypatch.setattr(rc.GradientEmbedding, "dictionary", counting)
    memory = rc.GradientMatching(make_model, 10, inits=1, layers="all")
    inputs, targets = examples(60)
    for i in (0, 20, 40):
        memory.update(inputs[i : i + 20], targets[i : i + 20])
    assert counts == [20, 20, 20]


@pytest.mark.parametrize("shortlist", [1.5, None])
def test_embeddings_are_kept_of_the_examples_that_are(shortlist: float | None) -> None:
    memory = rc.GradientMatching(make_model, 10, inits=2, dim=50, shortlist=shortlist)
    for x, y in zip(*(part.split(60) for part in examples(180)), strict=True):
        memory.update(x, y)
    batch, prepared = memory.batch, memory._prepared
    assert memory.embedding is not None
    again = memory.embedding.embed(batch.inputs, batch.targets, prepared=prepared)
    kept = remembered(memory._state, torch.device("cpu")).rows(torch.arange(10))
    assert torch.allclose(kept, again, atol=1e-5)
    everything = memory.embedding.embed(*examples(180), prepared=prepared).double().sum(0)
    assert (
        float((memory.target - everything).norm() / everything.norm()) < 1e-5
    )  # also of those that were no candidates


def test_batchnorm_statistics_are_saved_with_the_memory(tmp_path: Path) -> None:
    make_resnet, inputs = NETWORKS["resnet"]
    inputs = torch.cat([inputs] * 3)
    targets = torch.arange(21) % 3
    steady = rc.GradientMatching(make_resnet, 4, inits=2, dim=60)
    steady.update(inputs[:7], targets[:7])
    steady.save(tmp_path)
    resumed = rc.load_memory(tmp_path, make_resnet)
    for memory in (steady, resumed):
        memory.update(2 * inputs[7:] + 1, targets[7:])
    assert torch.equal(steady.batch.weights, resumed.batch.weights)
    assert torch.equal(steady.batch.ids, resumed.batch.ids)


def test_dict_inputs(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 3), nn.Linear(4, 3)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.a(left) + self.b(right)  # type: ignore[no-any-return]

    inputs, targets = examples(40)
    memory = rc.GradientMatching(Two, 6, inits=2)
    memory.update({"left": inputs[:, :2], "right": inputs}, targets)
    memory.save(tmp_path)
    again = rc.load_memory(tmp_path, Two)
    for m in (memory, again):
        m.update({"left": inputs[:, 2:], "right": inputs + 1}, targets)
    assert torch.equal(memory.batch.ids, again.batch.ids)
    assert isinstance(again.batch.inputs, dict)


def test_labels_out_of_range_change_nothing() -> None:
    memory = rc.GradientMatching(make_model, 5, inits=2)
    inputs, targets = examples(20)
    with pytest.raises(ValueError, match=r"class numbers from 0 to 2, as the model has 3 outputs, got 3"):
        memory.update(inputs, targets + 1)
    assert len(memory) == memory.seen == 0
    memory.update(inputs, targets)
    untouched = rc.GradientMatching(make_model, 5, inits=2)
    untouched.update(inputs, targets)
    assert torch.equal(memory.batch.ids, untouched.batch.ids)


def test_all_equal_examples_share_the_weight() -> None:
    memory = rc.GradientMatching(make_model, 4, inits=2)
    memory.update(torch.ones(20, 4), torch.ones(20, dtype=torch.long))
    assert memory.batch.weights.tolist() == pytest.approx([5.0] * 4, rel=1e-4)


def test_a_loaded_memory_without_make_model_can_be_read_but_not_updated(tmp_path: Path) -> None:
    memory = rc.GradientMatching(make_model, 5, inits=2)
    inputs, targets = examples(20)
    memory.update(inputs, targets)
    memory.save(tmp_path)
    loaded = rc.load_memory(tmp_path)
    assert len(loaded) == 5
    with pytest.raises(ValueError, match="updating needs make_model, got None: pass it to load_memory"):
        loaded.update(inputs, targets)


def test_another_architecture_is_refused_on_resuming(tmp_path: Path) -> None:
    memory = rc.GradientMatching(make_model, 5, inits=2)
    inputs, targets = examples(20)
    memory.update(inputs, targets)
    memory.save(tmp_path)
    loaded = rc.load_memory(tmp_path, partial(rc.models.mlp, 4, 3))
    with pytest.raises(ValueError, match="make_model must draw the models that were drawn before"):
        loaded.update(inputs, targets)
    assert loaded.seen == 20


def test_functions_must_be_passed_again_on_loading(tmp_path: Path) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    memory = rc.GradientMatching(make_model, 5, inits=2, loss=loss)
    inputs, targets = examples(20)
    memory.update(inputs, targets)
    memory.save(tmp_path)
    with pytest.raises(ValueError, match="loss must be passed to load_memory, as functions are not saved"):
        rc.load_memory(tmp_path, make_model)
    resumed = rc.load_memory(tmp_path, make_model, loss=loss)
    for m in (memory, resumed):
        m.update(*examples(20, seed=1))
    assert torch.equal(memory.batch.ids, resumed.batch.ids)


@pytest.mark.parametrize("function", [rc.select, rc.GradientMatching])
def test_all_options_are_visible_with_the_defaults_of_what_they_are_passed_to(function: Callable[..., object]) -> None:
    shown = inspect.signature(function).parameters
    for passed_to in (rc.GradientEmbedding, rc.pursue):
        for name, parameter in inspect.signature(passed_to).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY and name not in ("target", "count"):
                assert shown[name].default == parameter.default or name in ("hold_count", "layers", "projection"), name
                assert f"        {name}: " in (function.__doc__ or "")


def test_several_memories_share_an_embedding() -> None:
    embedding = rc.GradientEmbedding(make_model, layers="auto", inits=2, seed=3)
    sharing = [rc.GradientMatching(embedding, size) for size in (7, 9)]
    assert sharing[0].seed == 3
    alone = [rc.GradientMatching(make_model, size, inits=2, seed=3) for size in (7, 9)]
    for first in (0, 30):
        inputs, targets = examples(30, seed=first)
        candidates = embedding.dictionary(inputs, targets)
        for memory, other in zip(sharing, alone, strict=True):
            memory.update(inputs, targets, candidates=candidates)
            other.update(inputs, targets)
    for memory, other in zip(sharing, alone, strict=True):
        assert torch.equal(memory.batch.ids, other.batch.ids)
        assert torch.equal(memory.batch.weights, other.batch.weights)
    with pytest.raises(ValueError, match="candidates must be those of the 30 examples, got 7"):
        sharing[0].update(*examples(30), candidates=embedding.dictionary(*examples(7)))
    with pytest.raises(ValueError, match="inits must be set where the embedding is made"):
        rc.GradientMatching(embedding, 5, inits=3)
    with pytest.raises(ValueError, match="candidates must be made by the memory's own embedding"):
        rc.GradientMatching(make_model, 5).update(*examples(7), candidates=embedding.dictionary(*examples(7)))


def one_by_one(memory: rc.GradientMatching, n: int, first: int = 0) -> None:
    inputs, targets = examples(120, seed=7)
    for i in range(first, first + n):
        memory.update(inputs[i : i + 1], targets[i : i + 1])


def test_examples_that_come_one_by_one_are_held_at_once_and_chosen_from_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    choices, embedded = [], []
    pursue, embed = rc.pursue, rc.GradientEmbedding.dictionary

    def counting(candidates: Any, size: int, **options: Any) -> rc.Coreset:
        choices.append(len(candidates))
        return pursue(candidates, size, **options)

    def counting_rows(self: rc.GradientEmbedding, inputs: Tensor, targets: Tensor, **options: Any) -> Dictionary:
        embedded.append(len(targets))
        return embed(self, inputs, targets, **options)

    monkeypatch.setattr("recollect.memories.gradient_matching.choosing.pursue", counting)
    monkeypatch.setattr(rc.GradientEmbedding, "dictionary", counting_rows)
    memory = rc.GradientMatching(make_model, 24, inits=2, dim=50)
    inputs, targets = examples(120, seed=7)
    for i in range(120):
        memory.update(inputs[i : i + 1], targets[i : i + 1])
        assert int(memory.batch.ids[-1]) == i or i >= 24  # a choice may let go of the last, waiting does not
        assert 18 <= len(memory) <= 24 or i < 18
        assert memory.seen == i + 1
    early = (96 - 25) // 7  # while all are candidates: one choice for seven examples, six of which took free places
    assert choices[: 1 + early] == [25] * (1 + early)
    assert embedded[: 1 + early] == [25] + [7] * early
    assert float(memory.batch.weights.sum()) == pytest.approx(120, rel=0.1)
    long = rc.GradientMatching(make_model, 24, inits=2, dim=50)
    choices.clear()
    inputs, targets = examples(1000, seed=7)
    for i in range(1000):
        long.update(inputs[i : i + 1], targets[i : i + 1])
        assert 18 <= len(long) <= 24 or i < 18
    candidates = 96 * (1 + math.log(1000 / 96))  # are expected, of which at least three are new to a choice
    assert len(choices) < candidates / 3 < 1000 / 8
    assert float(long.batch.weights.sum()) == pytest.approx(1000, rel=0.1)


def test_what_is_kept_of_a_last_layer_is_its_factors(tmp_path: Path) -> None:
    """Short, saved as such, and matched as the gradients themselves would be."""
    inputs, targets = examples(400, seed=3)
    options: dict[str, Any] = {"inits": 4, "seed": 1}
    memory = rc.GradientMatching(make_model, 20, **options)
    formed = rc.GradientMatching(make_model, 20, layers=["3"], projection=None, **options)
    for m in (memory, formed):
        m.update(inputs[:200], targets[:200])
    assert memory._state["embeddings"].shape == (20, 4 * (16 + 3))
    memory.save(tmp_path)
    resumed = rc.load_memory(tmp_path, make_model)
    resumed.update(inputs[200:], targets[200:])
    for m in (memory, formed):
        m.update(inputs[200:], targets[200:])
    assert torch.equal(memory.batch.ids, resumed.batch.ids)
    assert torch.equal(memory.batch.weights, resumed.batch.weights)
    assert torch.allclose(memory.target, formed.target)
    assert memory.error == pytest.approx(formed.error, rel=1e-4)
    assert torch.equal(memory.batch.ids, formed.batch.ids)


def test_a_memory_saved_with_formed_rows_goes_on_beside_factors() -> None:
    """As one does that was saved before rows were kept as factors."""
    inputs, targets = examples(400, seed=3)
    memory = rc.GradientMatching(make_model, 20, inits=4)
    memory.update(inputs[:200], targets[:200])
    before = copy(memory)
    rows = remembered(memory._state, torch.device("cpu"))
    before._state = {**memory._state, "embeddings": rows.rows(torch.arange(20))}
    del before._state["factors"]
    for m in (memory, before):
        m.update(inputs[200:], targets[200:])
    assert torch.equal(memory.batch.ids, before.batch.ids)
    assert torch.allclose(memory.batch.weights, before.batch.weights, rtol=1e-3)


def test_the_target_counts_those_that_wait() -> None:
    memory = rc.GradientMatching(make_model, 24, inits=2, dim=50)
    embedding = rc.GradientEmbedding(make_model, layers="auto", projection="auto", inits=2, dim=50)
    inputs, targets = examples(40, seed=7)
    rows = embedding.embed(inputs, targets).double()
    for i in range(40):
        memory.update(inputs[i : i + 1], targets[i : i + 1])
        truth = rows[: i + 1].sum(0)
        assert float((memory.target - truth).norm() / truth.norm()) < 1e-6
        settled = memory.batch.weights.double() @ rows[memory.batch.ids]
        if i < 24:
            assert torch.allclose(settled, truth, rtol=1e-5)  # everything is held with weight one


@pytest.mark.parametrize("weights", [None, 1 + torch.arange(400) % 5])
@pytest.mark.parametrize("size", [1, 3])
def test_those_that_stay_for_others_until_the_next_choice_add_up(weights: Tensor | None, size: int) -> None:
    memory = rc.GradientMatching(make_model, 30, inits=2, dim=50)
    embedding = rc.GradientEmbedding(make_model, layers="auto", projection="auto", inits=2, dim=50)
    inputs, targets = examples(400, seed=7)
    rows = embedding.embed(inputs, targets).double()
    counts = torch.ones(400) if weights is None else weights
    rows = rows * counts[:, None]
    errors, thinned = [], 0
    for i in range(0, 399, size):
        part = slice(i, i + size)
        before = int(memory._state.get("waiting", 0))
        stood = float(memory.batch.weights.sum()) if memory.seen else 0.0
        memory.update(inputs[part], targets[part], weights=None if weights is None else weights[part])
        truth = rows[: i + size].sum(0)
        assert float((memory.target - truth).norm() / truth.norm()) < 1e-6
        waiting = int(memory._state.get("waiting", 0))
        if before > 0 and waiting == 0 and "error" not in memory._state:  # no choice, and yet nobody waits any more
            thinned += 1
            assert float(memory.batch.weights.sum()) == pytest.approx(stood + float(counts[part].sum()), rel=1e-5)
            kept = embedding.embed(memory.batch.inputs, memory.batch.targets).double()
            true = float((memory.batch.weights.double() @ kept - truth).norm() / truth.norm())
            assert memory.error == pytest.approx(true, rel=1e-4)  # of what is held now, not as of the last choice
        assert len(memory._state.get("embeddings", [])) == (len(memory) - waiting if "target" in memory._state else 0)
        assert len(memory) <= 30
        if i > 120:
            assert float(memory.batch.weights.sum()) == pytest.approx(memory.total_weight, rel=0.1)
            assert torch.equal(memory.batch.inputs, inputs[memory.batch.ids])
            again = embedding.embed(memory.batch.inputs, memory.batch.targets).double()
            errors.append(float((memory.batch.weights.double() @ again - truth).norm() / truth.norm()))
    assert thinned > 5
    assert sum(errors) / len(errors) < 0.2  # a reservoir of 30 of these has about twice that


def test_all_are_candidates_without_a_shortlist() -> None:
    memory = rc.GradientMatching(make_model, 30, inits=2, dim=50, shortlist=None)
    inputs, targets = examples(400, seed=7)
    kept: set[int] = set()
    for i in range(400):
        memory.update(inputs[i : i + 1], targets[i : i + 1])
        ids = set(memory.batch.ids.tolist())
        assert i in ids or int(memory._state.get("waiting", 0)) == 0  # only a choice lets go of an example
        assert kept - ids == set() or len(ids) == 23
        kept = ids


def test_a_memory_that_was_saved_while_examples_wait_ends_bit_identical(tmp_path: Path) -> None:
    steady = rc.GradientMatching(make_model, 12, inits=2, dim=50)
    one_by_one(steady, 120)
    for stop in (3, 12, 14, 40, 71, 90, 95):
        resumed = rc.GradientMatching(make_model, 12, inits=2, dim=50)
        one_by_one(resumed, stop)
        resumed.save(tmp_path)
        resumed = rc.load_memory(tmp_path, make_model)  # type: ignore[assignment]
        one_by_one(resumed, 120 - stop, first=stop)
        assert torch.equal(steady.batch.ids, resumed.batch.ids)
        assert torch.equal(steady.batch.weights, resumed.batch.weights)
        assert torch.equal(steady.target, resumed.target)


def test_a_large_update_settles_those_that_wait() -> None:
    embedding = rc.GradientEmbedding(make_model, layers="auto", projection="auto", inits=2, dim=50)
    inputs, targets = examples(90, seed=7)
    memories = [rc.GradientMatching(embedding, 24) for _ in range(2)]
    for i, size in ((0, 3), (3, 3), (6, 84)):
        part = (inputs[i : i + size], targets[i : i + size])
        memories[0].update(*part)
        memories[1].update(*part, candidates=embedding.dictionary(*part))
    assert [len(memory) for memory in memories] == [24, 24]
    assert torch.equal(memories[0].batch.ids, memories[1].batch.ids)
    assert torch.allclose(memories[0].batch.weights, memories[1].batch.weights, rtol=1e-4)


def test_an_example_that_cannot_be_embedded_is_refused_before_it_waits() -> None:
    memory = rc.GradientMatching(make_model, 24, inits=2, dim=50)
    one_by_one(memory, 30)
    before = memory.state_dict()["tensors"]
    for inputs, targets in (
        (torch.ones(1, 4), torch.tensor([3])),
        (torch.full((1, 4), 3e38), torch.tensor([0])),
    ):
        with pytest.raises(ValueError, match=r"class numbers from 0 to 2|losses must be finite"):
            memory.update(inputs, targets)
    after = memory.state_dict()["tensors"]
    assert memory.seen == 30
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("options", [rc.PAPER, {"exact": True}, {"min_per_class": 1}, {"class_weight": "balanced"}])
def test_some_memories_choose_at_every_update(options: dict[str, Any]) -> None:
    memory = rc.GradientMatching(make_model, 8, **{**options, "inits": 2, "dim": 50})
    one_by_one(memory, 15)
    assert len(memory) == 8


@pytest.mark.parametrize("sizes", [(5, 7), (60, 40), (60, 3)])
def test_merged_memories_match_the_sum_of_both_targets(sizes: tuple[int, int], tmp_path: Path) -> None:
    data = [examples(n, seed=n) for n in sizes]
    memories = []
    for i, (inputs, targets) in enumerate(data):
        memory = rc.GradientMatching(make_model, 12, inits=2, dim=50)
        memory.update(inputs, targets)
        memory.save(tmp_path / str(i))
        memories.append(rc.load_memory(tmp_path / str(i), make_model))
    a, b = memories
    before = [m.batch.ids.clone() for m in memories]
    merged = a.merge(b)
    total = a.target + b.target  # type: ignore[attr-defined]
    exact = 1e-12 if min(sizes) > 4 else 1e-6  # up to rounding where some wait: they are added up as rows, not as sums
    assert float((merged.target - total).norm() / total.norm()) < exact  # type: ignore[attr-defined]
    assert merged.seen == sum(sizes)
    assert len(merged) == 12
    assert float(merged.batch.weights.sum()) == pytest.approx(sum(sizes), rel=0.3)
    for row, place in zip(merged.batch.inputs, merged.batch.ids.tolist(), strict=True):  # the other's ids follow
        site, own = (0, place) if place < sizes[0] else (1, place - sizes[0])
        assert torch.equal(row, data[site][0][own])
        assert own in before[site]
    assert all(torch.equal(m.batch.ids, ids) for m, ids in zip(memories, before, strict=True))
    merged.update(*examples(30, seed=9))
    assert merged.seen == sum(sizes) + 30


def test_only_memories_with_the_same_draws_are_merged() -> None:
    memory = rc.GradientMatching(make_model, 5, inits=2, dim=50)
    memory.update(*examples(20))
    for other in (
        rc.GradientMatching(make_model, 5, inits=2, dim=50, seed=1),
        rc.GradientMatching(make_model, 5, inits=2, dim=51),
        rc.GradientMatching(partial(rc.models.mlp, 4, 3, hidden=(16, 16)), 5, inits=2, dim=50),
        rc.GradientMatching(make_model, 5, inits=2, dim=50, projection="sparse"),
    ):
        other.update(*examples(20))
        with pytest.raises(ValueError, match="memories to be merged must have the same draws"):
            memory.merge(other)
    with pytest.raises(ValueError, match="can be merged with gradient matching, got Reservoir"):
        memory.merge(rc.Reservoir(5))


@pytest.mark.parametrize("sizes", [[60], [3, 4, 53], [1] * 20 + [40]])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shortlist": 2},
        {"shortlist": None},
        {"layers": "last"},
        {"class_weight": "balanced", "min_per_class": 1},
        {"class_weight": "balanced", "shortlist": 2},
        rc.PAPER,
    ],
)
def test_whole_weights_are_as_many_copies(sizes: list[int], options: dict[str, Any]) -> None:
    options = {**options, "inits": 2, "dim": 50}
    inputs, targets = examples(60)
    counts = torch.randint(1, 6, (60,), generator=torch.Generator().manual_seed(1))
    weighted, copied = (rc.GradientMatching(make_model, 12, **options) for _ in range(2))
    for x, y, n in zip(inputs.split(sizes), targets.split(sizes), counts.split(sizes), strict=True):
        weighted.update(x, y, weights=n)
        copied.update(x.repeat_interleave(n, 0), y.repeat_interleave(n))
    assert weighted.seen == 60
    assert weighted.total_weight == copied.seen == int(counts.sum())
    assert float((weighted.target - copied.target).norm() / copied.target.norm()) < 1e-6
    assert options.get("hold_count") is False or float(weighted.batch.weights.sum()) == pytest.approx(
        weighted.total_weight, rel=0.3
    )


def test_with_all_candidates_weights_match_as_well_as_copies() -> None:
    inputs, targets = examples(60)
    counts = torch.randint(1, 6, (60,), generator=torch.Generator().manual_seed(1))
    weighted, copied = (rc.GradientMatching(make_model, 25, shortlist=None) for _ in range(2))
    weighted.update(inputs, targets, weights=counts)
    copied.update(inputs.repeat_interleave(counts, 0), targets.repeat_interleave(counts))
    assert weighted.error == pytest.approx(copied.error, rel=0.15)
    everything = (inputs.repeat_interleave(counts, 0), targets.repeat_interleave(counts))
    errors = [rc.matching_error(make_model, everything, memory.batch) for memory in (weighted, copied)]
    assert errors[0] == pytest.approx(errors[1], rel=0.15)


def test_weights_go_with_candidates_that_are_given() -> None:
    embedding = rc.GradientEmbedding(make_model, layers="auto", projection="auto", inits=2, dim=50)
    given, alone = (rc.GradientMatching(embedding, 12) for _ in range(2))
    inputs, targets = examples(64)
    weights = torch.arange(64) % 4  # some of which stand for nothing
    rows = embedding.embed(inputs, targets).double()
    for first, last in ((0, 4), (4, 64)):  # the first few wait for a choice
        part = slice(first, last)
        candidates = embedding.dictionary(inputs[part], targets[part]) if first else None
        given.update(inputs[part], targets[part], weights=weights[part], candidates=candidates)
        alone.update(inputs[part], targets[part], weights=weights[part])
        truth = weights[:last].double() @ rows[:last]
        for memory in (given, alone):
            assert float((memory.target - truth).norm() / truth.norm()) < 1e-6
    assert torch.equal(given.batch.ids, alone.batch.ids)
    assert torch.allclose(given.batch.weights, alone.batch.weights, rtol=1e-4)
    with pytest.raises(ValueError, match="candidates must be those of the 64 examples, got 3"):
        given.update(inputs, targets, weights=weights, candidates=embedding.dictionary(inputs[:3], targets[:3]))


def test_merging_counts_the_weights_of_those_that_wait() -> None:
    embedding = rc.GradientEmbedding(make_model, layers="auto", projection="auto", inits=2, dim=50)
    inputs, targets = examples(36)
    weights = 1.0 + torch.arange(36) % 4
    first, second = (rc.GradientMatching(embedding, 12) for _ in range(2))
    first.update(inputs[:30], targets[:30], weights=weights[:30])
    first.update(inputs[30:33], targets[30:33], weights=weights[30:33])
    second.update(inputs[33:], targets[33:], weights=weights[33:])
    merged = first.merge(second)
    truth = weights.double() @ embedding.embed(inputs, targets).double()
    assert float((merged.target - truth).norm() / truth.norm()) < 1e-6
    assert merged.total_weight == int(weights.sum())


def test_heavy_examples_are_likelier_to_be_candidates() -> None:
    weights = torch.where(torch.arange(400) < 40, 50.0, 1.0)
    found = [shortlisted(torch.arange(400), 4, 5.0, seed, weights=weights) for seed in range(200)]
    heavy = sum(int((rows < 40).sum()) for rows in found if rows is not None) / (200 * 20)
    # Of a race of 20 with rates 50 (40 runners) and 1 (360), about 40 * 50 / (40 * 50 + 360) = 0.85 are heavy at first.
    assert 0.75 < heavy < 0.87


@pytest.mark.parametrize("options", [{}, {"class_weight": {0: 2.0, 1: 1.0, 2: 1.0}}])
def test_forgotten_weights_leave_the_target(options: dict[str, Any]) -> None:
    inputs, targets = examples(60)
    weights = 1 + torch.arange(60) % 5
    memory = rc.GradientMatching(make_model, 12, inits=2, dim=50, **options)
    memory.update(inputs, targets, weights=weights)
    rows = (
        rc.GradientEmbedding(make_model, layers="auto", projection="auto", inits=2, dim=50)
        .embed(inputs, targets)
        .double()
        * weights[:, None]
    )
    if options:
        rows *= torch.tensor([2.0, 1.0, 1.0])[targets][:, None]
    held = memory.batch.ids[:3].tolist()
    lost = [i for i in range(60) if i not in memory.batch.ids][:2]
    memory.forget([*held, *lost], inputs[[*held, *lost]], targets[[*held, *lost]], weights=weights[[*held, *lost]])
    left = rows.sum(0) - rows[[*held, *lost]].sum(0)
    assert float((memory.target - left).norm() / left.norm()) < 1e-6
    assert memory.total_weight == int(weights.sum()) - int(weights[[*held, *lost]].sum())


def test_a_class_that_is_forgotten_wholly_counts_for_nothing() -> None:
    inputs, targets = examples(30)
    memory = rc.GradientMatching(make_model, 30, inits=2, dim=50, class_weight="balanced")
    memory.update(inputs, targets, weights=torch.full((30,), 0.1))
    memory.forget((targets == 2).nonzero()[:, 0])
    memory.update(*(part[:40] for part in (examples(90, 3)[0], examples(90, 3)[1] % 2)))
    assert memory.target.isfinite().all()
    assert set(memory.batch.targets.tolist()) == {0, 1}


@pytest.mark.parametrize("options", [{}, {"class_weight": {0: 2.0, 1: 1.0, 2: 1.0}}])
def test_forgotten_examples_leave_the_target(options: dict[str, Any]) -> None:
    inputs, targets = examples(60)
    memory = rc.GradientMatching(make_model, 12, inits=2, dim=50, **options)
    memory.update(inputs, targets)
    rows = (
        rc.GradientEmbedding(make_model, layers="auto", projection="auto", inits=2, dim=50)
        .embed(inputs, targets)
        .double()
    )
    if options:
        rows *= torch.tensor([2.0, 1.0, 1.0])[targets][:, None]
    held = memory.batch.ids[:3].tolist()
    lost = [i for i in range(60) if i not in memory.batch.ids][:2]
    missing = memory.forget([*held, *lost])
    assert missing.tolist() == lost
    left = rows.sum(0) - rows[held].sum(0)
    assert float((memory.target - left).norm() / left.norm()) < 1e-6
    assert not set(held) & set(memory.batch.ids.tolist())
    memory.forget(np.array(lost, dtype=np.uint16), inputs[lost], targets[lost])
    left -= rows[lost].sum(0)
    assert float((memory.target - left).norm() / left.norm()) < 1e-6
    some = [*held, *lost]
    assert memory.forget(pd.Series(some, index=lost + held), inputs[some], targets[some]).tolist() == []  # not twice
    assert float((memory.target - left).norm() / left.norm()) < 1e-6
    with pytest.raises(ValueError, match=r"^ids must differ where their examples are passed, got some twice"):
        memory.forget([59 if 59 not in memory.batch.ids else 58] * 2, inputs[:2], targets[:2])
    fitted = memory.batch.weights.double() @ (rows[memory.batch.ids])
    assert options or memory.error == pytest.approx(float((fitted - left).norm() / left.norm()), rel=1e-3)


@pytest.mark.parametrize(
    ("shortlist", "fewest", "expected"),
    [
        (10.0, 0, [200, 100, 67, 50]),
        (2.0, 0, [40] * 4),
        (20.0, 0, [400, 200, 134, 100]),
        (20.0, 150, [400, 200, 150, 150]),
        (10.0, 1000, [200] * 4),
    ],
)
def test_of_what_arrives_late_as_many_are_candidates_as_it_is_a_part_of_everything(
    shortlist: float, fewest: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    monkeypatch.setattr("recollect.memories.gradient_matching.choosing.FEWEST", fewest)
    dictionary = rc.GradientEmbedding.dictionary

    def counting(self: rc.GradientEmbedding, inputs: Tensor, targets: Tensor, **options: Any) -> Dictionary:
        counts.append(len(targets))
        return dictionary(self, inputs, targets, **options)

    monkeypatch.setattr(rc.GradientEmbedding, "dictionary", counting)
    memory = rc.GradientMatching(make_model, 20, inits=2, shortlist=shortlist)
    for seed in range(4):
        memory.update(*examples(500, seed=seed))
    assert counts == expected


def test_a_stream_of_unknown_length_is_chosen_from_as_if_it_came_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.memories.gradient_matching.choosing.FEWEST", 0)
    whole, passing = (rc.GradientMatching(make_model, 20, inits=2) for _ in range(2))
    for memory in (whole, passing):
        memory.update(*examples(500))
    for count, seed in ((90, 1), (150, 2), (700, 3)):  # all are candidates; fewer than at first are; many come
        inputs, targets = examples(count, seed=seed)
        whole.update(inputs, targets)
        passing.update(iter([(inputs[i : i + 40], targets[i : i + 40]) for i in range(0, count, 40)]))
        assert torch.equal(whole.batch.ids, passing.batch.ids)
        assert torch.equal(whole.batch.weights, passing.batch.weights)


@pytest.mark.parametrize("first", [2, 300])
def test_streams_beside_small_updates_are_taken_as_if_they_came_at_once(first: int) -> None:
    whole, passing = (rc.GradientMatching(make_model, 40, inits=2, shortlist=2) for _ in range(2))
    for seed, count in enumerate([first, 4, 3, 250, *[5, 8, 2] * 6, 100]):
        inputs, targets = examples(count, seed=seed)
        whole.update(inputs, targets)
        passing.update([(inputs[i : i + 2], targets[i : i + 2]) for i in range(0, count, 2)])
        assert torch.equal(whole.batch.ids, passing.batch.ids)
        assert torch.equal(whole.batch.weights, passing.batch.weights)
        assert whole.error == passing.error


def test_what_was_forgotten_stays_known_to_later_choices_and_merged_memories() -> None:
    first, second = (rc.GradientMatching(make_model, 12, inits=2, dim=50) for _ in range(2))
    inputs, targets = examples(60)
    for memory in (first, second):
        memory.update(inputs, targets)
    gone = first.batch.ids[:2].tolist()
    second.forget(gone)
    second.update(*examples(60, seed=1))
    merged = first.merge(second)
    target = merged.target
    twice = [60 + i for i in gone]
    assert merged.forget(twice, inputs[gone], targets[gone]).tolist() == []
    assert torch.allclose(merged.target, target)


def test_a_class_that_is_lost_is_told_of_with_a_loss_of_ones_own() -> None:
    def smoothed(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1, reduction="none")

    inputs, targets = examples(400)
    targets = (targets == 2).long() * (torch.arange(400) % 40 == 0)
    assert 0 < targets.sum() < 10
    for choose in (
        lambda: rc.select(make_model, inputs, targets, 3, loss=smoothed, inits=1),
        lambda: rc.GradientMatching(make_model, 3, loss=smoothed, inits=1).update(inputs, targets),
    ):
        with pytest.warns(rc.LostClassWarning, match="got none left of 1 of 2"):
            choose()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numbers of rows are no classes
        rc.select(make_model, inputs, torch.arange(400), 3, loss=lambda outputs, _: outputs.square().sum(1), inits=1)


@pytest.mark.parametrize("options", [{}, {"layers": "all"}, {"layers": "all", "shortlist": None}])
@pytest.mark.parametrize("capacity", [3, 50])
def test_something_is_kept_also_where_nothing_is_of_use_for_the_target(options: dict[str, Any], capacity: int) -> None:
    """What is left of forgotten examples of one class points away from all examples of another."""
    x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    memory = rc.GradientMatching(partial(rc.models.mlp, 4, 2), capacity, **options)
    memory.update(x, torch.zeros(100, dtype=torch.long))
    memory.forget(memory.batch.ids)
    assert (len(memory), memory.error) == (0, 1.0)
    assert memory.merge(memory.merge(memory)).error == 1.0
    for _ in range(2):
        memory.update(x[:30], torch.ones(30, dtype=torch.long))
        assert len(memory) > 0 and bool((memory.batch.weights > 0).all())


def test_what_is_left_of_few_examples_weighs_as_if_the_others_had_never_come() -> None:
    inputs, targets = examples(4)[0], torch.tensor([0, 0, 0, 1])
    memory, fresh = (rc.GradientMatching(make_model, 10, inits=2, class_weight="balanced") for _ in range(2))
    memory.update(inputs, targets)
    memory.forget([1, 2])
    fresh.update(inputs[[0, 3]], targets[[0, 3]])
    assert torch.equal(memory.batch.weights, fresh.batch.weights)
    found = memory.embedding.embed(memory.batch.inputs, memory.batch.targets)  # type: ignore[union-attr]
    assert torch.allclose(memory.batch.weights.double() @ found.double(), memory.target, atol=1e-5)


def test_a_checkpoint_replaces_what_was_decided_on_the_first_examples() -> None:
    """Targets set the scale of the draws: those of the stream that is gone on with, not of the one before."""

    def make() -> rc.GradientMatching:
        return rc.GradientMatching(partial(rc.models.mlp, 4, 1), 10, loss="squared_error", inits=2, dim=40)

    inputs = torch.randn(120, 4, generator=torch.Generator().manual_seed(3))
    targets = inputs[:, :1].sin()
    steady, resumed = make(), make()
    steady.update(inputs[:60], targets[:60])
    resumed.update(inputs[60:], 100 * targets[60:] + 7)
    resumed.load_state_dict(steady.state_dict())
    for memory in (steady, resumed):
        memory.update(inputs[60:], targets[60:])
    assert torch.equal(steady.batch.ids, resumed.batch.ids)
    assert torch.equal(steady.batch.weights, resumed.batch.weights)


def test_a_cluster_is_refused_whenever_it_is_set_where_one_cannot_choose() -> None:
    memory = rc.GradientMatching(make_model, 12, class_weight="balanced")
    with pytest.raises(ValueError, match="from all classes alike, got class_weight or min_per_class"):
        memory.cluster = "auto"
    assert memory.cluster is None
    with pytest.raises(ValueError, match="chooses from a shortlist, got shortlist=None"):
        rc.GradientMatching(make_model, 12, shortlist=None, cluster="auto")


def test_a_seed_beside_that_of_the_embedding_is_refused() -> None:
    embedding = rc.GradientEmbedding(make_model, inits=2, seed=4)
    assert rc.GradientMatching(embedding, 12).seed == rc.GradientMatching(embedding, 12, seed=4).seed == 4
    with pytest.raises(ValueError, match="seed must be set where the embedding is made, 4, got 7 here"):
        rc.GradientMatching(embedding, 12, seed=7)
