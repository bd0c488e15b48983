import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import recollect as rc
from recollect.candidates import shortlisted
from tests.networks import LABELS, NETWORKS
from tests.oracles import gradients_by_torch_func
from tests.second_device import DEVICE, SecondDevice

make_model = partial(rc.models.mlp, 6, 3)


def test_matching_error_is_the_objective_at_fresh_initialisations() -> None:
    """Against per-example gradients of torch.func at the same fresh draws, none of which selection uses."""
    inputs = NETWORKS["mlp"][1]
    weights = torch.tensor([3.0, 0.5], dtype=torch.float64)
    coreset = rc.Coreset(torch.tensor([4, 1]), weights, error=0.0)
    measured = rc.matching_error(make_model, (inputs, LABELS), coreset, inits=3, batch_size=2, seed=5)

    embedding = rc.GradientEmbedding(make_model, inits=3, projection=None)
    embedding.prepared = embedding.prepare(inputs, LABELS)
    seeds = [rc.randomness.derive_seed(5, "fresh model", s) for s in range(3)]  # type: ignore[attr-defined]
    embedding._model = lambda s: rc.embedding.draw_model(make_model, seeds[s])  # type: ignore[method-assign, attr-defined]
    G = gradients_by_torch_func(embedding, inputs, LABELS).double()
    difference = weights @ G[coreset.indices] - G.sum(0)
    assert measured == pytest.approx(float(difference.norm() / G.sum(0).norm()), rel=1e-5)


def test_a_memory_batch_can_be_measured_too() -> None:
    inputs = NETWORKS["mlp"][1]
    memory = rc.Reservoir(7)
    memory.update(inputs, LABELS)
    assert rc.matching_error(make_model, (inputs, LABELS), memory.batch, inits=2) < 1e-6


def test_selection_takes_arrays() -> None:
    inputs = NETWORKS["mlp"][1].numpy().astype(np.float64)
    coreset = rc.select(make_model, inputs, LABELS.numpy(), 3, inits=2)
    assert len(coreset) <= 3
    assert math.isfinite(coreset.error)


def test_the_papers_settings_are_keyword_arguments() -> None:
    coreset = rc.select(make_model, NETWORKS["mlp"][1], LABELS, 3, **rc.PAPER)
    assert len(coreset) == 3


@pytest.mark.parametrize("layers", ["auto", "all"])
def test_inputs_whose_squares_leave_single_precision_are_matched(layers: str) -> None:
    """As of times in nanoseconds; the last layer's gradients are kept as factors, which are multiplied."""
    inputs = 1e20 * torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
    coreset = rc.select(make_model, inputs, torch.arange(300) % 3, 30, inits=3, layers=layers)
    assert len(coreset) == 30 and coreset.error < 0.5


def test_rows_are_chosen_from_the_shortlist_by_their_own_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(200, 6, generator=generator), torch.arange(200) % 3
    rows = shortlisted(torch.arange(200), 5, 2.0, 0)
    assert rows is not None and len(rows) == 10
    coreset = rc.select(make_model, inputs, targets, 5, inits=2, shortlist=2.0)
    assert set(coreset.indices.tolist()) < set(rows.tolist())


def test_size_must_fit_the_data() -> None:
    with pytest.raises(ValueError, match="size must be between 1 and the 7 examples, got 8: pass a smaller size"):
        rc.select(make_model, NETWORKS["mlp"][1], LABELS, 8)


@pytest.mark.parametrize("size", [0, -1, 2.0, True])
def test_a_size_must_be_a_number_of_examples_or_a_fraction_of_them(size: int) -> None:
    told = f"size must be a whole number of at least 1, or a fraction of all up to 1, got {size}"
    with pytest.raises(ValueError, match=f"^{told}$"):
        rc.select(make_model, NETWORKS["mlp"][1], LABELS, size)


def test_indices_outside_the_data_are_refused() -> None:
    coreset = rc.Coreset(torch.tensor([7]), torch.ones(1, dtype=torch.float64), 0.0)
    with pytest.raises(ValueError, match="indices must be rows of the 7 examples"):
        rc.matching_error(make_model, (NETWORKS["mlp"][1], LABELS), coreset)


def test_regression_can_be_selected() -> None:
    x = torch.linspace(-2, 2, 60)[:, None]
    coreset = rc.select(partial(rc.models.mlp, 1, 1), x, torch.sin(x), 8, loss="squared_error")
    error = rc.matching_error(partial(rc.models.mlp, 1, 1), (x, torch.sin(x)), coreset, loss="squared_error")
    assert error < 0.2


def test_a_coreset_put_together_by_hand_can_be_measured() -> None:
    make, data = (lambda: rc.models.mlp(1, 2)), (torch.linspace(-1, 1, 40)[:, None], torch.arange(40) % 2)
    rows, weights = torch.arange(0, 40, 4), torch.full((10,), 4.0, dtype=torch.float64)
    indices: Any
    factors: Any
    wanted = rc.matching_error(make, data, rc.Coreset(rows, weights, 0.0), inits=2)
    for indices, factors in ((rows.numpy(), weights.numpy()), (rows.tolist(), [4] * 10), (rows.int(), weights.float())):
        assert rc.matching_error(make, data, rc.Coreset(indices, factors, 0.0), inits=2) == pytest.approx(wanted)
    for indices, factors in ((rows, weights[:3]), (rows.double(), weights), (rows, weights * torch.nan)):
        with pytest.raises(ValueError, match="a coreset must have a finite weight for each of its row numbers"):
            rc.matching_error(make, data, rc.Coreset(indices, factors, 0.0), inits=2)


def test_the_error_of_balanced_classes_is_measured_against_balanced_classes() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = (torch.arange(300) % 10 == 0).long()
    inputs = 0.3 * torch.randn(300, 6, generator=generator) + 2 * targets[:, None]
    make = partial(rc.models.mlp, 6, 2, hidden=(8,))
    coreset = rc.select(make, inputs, targets, 60, class_weight="balanced", inits=3)
    plain = rc.matching_error(make, (inputs, targets), coreset, inits=3)
    balanced = rc.matching_error(make, (inputs, targets), coreset, class_weight="balanced", inits=3)
    factors = torch.tensor([300 / 540, 300 / 60])[targets]
    by_weights = rc.matching_error(make, (inputs, targets), coreset, weights=factors, inits=3)
    assert balanced == pytest.approx(by_weights, rel=1e-6)
    assert balanced < 0.1 < plain


def test_the_error_is_measured_at_draws_of_the_same_kind() -> None:
    inputs, targets = NETWORKS["mlp"][1], LABELS
    coreset = rc.select(make_model, inputs, targets, 4, inits=2)
    at = [rc.matching_error(make_model, (inputs, targets), coreset, inits=2, init_scale=s) for s in (1.0, 4.0)]
    assert at[0] != at[1]
    with pytest.raises(ValueError, match="init must be one of"):
        rc.matching_error(make_model, (inputs, targets), coreset, init="orthogonal")


@pytest.mark.parametrize("scale", [0, -1.0, "large"])
def test_the_scale_of_draws_is_checked_alike_for_choosing_and_measuring(scale: Any) -> None:
    inputs, targets = NETWORKS["mlp"][1], LABELS
    coreset = rc.select(make_model, inputs, targets, 4, inits=2)
    for call in (
        lambda: rc.select(make_model, inputs, targets, 4, init_scale=scale),
        lambda: rc.matching_error(make_model, (inputs, targets), coreset, init_scale=scale),
    ):
        with pytest.raises(ValueError, match="init_scale must be a"):
            call()


@pytest.mark.parametrize("options", [{"rule": "best"}, {"center": "one"}, {"exact": 1.5}, {"tolerance": -1}])
def test_options_that_cannot_be_are_refused_before_any_model_is_made(options: dict[str, Any]) -> None:
    def never() -> nn.Module:
        raise AssertionError("a model was made")

    inputs = torch.zeros(20, 3)
    (name,) = options
    for call in (
        lambda: rc.select(never, inputs, torch.arange(20) % 2, 5, **options),
        lambda: rc.estimate(never, inputs, size=5, **options),
        lambda: rc.GradientMatching(never, 5, **options),
        lambda: rc.LocalGradientMatching(5, **options),
    ):
        with pytest.raises(ValueError, match=f"{name} must be"):
            call()


@pytest.mark.parametrize("options", [{"dim": 0}, {"loss": "hinge"}, {"projection": "x"}, {"batch_size": 0}])
def test_options_of_local_gradients_are_refused_where_they_are_passed(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} must be"):
        rc.LocalGradientMatching(5, **options)


def test_the_error_can_be_measured_without_statistics_of_the_first_examples() -> None:
    def make_model() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))

    data = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)) * 5 + 3, torch.arange(40) % 2
    coreset = rc.select(make_model, *data, 6, inits=2)
    plain, calibrated = (rc.matching_error(make_model, data, coreset, inits=2, calibrate=c) for c in (False, True))
    assert plain != calibrated
    by_hand = rc.matching_error(
        lambda: nn.Sequential(nn.Linear(3, 6), nn.Flatten(), nn.ReLU(), nn.Linear(6, 2)), data, coreset, inits=2
    )
    assert plain == pytest.approx(by_hand, rel=0.2)  # fresh BatchNorm does nothing, but for its own gradients


@pytest.mark.parametrize(
    "options",
    [{}, {"shortlist": None}, {"class_weight": "balanced", "shortlist": None}, {"min_per_class": 2, "shortlist": 2.0}],
)
def test_examples_may_be_on_another_device_than_gradients(options: dict[str, Any]) -> None:
    inputs, targets = torch.randn(60, 6, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    wanted = rc.select(make_model, inputs, targets, 10, inits=2, **options)
    with SecondDevice():
        found = rc.select(make_model, inputs.to(DEVICE), targets.to(DEVICE), 10, inits=2, **options)
    assert torch.equal(found.indices, wanted.indices) and torch.equal(found.weights, wanted.weights)
