import math
from functools import partial

import pytest
import torch
from torch import Tensor

import recollect as rc
from recollect.batch import Batch
from recollect.onepass import drawn
from recollect.standouts import DEVIATIONS, Standouts, with_standouts

make_model = partial(rc.models.mlp, 4, 3, hidden=(16,))
OUTLIERS = [137, 401]


def examples(n: int = 600) -> tuple[Tensor, Tensor]:
    """Two of them unlike all others, of which a shortlist of a few draws none."""
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(n, 4, generator=generator), torch.randint(0, 3, (n,), generator=generator)
    inputs[[i for i in OUTLIERS if i < n]] *= 300
    return inputs, targets


def losses_by_hand(inputs: Tensor, targets: Tensor, embedding: rc.GradientEmbedding) -> Tensor:
    total = torch.zeros(len(targets), dtype=torch.float64)
    for s in range(embedding.inits):
        outputs = embedding._model(s)(inputs)
        total += torch.nn.functional.cross_entropy(outputs, targets, reduction="none").detach() / embedding.inits
    return total


@pytest.mark.parametrize("layers", ["last", "all", "auto"])
@pytest.mark.parametrize("projection", ["auto", "sparse", "kronecker", None])
@pytest.mark.parametrize("network", [make_model, lambda: torch.nn.Sequential(torch.nn.LayerNorm(4), make_model())])
def test_losses_are_those_of_plain_passes(layers: str, projection: str, network: object) -> None:
    inputs, targets = examples(50)
    embedding = rc.GradientEmbedding(network, inits=3, dim=20, layers=layers, projection=projection, batch_size=16)
    by_hand = losses_by_hand(inputs, targets, embedding)
    weights = torch.linspace(0, 2, 50)
    for found in (
        embedding.total_and_losses(inputs, targets, weights=weights)[1],
        embedding.dictionary(inputs, targets).losses,
    ):
        torch.testing.assert_close(found, by_hand, rtol=1e-4, atol=1e-5)


def test_a_loss_stands_out_by_deviations_above_the_mean() -> None:
    losses = torch.randn(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 20
    for height, stands in ((0.9 * DEVIATIONS, False), (1.2 * DEVIATIONS, True)):
        losses[7] = 20 + height
        assert (7 in with_standouts(torch.arange(100, 200), losses)) == stands


@pytest.mark.parametrize("value", [0.0, 2.3, -4.0])
def test_none_stands_out_where_all_losses_are_nearly_the_same(value: float) -> None:
    losses = torch.full((500,), value, dtype=torch.float64)
    losses[3] += 0.01 * abs(value)
    assert with_standouts(torch.arange(10, 20), losses).tolist() == list(range(10, 20))


def test_standouts_are_a_tenth_of_the_candidates_at_most() -> None:
    losses = torch.ones(10_000)
    losses[:50] = torch.arange(1000.0, 1050.0)
    assert with_standouts(torch.arange(5000, 5200), losses)[:-200].tolist() == list(range(30, 50))


@pytest.mark.parametrize("cuts", [[600], [1] * 600, [100, 450, 50]])
def test_who_stands_out_does_not_depend_on_how_the_stream_is_cut(cuts: list[int]) -> None:
    inputs, targets = examples()
    losses = losses_by_hand(inputs, targets, rc.GradientEmbedding(make_model))
    everything = Batch.arriving(inputs, targets)
    some = drawn(everything.ids, 20, seed=0)
    expected = with_standouts(some, losses)
    assert set(OUTLIERS) <= set(expected.tolist()) and not set(OUTLIERS) & set(some.tolist())
    found: Standouts | None = None
    for places in torch.arange(600).split(cuts):
        part = Standouts.of(everything.take(places), losses[places], 20)
        found = part if found is None else found.plus(part)
    assert found is not None
    assert found.beside(everything.take(some)).ids.tolist() == expected.tolist()
    assert found.beside(everything.take(expected)).ids.tolist() == expected.tolist()  # none of them twice
    whole = losses.sum(), losses.square().sum()
    torch.testing.assert_close((found.total, found.squares), tuple(map(float, whole)), rtol=1e-12, atol=0.0)


def test_of_many_that_stand_out_the_loudest_are_candidates() -> None:
    everything, losses = Batch.arriving(torch.zeros(5000, 1), torch.zeros(5000)), torch.ones(5000)
    losses[:10] = torch.arange(300.0, 310.0)
    some = torch.arange(1000, 1030)
    found = Standouts.of(everything, losses, 200).beside(everything.take(some))  # more were to be drawn at first
    assert found.ids.tolist() == with_standouts(some, losses).tolist() == [7, 8, 9, *range(1000, 1030)]


def test_an_example_that_stands_out_is_chosen_whoever_looks_at_it() -> None:
    inputs, targets = examples()
    coreset = rc.select(make_model, inputs, targets, 12, shortlist=2)
    assert set(OUTLIERS) <= set(coreset.indices.tolist())
    batches = [(inputs[i : i + 70], targets[i : i + 70]) for i in range(0, 600, 70)]
    in_passing = rc.select(make_model, batches, size=12, shortlist=2)
    assert torch.equal(in_passing.indices, coreset.indices) and torch.equal(in_passing.weights, coreset.weights)
    by_class = rc.select(make_model, inputs, targets, 12, shortlist=2, min_per_class=1)
    assert set(OUTLIERS) <= set(by_class.indices.tolist())


def test_what_stood_out_in_an_earlier_block_is_remembered() -> None:
    inputs, targets = examples(9000)
    batches = [(inputs[i : i + 1000], targets[i : i + 1000]) for i in range(0, 9000, 1000)]
    whole, in_passing = (rc.select(make_model, *data, size=12, inits=2) for data in ((inputs, targets), (batches,)))
    assert OUTLIERS[1] in whole.indices  # the other has no gradient at two draws
    assert torch.equal(whole.indices, in_passing.indices)


def test_a_memory_keeps_what_stands_out_with_embeddings_at_hand_or_not() -> None:
    inputs, targets = examples()
    embedding = rc.GradientEmbedding(make_model, layers="auto", projection="auto")
    given, own = rc.GradientMatching(embedding, 12, shortlist=2), rc.GradientMatching(make_model, 12, shortlist=2)
    for x, y in zip(inputs.split(300), targets.split(300), strict=True):
        given.update(x, y, candidates=embedding.dictionary(x, y))
        own.update(x, y)
    assert set(OUTLIERS) <= set(own.batch.ids.tolist())
    assert torch.equal(given.batch.ids, own.batch.ids)
    torch.testing.assert_close(given.batch.weights, own.batch.weights)


def test_outliers_would_spoil_the_matching_error_if_they_did_not_stand_out(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, targets = examples()
    errors = []
    for deviations in (DEVIATIONS, math.inf):
        monkeypatch.setattr("recollect.standouts.DEVIATIONS", deviations)
        errors.append(rc.select(make_model, inputs, targets, 12, shortlist=4).error)
    assert errors[0] < 0.3 * errors[1]


def test_outliers_of_which_a_shortlist_keeps_a_few_weigh_as_much_as_all_of_them() -> None:
    inputs = torch.randn(3000, 10, generator=torch.Generator().manual_seed(0))
    inputs[inputs[:, 2].topk(60).indices, 0] = 200.0
    targets = (inputs[:, 1] > 0).long()
    coreset = rc.select(lambda: rc.models.mlp(10, 2), inputs, targets, 50)
    assert coreset.weights[inputs[coreset.indices, 0] == 200].sum().item() == pytest.approx(60, rel=0.05)
