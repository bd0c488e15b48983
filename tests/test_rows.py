"""Rows as factors against the same rows formed."""

import pytest
import torch

import recollect as rc
from recollect.dictionary import (
    Factored,
    InMemory,
    joined,
    part,
    remembered,
    remembering_more,
    taken,
    to_remember,
    weighted_sum,
)
from recollect.rows import Outer, Plain


def factored(n: int, *, inits: int = 3, n_out: int = 4, n_in: int = 6, bias: bool = True, seed: int = 0) -> Factored:
    generator = torch.Generator().manual_seed(seed)
    deltas = torch.randn(inits, n, n_out, generator=generator)
    inputs = torch.randn(inits, n, n_in, generator=generator).relu() + 0.3
    return Factored(deltas + 0.2, inputs, bias=bias)


@pytest.mark.parametrize("n", [9, 300])  # all initialisations at once, and one after the other
@pytest.mark.parametrize("constant", [0.0, 0.7])
@pytest.mark.parametrize("bias", [True, False])
def test_all_that_is_asked_of_factors_is_what_formed_rows_answer(bias: bool, constant: float, n: int) -> None:
    candidates = factored(n, bias=bias)
    form = candidates.form._replace(constant=constant, padding=16 if constant else 0)
    packed = candidates.packed(torch.arange(n)).double()
    rows, plain = form.formed(packed), Plain()
    assert rows.shape == (n, 3 * 4 * (6 + bias) + form.padding)
    assert torch.allclose(rows[:, : form.dim].float(), candidates.rows(torch.arange(n)))
    assert torch.allclose(form.products(packed[:4], packed), plain.products(rows[:4], rows))
    assert torch.allclose(form.gram(packed), plain.gram(rows))
    vector = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(form.along(packed, vector), plain.along(rows, vector))
    weights = torch.linspace(0, 2, n).double()
    assert torch.allclose(form.combined(weights, packed), plain.combined(weights, rows))
    assert torch.allclose(form.sum(packed), plain.sum(rows))
    assert torch.allclose(candidates.norms(), candidates.rows(torch.arange(n)).double().norm(dim=1))
    assert packed.shape[1] == form.width == 3 * 10


@pytest.mark.parametrize("bias", [True, False])
def test_factors_that_are_remembered_joined_or_cut_are_the_same_rows(bias: bool) -> None:
    candidates, others = factored(9, bias=bias), factored(5, bias=bias, seed=1)
    again = remembered(to_remember(candidates), torch.device("cpu"))
    everything = torch.arange(9)
    assert isinstance(again, Factored) and again.form == candidates.form
    assert torch.equal(again.rows(everything), candidates.rows(everything))
    with pytest.raises(ValueError, match="damaged"):
        remembered({**to_remember(candidates), "factors": torch.tensor([3, 4, 7, bias])}, torch.device("cpu"))
    both = joined(again, others)
    assert isinstance(both, Factored)
    formed = torch.cat([candidates.rows(everything), others.rows(torch.arange(5))])
    assert torch.equal(both.rows(torch.arange(14)), formed)
    more = remembering_more(to_remember(candidates), others, torch.device("cpu"))
    assert torch.equal(remembered(more, torch.device("cpu")).rows(torch.arange(14)), formed)
    assert more.keys() == to_remember(both).keys() and torch.equal(more["embeddings"], to_remember(both)["embeddings"])
    other_form = remembering_more(to_remember(candidates), InMemory(others.rows(torch.arange(5))), torch.device("cpu"))
    assert torch.equal(other_form["embeddings"], formed) and "factors" not in other_form
    some, weights = torch.tensor([12, 3, 8]), torch.tensor([2.0, 0.5, 1.0])
    for cut in (taken(both, some), part(both, some), part(InMemory(formed), some)):
        assert torch.equal(cut.rows(torch.arange(3)), formed[some])
    assert torch.allclose(weighted_sum(both, some, weights), weights.double() @ formed[some].double())
    mixed = joined(InMemory(candidates.rows(everything)), others)
    assert torch.equal(mixed.rows(torch.arange(14)), formed)


@pytest.mark.parametrize(
    "options", [{}, {"exact": True}, {"rule": "inner-product"}, {"count": 900.0}, {"center": "zero"}]
)
@pytest.mark.parametrize("size", [40, 220])  # of 300: most of them are dropped to
def test_factors_are_matched_as_formed_rows_are(options: dict[str, object], size: int) -> None:
    candidates = factored(300, inits=8, n_in=30)
    target = 3 * candidates.sum()
    formed = rc.pursue(candidates.rows(torch.arange(300)), size, target=target, **options)  # type: ignore[arg-type]
    kept = rc.pursue(candidates, size, target=target, **options)  # type: ignore[arg-type]
    assert set(kept.indices.tolist()) == set(formed.indices.tolist())
    places = {int(i): float(w) for i, w in zip(formed.indices, formed.weights, strict=True)}
    assert kept.weights.tolist() == pytest.approx([places[int(i)] for i in kept.indices], rel=1e-3, abs=1e-3)
    assert kept.error == pytest.approx(formed.error, rel=1e-4)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
def test_the_scale_of_factors_does_not_matter(scale: float) -> None:
    candidates = factored(200, bias=False)
    deltas, inputs = candidates.form.factors(candidates.packed(torch.arange(200)))
    for scaled in (Factored(deltas * scale, inputs), Factored(deltas, inputs * scale)):
        assert torch.equal(rc.pursue(candidates, 20).indices, rc.pursue(scaled, 20).indices)


def test_factors_are_kept_where_they_are_no_longer_than_dim() -> None:
    def embedding(dim: int, **options: object) -> rc.GradientEmbedding:
        return rc.GradientEmbedding(lambda: rc.models.mlp(5, 10, hidden=(30,)), inits=2, dim=dim, **options)  # type: ignore[arg-type]

    x, y = torch.randn(12, 5, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 10
    for dim, kind, width in ((40, Factored, 310), (39, InMemory, 39), (400, Factored, 310)):
        one = embedding(dim, layers="auto", projection="auto")
        found = one.dictionary(x, y)
        assert type(found) is kind and found.dim == 2 * width
        assert torch.allclose(one.total(x, y), found.sum(), rtol=1e-5, atol=1e-6)
        assert torch.allclose(one.embed(x, y), found.rows(torch.arange(12)), rtol=1e-5, atol=1e-6)
    assert type(embedding(40, layers="last").dictionary(x, y)) is InMemory  # projected, if that is asked for
    assert type(embedding(309, layers="last").dictionary(x, y)) is InMemory
    assert type(embedding(310, layers="last").dictionary(x, y)) is Factored  # no longer than dim
    everything = embedding(40, projection="auto")
    assert everything.dictionary(x, y).dim == 80
    assert torch.equal(everything.embed(x, y), embedding(40).embed(x, y))


def test_a_layer_that_is_used_for_each_position_is_projected() -> None:
    class Tagger(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(6, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x).mean(1)  # type: ignore[no-any-return]

    x, y = torch.randn(8, 3, 6, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 5
    embedding = rc.GradientEmbedding(Tagger, inits=2, dim=20, layers="last", projection="auto")
    assert type(embedding.dictionary(x, y)) is InMemory
    assert embedding.embed(x, y).shape == (8, 40)


def test_a_form_says_how_long_its_rows_are() -> None:
    assert Outer(10, 10, 256, True).dim == 25_700
    assert Outer(10, 10, 256, True).width == 2_660
