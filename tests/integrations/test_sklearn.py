"""scikit-learn: the weights arrive in `fit`, and the estimators are estimators like any other."""

import pickle
import re
import warnings
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest
from imblearn.pipeline import make_pipeline as make_sampling_pipeline
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from recollect.integrations.sklearn import CoresetClassifier, CoresetRegressor, CoresetSampler
from recollect.randomness import seeded
from recollect.tables import fit_encoding
from recollect.tables.encoding import Drift

X, Y = load_iris(return_X_y=True)


def linear(n_features: int, n_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(n_features, n_outputs))


def quick(size: int | float = 20, estimator: Any = None, **options: Any) -> CoresetClassifier:
    return CoresetClassifier(estimator, size=size, network=linear, **options)


_NOT_PROMISED = {
    "check_sample_weight_equivalence_on_dense_data": "of rows that are repeated others are drawn than of weighted ones"
}


def checked(estimator: Any) -> None:
    """All of scikit-learn's own checks; what needs a variable that is not set says so and is skipped."""
    with warnings.catch_warnings(), seeded(0):  # scikit-learn's checks draw from the global state
        warnings.filterwarnings("ignore", module="sklearn.*")  # scikit-learn's own, of its odd inputs
        results = check_estimator(estimator, on_skip=None, on_fail="raise", expected_failed_checks=_NOT_PROMISED)
    assert len(results) > 40
    not_passed = {result["check_name"] for result in results if result["status"] != "passed"}
    assert not_passed <= {"check_array_api_input", *_NOT_PROMISED}


def test_the_classifier_passes_every_check_of_scikit_learn() -> None:
    checked(quick())


def test_the_regressor_passes_every_check_of_scikit_learn() -> None:
    checked(CoresetRegressor(size=0.5, network=linear))


def test_rows_count_as_often_as_their_weights_say() -> None:
    X, y = make_classification(400, 5, random_state=0)
    weights = np.where(y == 1, 9.0, 1.0) * np.random.default_rng(0).integers(0, 3, 400)
    everything = quick(400, LogisticRegression()).fit(X, y, sample_weight=weights)
    alone = LogisticRegression().fit(X[weights > 0], y[weights > 0], sample_weight=weights[weights > 0])
    assert everything.estimator_.coef_ == pytest.approx(alone.coef_, rel=1e-4)
    assert everything.sample_indices_.tolist() == weights.nonzero()[0].tolist()
    few = quick(40).fit(X, y, weights)
    assert few.sample_weight_.sum() == pytest.approx(weights.sum(), rel=0.3)
    assert (
        few.sample_weight_[y[few.sample_indices_] == 1].sum()
        > 5 * few.sample_weight_[y[few.sample_indices_] == 0].sum()
    )
    stream = (
        quick(40)
        .partial_fit(X[:200], y[:200], [0, 1], weights[:200])
        .partial_fit(X[200:], y[200:], None, weights[200:])
    )
    assert stream.sample_weight_.sum() == pytest.approx(weights.sum(), rel=0.2)
    quantities = CoresetRegressor(size=400, network=linear).fit(X, X[:, 0], weights)
    assert quantities.sample_weight_.tolist() == weights[weights > 0].tolist()
    for wrong, got in ((weights[:5], "shape (5,)"), (weights - 1, "from -1 to 17"), (0 * weights, "from 0 to 0")):
        with pytest.raises(ValueError, match=re.escape(got)):
            quick(40).fit(X, y, wrong)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CoresetClassifier, CoresetRegressor])
def test_every_check_is_passed_with_the_default_network(kind: Any) -> None:
    checked(kind(size=0.5))


def test_the_fitted_classifier_equals_one_fitted_by_hand_with_the_weights() -> None:
    model = quick(20, LogisticRegression(max_iter=500)).fit(X, Y)
    rows, weights = model.sample_indices_, model.sample_weight_
    assert len(rows) == 20 and weights.std() > 0.1
    by_hand = LogisticRegression(max_iter=500).fit(X[rows], Y[rows], sample_weight=weights)
    np.testing.assert_array_equal(model.estimator_.coef_, by_hand.coef_)
    np.testing.assert_array_equal(model.predict_proba(X), by_hand.predict_proba(X))
    without = LogisticRegression(max_iter=500).fit(X[rows], Y[rows])
    assert np.abs(without.coef_ - by_hand.coef_).max() > 0.01


def test_the_fitted_regressor_equals_the_weighted_normal_equations() -> None:
    inputs, targets = load_diabetes(return_X_y=True)
    model = CoresetRegressor(Ridge(alpha=2.0, fit_intercept=False), size=50, network=linear).fit(inputs, targets)
    A, b, w = inputs[model.sample_indices_], targets[model.sample_indices_], model.sample_weight_
    by_hand = np.linalg.solve(A.T @ (w[:, None] * A) + 2.0 * np.eye(A.shape[1]), A.T @ (w * b))
    np.testing.assert_allclose(model.estimator_.coef_, by_hand)


def test_the_last_step_of_a_pipeline_inside_gets_the_weights() -> None:
    inner = make_pipeline(StandardScaler(), make_pipeline(StandardScaler(), LogisticRegression()))
    model = quick(20, inner).fit(X, Y)
    rows = model.sample_indices_
    scaled = clone(inner)[0].fit_transform(X[rows])
    scaled = StandardScaler().fit_transform(scaled)
    by_hand = LogisticRegression().fit(scaled, Y[rows], sample_weight=model.sample_weight_)
    np.testing.assert_allclose(model.estimator_[-1][-1].coef_, by_hand.coef_)


def test_an_estimator_that_would_drop_the_weights_is_refused_before_anything_is_chosen() -> None:
    with pytest.raises(ValueError, match=r"estimator must take sample_weight.*got KNeighborsClassifier"):
        quick(20, KNeighborsClassifier()).fit(X, Y)


def test_partial_fit_keeps_places_of_the_stream_and_fits_on_what_is_kept() -> None:
    order = np.random.default_rng(0).permutation(len(X))
    inputs, labels = X[order], Y[order]
    model = quick(20)
    for part in np.array_split(np.arange(len(inputs)), 5):
        model.partial_fit(inputs[part], labels[part], classes=[0, 1, 2])
    rows, weights = model.sample_indices_, model.sample_weight_
    assert len(rows) == 20 and rows.max() >= 120 and weights.sum() == pytest.approx(150, rel=0.1)
    by_hand = LogisticRegression(max_iter=1000).fit(inputs[rows], labels[rows], sample_weight=weights)
    np.testing.assert_array_equal(model.estimator_.coef_, by_hand.coef_)


def test_classes_may_come_one_after_the_other() -> None:
    model = quick(20).partial_fit(X[:50], Y[:50], classes=[0, 1, 2])
    assert (model.predict(X) == 0).all()
    model.partial_fit(X[50:100], Y[50:100])
    assert model.predict_proba(X).shape == (150, 3) and (model.predict_proba(X)[:, 2] == 0).all()
    with pytest.raises(ValueError, match="decision_function needs kept rows of all 3 classes, got 2 so far"):
        model.decision_function(X)
    model.partial_fit(X[100:], Y[100:])
    assert model.score(X, Y) > 0.85


def test_a_failed_partial_fit_leaves_the_estimator_as_it_was() -> None:
    model = quick(20).partial_fit(X, Y, classes=[0, 1, 2])
    before = pickle.dumps((model.predict_proba(X), model.sample_indices_, model.sample_weight_))
    model.set_params(estimator=LogisticRegression(C=-1.0))
    with pytest.raises(ValueError, match="'C'"):
        model.partial_fit(X[:10], Y[:10])
    with pytest.raises(ValueError, match="y must hold labels among the classes 0, 1, 2, got"):
        model.partial_fit(X[:10], Y[:10] + 1 + Y.max())
    assert pickle.dumps((model.predict_proba(X), model.sample_indices_, model.sample_weight_)) == before
    model.set_params(estimator=None).partial_fit(X[:10], Y[:10])
    assert model.sample_weight_.sum() == pytest.approx(160, rel=0.1)


def test_it_works_in_pipelines_and_searches() -> None:
    pipeline = make_pipeline(StandardScaler(), quick(20, LogisticRegression()))
    search = GridSearchCV(
        pipeline, {"coresetclassifier__size": [10, 0.2], "coresetclassifier__estimator__C": [1.0]}, cv=2
    ).fit(X, Y)
    assert search.best_score_ > 0.8


def test_the_seed_decides_the_choice_and_none_is_a_seed() -> None:
    def chosen(seed: Any) -> list[int]:
        return [*quick(15, random_state=seed).fit(X, Y).sample_indices_]

    assert chosen(None) == chosen(0) == chosen(np.int64(0)) != chosen(1)
    assert chosen(np.random.RandomState(3)) == chosen(np.random.RandomState(3))


def mixed() -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    n = 300
    frame = pd.DataFrame(
        {
            "colour": pd.Categorical(rng.choice(["red", "green", "blue"], n)),
            "height": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
            "day": pd.date_range("2024-01-01", periods=n).strftime("%Y-%m-%d"),
        }
    )
    return frame, np.where((frame["colour"] == "red") | (frame["height"] > 1), "yes", "no")


KINDS: dict[str, Any] = {
    "pandas": lambda f: f,
    "polars": lambda f: pl.from_pandas(f),
    "pyarrow": lambda f: pa.Table.from_pandas(f),
}


@pytest.mark.parametrize("kind", KINDS)
def test_tables_with_categories_and_gaps_are_encoded_as_the_command_line_does(kind: str) -> None:
    frame, labels = mixed()
    model = quick(40).fit(KINDS[kind](frame), labels)
    table = pa.Table.from_pandas(frame, preserve_index=False).append_column("label", pa.array(labels))
    features = fit_encoding([table], "label").features(table, Drift()).numpy()
    rows = model.sample_indices_
    by_hand = LogisticRegression(max_iter=1000).fit(features[rows], labels[rows], sample_weight=model.sample_weight_)
    np.testing.assert_array_equal(model.estimator_.coef_, by_hand.coef_)
    assert model.score(KINDS[kind](frame), labels) > 0.9
    assert model.feature_names_in_.tolist() == ["colour", "height", "day"]
    with pytest.raises(ValueError, match="X must be a table with the columns of the first, got ndarray"):
        model.predict(features)
    model.partial_fit(KINDS[kind](frame), labels)
    assert model.sample_indices_.max() >= 300


def test_a_table_of_numbers_reaches_the_estimator_as_it_is() -> None:
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = quick(20).fit(frame, Y)
    np.testing.assert_array_equal(model.estimator_.coef_, quick(20).fit(X, Y).estimator_.coef_)


def test_any_estimator_with_weights_will_do() -> None:
    model = quick(0.5, HistGradientBoostingClassifier(min_samples_leaf=2, max_iter=5, random_state=0)).fit(X, Y)
    assert model.score(X, Y) > 0.9
    assert not hasattr(quick(0.5, HistGradientBoostingClassifier()), "coef_")


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "at least 1"),
        (2, "at least the number of classes, 3"),
        (1.5, "a whole number of at least 1, or a fraction of all up to 1, got 1.5"),
        ("9", "whole"),
    ],
)
def test_sizes_that_cannot_be_are_refused(size: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quick(size).fit(X, Y)


def test_a_size_beyond_the_rows_keeps_all_with_weight_one() -> None:
    model = quick(1000).fit(X, Y)
    np.testing.assert_array_equal(model.sample_weight_, np.ones(150))
    np.testing.assert_array_equal(model.estimator_.coef_, LogisticRegression(max_iter=1000).fit(X, Y).coef_)


def test_the_sampler_works_in_a_pipeline_of_imbalanced_learn() -> None:
    frame, labels = mixed()
    sampler = CoresetSampler(size=30, network=linear)
    rows, kept = sampler.fit_resample(frame, labels)
    pd.testing.assert_frame_equal(rows, frame.iloc[sampler.sample_indices_])
    assert (kept == labels[sampler.sample_indices_]).all() and len(sampler.sample_weight_) == 30
    pipeline = make_sampling_pipeline(CoresetSampler(size=30, network=linear), LogisticRegression(max_iter=1000))
    pipeline.fit(X, Y)
    chosen = pipeline[0].sample_indices_
    by_hand = LogisticRegression(max_iter=1000).fit(X[chosen], Y[chosen])  # the weights are lost on the way
    np.testing.assert_array_equal(pipeline[-1].coef_, by_hand.coef_)


@pytest.mark.parametrize("kind", ["classifier", "regressor", "sampler"])
def test_a_fit_that_fails_leaves_the_estimator_as_it_was(kind: str) -> None:
    X = np.random.default_rng(0).normal(size=(60, 4))
    y = (X[:, 0] > 0).astype(int)
    if kind == "sampler":
        sampler = CoresetSampler(size=10)
        sampler.fit_resample(X, y)
        with pytest.raises(ValueError, match="y must"):
            sampler.fit_resample(np.ones((60, 5)), y[:50])
        assert sampler.n_features_in_ == 4
        return
    model = (CoresetClassifier if kind == "classifier" else CoresetRegressor)(size=10).fit(X, y)
    before = model.predict(X)
    with pytest.raises(ValueError, match="y must"):
        model.fit(np.ones((60, 5)), y[:50])
    with pytest.raises(ValueError, match="y must"):
        model.fit(pd.DataFrame(np.ones((60, 4)), columns=["a", "b", "c", "d"]), y[:50])
    assert np.array_equal(model.predict(X), before)
    assert not hasattr(model, "feature_names_in_")
