import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import recollect as rc
from recollect.candidates import shortlisted
from recollect.classes import Tally, pursue_classes, sums_by_class
from recollect.dictionary import Factored, InMemory, Part

make_model = partial(rc.models.mlp, 3, 4, hidden=(8,))
cheap: dict[str, Any] = {"inits": 2, "dim": 40}


def examples(counts: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    """So many examples of each class, separable, shuffled."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    targets = targets[torch.randperm(len(targets), generator=generator)]
    corners = torch.tensor([[0.0, 0, 0], [4.0, 0, 0], [0.0, 4, 0], [0.0, 0, 4]])
    return corners[targets] + torch.randn(len(targets), 3, generator=generator), targets


def factors_by_hand(class_weight: Any, targets: Tensor) -> Tensor:
    """One factor per example, as scikit-learn defines them."""
    if class_weight == "balanced":
        counts = torch.bincount(targets)
        return len(targets) / (len(targets.unique()) * counts[targets].double())
    return torch.tensor([(class_weight or {}).get(int(label), 1.0) for label in targets], dtype=torch.float64)


@pytest.mark.parametrize("shortlist", [1.0, None])
@pytest.mark.parametrize("class_weight", ["balanced", {0: 0.5, 3: 8.0}])
def test_the_target_is_the_reweighted_sum_though_frequencies_change_along_the_stream(
    class_weight: Any, shortlist: float | None
) -> None:
    first, second, third = examples([30, 2, 0, 0]), examples([0, 9, 40, 0], 1), examples([3, 3, 3, 3], 2)
    memory = rc.GradientMatching(make_model, 12, class_weight=class_weight, shortlist=shortlist, **cheap)
    for batch in (first, second, third):
        memory.update(*batch)
    inputs, targets = (torch.cat(parts) for parts in zip(first, second, third, strict=True))
    rows = rc.GradientEmbedding(make_model, layers="auto", **cheap).embed(inputs, targets).double()
    expected = factors_by_hand(class_weight, targets) @ rows
    assert float((memory.target - expected).norm() / expected.norm()) < 1e-6
    count = float(factors_by_hand(class_weight, targets).sum())
    assert float(memory.batch.weights.sum()) == pytest.approx(count, rel=0.15)


def test_a_factor_of_three_is_every_example_of_the_class_three_times() -> None:
    inputs, targets = examples([30, 10, 10, 10])
    copies = torch.cat([torch.arange(60), *([(targets == 1).nonzero()[:, 0]] * 2)])
    weighted = rc.GradientMatching(make_model, 8, class_weight={1: 3.0}, **cheap)
    weighted.update(inputs, targets)
    repeated = rc.GradientMatching(make_model, 8, **cheap)
    repeated.update(inputs[copies], targets[copies])
    assert float((weighted.target - repeated.target).norm() / repeated.target.norm()) < 1e-6


def test_factors_of_one_choose_as_no_factors_do() -> None:
    inputs, targets = examples([40, 40, 10, 10])
    plain, ones = (
        rc.select(make_model, inputs, targets, 12, class_weight=given, shortlist=3, **cheap)
        for given in (None, {1: 1.0})
    )
    assert plain.indices.tolist() == ones.indices.tolist()
    assert plain.weights.tolist() == pytest.approx(ones.weights.tolist(), rel=1e-3)


def test_one_update_is_the_one_shot_selection_by_class() -> None:
    inputs, targets = examples([60, 20, 5, 3])
    options: dict[str, Any] = {"class_weight": "balanced", "min_per_class": 3, "shortlist": 2, **cheap}
    memory = rc.GradientMatching(make_model, 16, **options)
    memory.update(inputs, targets)
    coreset = rc.select(make_model, inputs, targets, 16, hold_count=True, **options)
    assert memory.batch.ids.tolist() == sorted(coreset.indices.tolist())
    assert memory.error == pytest.approx(coreset.error)


def test_while_all_is_kept_an_example_weighs_the_factor_of_its_class() -> None:
    memory = rc.GradientMatching(make_model, 100, class_weight="balanced", **cheap)
    for batch in (examples([20, 0, 4, 0]), examples([1, 3, 0, 0], 1)):
        memory.update(*batch)
    assert memory.batch.weights.tolist() == pytest.approx(factors_by_hand("balanced", memory.batch.targets).tolist())


@pytest.mark.parametrize("candidates", [False, True])
def test_no_class_with_fifty_separable_rows_of_five_thousand_is_lost_if_balanced(candidates: bool) -> None:
    inputs, targets = examples([2500, 2400, 50, 50])
    embedding = rc.GradientEmbedding(make_model, layers="auto", **cheap)
    memory = rc.GradientMatching(embedding, 50, class_weight="balanced")
    for x, y in zip(inputs.split(1000), targets.split(1000), strict=True):
        given = {"candidates": embedding.dictionary(x, y)} if candidates else {}
        memory.update(x, y, **given)  # type: ignore[arg-type]
    weights = torch.zeros(4).index_add_(0, memory.batch.targets, memory.batch.weights)
    assert weights.tolist() == pytest.approx([1250.0] * 4, rel=0.35)
    assert torch.bincount(memory.batch.targets, minlength=4).min() >= 3


def test_a_class_that_loses_its_last_row_is_told_of() -> None:
    inputs, targets = examples([300, 300, 300, 1])
    with pytest.warns(rc.LostClassWarning, match=r"got none left of 1 of 4 \(class 3\): pass min_per_class=1"):
        rc.select(make_model, inputs, targets, 4, **cheap)
    memory = rc.GradientMatching(make_model, 4, **cheap)
    with pytest.warns(rc.LostClassWarning):
        memory.update(inputs, targets)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rc.select(make_model, inputs, targets, 4, min_per_class=1, **cheap)


def test_quantities_that_are_whole_numbers_are_no_classes_to_lose() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(400, 2, generator=generator), torch.randint(0, 300, (400, 1), generator=generator)
    memory = rc.GradientMatching(lambda: rc.models.mlp(2, 1), 40, loss="squared_error", **cheap)
    with warnings.catch_warnings():
        warnings.simplefilter("error", rc.LostClassWarning)
        for x, y in zip(inputs.split(5), targets.split(5), strict=True):
            memory.update(x, y)
    counted = rc.GradientMatching(make_model, 20, **cheap)
    inputs, targets = examples([300, 300, 1])
    order = torch.randperm(len(targets), generator=generator)
    with pytest.warns(rc.LostClassWarning):  # of classes that come a few at a time it is told
        for rows in order.split(4):
            counted.update(inputs[rows], targets[rows])


@settings(max_examples=12, deadline=None)
@given(
    counts=st.lists(st.tuples(*[st.integers(0, 30)] * 4).filter(any), min_size=1, max_size=4),
    places=st.integers(1, 4),
    shortlist=st.sampled_from([1.0, 2.0, None]),
    seed=st.integers(0, 5),
)
def test_so_many_of_each_class_stay_whatever_matching_says(
    counts: list[tuple[int, ...]], places: int, shortlist: float | None, seed: int
) -> None:
    memory = rc.GradientMatching(make_model, 16, min_per_class=places, shortlist=shortlist, seed=seed, **cheap)
    total = torch.zeros(4, dtype=torch.long)
    for i, some in enumerate(counts):
        memory.update(*examples(list(some), seed=10 * seed + i))
        total += torch.tensor(some)
        kept = torch.bincount(memory.batch.targets, minlength=4)
        assert (kept >= total.clamp(max=places)).all()
        assert len(memory) <= 16
        assert (memory.batch.weights >= 0).all()
    if int(total.sum()) > 16:
        rows = rc.GradientEmbedding(make_model, layers="auto", seed=seed, **cheap).embed(
            memory.batch.inputs, memory.batch.targets
        )
        missing = memory.target - memory.batch.weights.double() @ rows.double()
        assert memory.error == pytest.approx(float(missing.norm() / memory.target.norm()), rel=1e-3, abs=1e-5)


def test_places_are_shared_fairly_where_there_is_no_room_for_all() -> None:
    memory = rc.GradientMatching(make_model, 6, min_per_class=5, **cheap)
    memory.update(*examples([50, 50, 0, 0]))
    memory.update(*examples([50, 50, 2, 2]))
    assert torch.bincount(memory.batch.targets, minlength=4).min() >= 1


def test_rows_that_are_of_no_use_to_matching_share_their_class_s_weight() -> None:
    inputs, targets = examples([60, 60, 0, 0])
    inputs[targets == 1] = 1.0
    memory = rc.GradientMatching(make_model, 10, min_per_class=5, regularization=0.0, **cheap)
    memory.update(inputs, targets)
    weights = memory.batch.weights[memory.batch.targets == 1].tolist()
    assert weights == pytest.approx([12.0] * 5)


def test_candidates_of_classes_that_count_more_are_drawn_more_often_and_some_of_each() -> None:
    labels = torch.tensor([0] * 9000 + [1] * 900 + [2] * 2)
    seen = Tally.of(labels)
    rows = shortlisted(torch.arange(len(labels)), 50, 10.0, 0, labels=labels, seen=seen, classes=("balanced", 0))
    assert rows is not None
    drawn = torch.bincount(labels[rows])
    assert len(rows) == 500
    assert drawn[1] == pytest.approx(249, abs=45)  # equal parts of what is drawn, once class 2 is drawn empty
    assert drawn[2] == 2
    rows = shortlisted(torch.arange(len(labels)), 5, 2.0, 0, labels=labels, seen=seen, classes=(None, 3))
    assert rows is not None
    assert torch.bincount(labels[rows])[1:].tolist() == [6, 2]


def test_factors_and_places_are_saved_with_the_memory(tmp_path: Path) -> None:
    options: dict[str, Any] = {"class_weight": {0: 2.0, 2: 5}, "min_per_class": 2, **cheap}
    steady = rc.GradientMatching(make_model, 9, **options)
    steady.update(*examples([20, 5, 3, 0]))
    steady.save(tmp_path)
    resumed = rc.load_memory(tmp_path, make_model)
    for memory in (steady, resumed):
        memory.update(*examples([0, 5, 0, 9], 1))
    assert torch.equal(steady.batch.ids, resumed.batch.ids)
    assert torch.equal(steady.batch.weights, resumed.batch.weights)


@pytest.mark.parametrize("kind", ["in memory", "factored"])
def test_sums_by_class_and_parts_are_those_of_the_rows(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    factored = Factored(torch.randn(2, 50, 3, generator=generator), torch.randn(2, 50, 4, generator=generator))
    rows = factored.rows(torch.arange(50))
    dictionary = factored if kind == "factored" else InMemory(rows)
    labels = torch.arange(50) % 3
    expected = torch.stack([rows[labels == c].double().sum(0) for c in range(3)])
    assert torch.allclose(sums_by_class(dictionary, labels), expected, atol=1e-5)
    places = (labels == 1).nonzero()[:, 0]
    part, vector = Part(dictionary, places), torch.randn(24, generator=generator)
    assert torch.allclose(part.products(vector), rows[places] @ vector, atol=1e-5)
    assert torch.allclose(part.sum(), expected[1], atol=1e-5)
    assert torch.allclose(part.norms(), rows[places].norm(dim=1).double(), atol=1e-5)
    assert torch.equal(part.rows(torch.tensor([2, 0])), rows[places[[2, 0]]])
    assert len(part) == len(places)


def test_other_classes_match_what_a_class_by_itself_leaves() -> None:
    rows = torch.cat([torch.eye(4), torch.eye(4)[:1]])
    seen, sums = Tally(torch.tensor([0, 1]), torch.tensor([40, 2])), torch.tensor([[10.0] * 4, [2.0, 0, 0, 0]]).double()
    labels = torch.tensor([0, 0, 0, 0, 1])
    coreset = pursue_classes(InMemory(rows), labels, 4, seen, sums, (None, 1), regularization=0.0, hold_count=False)
    assert dict(zip(coreset.indices.tolist(), coreset.weights.tolist(), strict=True)) == pytest.approx(
        {4: 2.0, 0: 10.0, 1: 10.0, 2: 10.0}
    )


def test_classes_whose_gradients_are_zero_keep_their_places() -> None:
    rows = torch.cat([torch.eye(4), torch.zeros(3, 4)])
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    seen = Tally.of(labels)
    sums = sums_by_class(InMemory(rows), labels)
    coreset = pursue_classes(InMemory(rows), labels, 4, seen, sums, (None, 2))
    assert sorted(labels[coreset.indices].tolist()) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"class_weight": [1.0, 2.0]}, r"got \[1.0, 2.0\]: pass dict\(enumerate\(...\)\) of a row of factors"),
        ({"class_weight": "equal"}, "class_weight must be None, 'balanced' or a dict of factors by class, got 'equal'"),
        ({"class_weight": {"a": 1.0}}, "class_weight must name classes by whole numbers, got 'a'"),
        ({"class_weight": {0: 0.0}}, "class_weight must give factors above 0, got 0.0 for class 0"),
        ({"class_weight": {0: "x"}}, "each factor of class_weight must be a number of at least 0, got 'x'"),
        ({"min_per_class": -1}, "min_per_class must be a whole number of at least 0, got -1"),
        ({"min_per_class": True}, "min_per_class must be a whole number of at least 0, got True"),
    ],
)
def test_odd_options_are_refused_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    inputs, targets = examples([5, 5, 0, 0])
    with pytest.raises(ValueError, match=sentence):
        rc.select(make_model, inputs, targets, 3, **options)
    with pytest.raises(ValueError, match=sentence):
        rc.GradientMatching(make_model, 3, **options)


@pytest.mark.parametrize("option", [{"class_weight": "balanced"}, {"min_per_class": 1}])
def test_targets_without_classes_are_refused(option: dict[str, Any]) -> None:
    inputs, targets = torch.zeros(9, 3), torch.ones(9, 4)
    memory = rc.GradientMatching(make_model, 3, loss="squared_error", **option)
    sentence = "class_weight and min_per_class are about classes, so pass targets.argmax"
    with pytest.raises(ValueError, match=sentence):
        memory.update(inputs, targets)
    with pytest.raises(ValueError, match=sentence):
        rc.select(make_model, inputs, targets, 3, loss="squared_error", **option)
    assert memory.seen == 0


def test_more_places_than_there_is_room_for_are_refused_where_all_is_known() -> None:
    inputs, targets = examples([9, 9, 2, 0])
    with pytest.raises(ValueError, match=r"size must be at least the 10 places that min_per_class asks for, got 9"):
        rc.select(make_model, inputs, targets, 9, min_per_class=4, **cheap)
    with pytest.raises(ValueError, match=r"min_per_class must be at most the capacity, 3, got 4"):
        rc.GradientMatching(make_model, 3, min_per_class=4)
