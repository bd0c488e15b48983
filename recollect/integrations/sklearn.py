"""scikit-learn: estimators that are fitted on a small weighted part of the data, which they choose themselves.

The weight arrives as `sample_weight`, so the estimator inside must take one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray
from torch import nn

from recollect import models
from recollect.integrations.extras import needed_for
from recollect.integrations.rows import (
    as_table,
    capacity_of,
    is_table,
    labels_of,
    needs_encoding,
    quantities_of,
    seed_of,
    some,
    weights_of,
)
from recollect.memories import GradientMatching, Memory
from recollect.tables.encoding import Drift, Encoding
from recollect.tables.examining import fit_encoding
from recollect.tables.kinds import Task

with needed_for("sklearn"):
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, RegressorMixin, clone, is_classifier
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import Pipeline
    from sklearn.utils import _safe_indexing
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted, has_fit_parameter, validate_data

MakeNetwork = Callable[[int, int], nn.Module]
"""From the numbers of features and of outputs to a freshly initialised network."""

_TARGET = "target of recollect"  # the name of a column that no table of the user's has


class _Chooser(BaseEstimator):  # type: ignore[misc]
    """What the estimators and the sampler share: rows come in, a memory decides which stay."""

    size: int | float
    network: MakeNetwork | None
    random_state: int | np.random.RandomState | None

    def _start(self, X: Any, y: NDArray[Any], outputs: int, *, stream: bool = False) -> tuple[Encoding, Memory]:
        """Decide on the first rows how columns become numbers, and how many rows are kept.

        Where all rows come at once, weights need not add up to the count: on a validation part that was worth two
        points on Covertype, and little either way on three other sets.
        """
        task: Task = "classification" if self._classifies() else "regression"
        table = as_table(X).append_column(_TARGET, pa.array(y))
        encoding = fit_encoding([table], _TARGET, task=task)
        memory = GradientMatching(
            partial(self.network or models.mlp, encoding.n_features, outputs),
            capacity_of(self.size, len(y), outputs if self._classifies() else 1),
            loss="cross_entropy" if self._classifies() else "squared_error",
            min_per_class=1 if self._classifies() else 0,
            hold_count=stream,
            seed=seed_of(self.random_state),
        )
        return encoding, memory

    def _wholly(self, learn: Callable[[Self], None]) -> Self:
        """Learn, or be as before on any error: a copy does it, and its attributes are taken over in the end."""
        new = copy.copy(self)
        learn(new)
        self.__dict__ = new.__dict__
        return self

    def _classifies(self) -> bool:
        return is_classifier(self)  # type: ignore[no-any-return]

    def _rows(self, X: Any, *, reset: bool) -> Any:
        """The rows as an array of numbers; a table with other columns, or with gaps, stays one."""
        encodes = needs_encoding(X) if reset else self._encodes
        if encodes:
            if not is_table(X):
                raise ValueError(f"X must be a table with the columns of the first, got {type(X).__name__}")
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        return validate_data(self, X, reset=reset, dtype="numeric", ensure_min_samples=2 if reset else 1)

    def _numbers(self, rows: Any, encoding: Encoding) -> NDArray[Any]:
        """What the estimator gets to see: an array as it is, a table as the command line encodes it."""
        return encoding.features(as_table(rows), Drift()).numpy() if is_table(rows) else rows


class _CoresetEstimator(MetaEstimatorMixin, _Chooser):  # type: ignore[misc]
    """Chooses rows, fits the estimator on them with their weights, and answers as it does."""

    estimator_: Any
    sample_indices_: NDArray[np.int64]
    sample_weight_: NDArray[np.float64]
    _encoding: Encoding
    _memory: Memory
    _kept_rows: NDArray[Any]
    _kept_labels: NDArray[Any]

    def __init__(
        self,
        estimator: BaseEstimator | None = None,
        *,
        size: int | float,
        network: MakeNetwork | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.size = size
        self.network = network
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags

    def _take(
        self,
        X: Any,
        y: NDArray[Any],
        numbers: NDArray[Any],
        outputs: int,
        counts: NDArray[np.float64] | None,
        *,
        first: bool,
        stream: bool,
    ) -> None:
        """Let the memory choose again, and fit anew."""
        if first:
            encoding, memory = self._start(X, numbers, outputs, stream=stream)
        else:
            encoding, memory = self._encoding, copy.copy(self._memory)
        features = encoding.features(as_table(X), Drift())
        seen = memory.seen
        memory.update(features, self._targets(numbers, encoding), weights=counts)
        kept = memory.batch.ids.numpy()
        new = kept[kept >= seen] - seen
        rows, labels = self._numbers(X, encoding)[new], y[new]
        if not first:
            old = np.searchsorted(self.sample_indices_, kept[kept < seen])
            rows = np.concatenate([self._kept_rows[old], rows])
            labels = np.concatenate([self._kept_labels[old], labels])
        weights = memory.batch.weights.double().numpy()
        fitted = self._fitted(rows, labels, weights)
        self._encodes, self._encoding, self._memory = is_table(X), encoding, memory
        self._kept_rows, self._kept_labels = rows, labels
        self.estimator_, self.sample_indices_, self.sample_weight_ = fitted, kept, weights

    def _targets(self, numbers: NDArray[Any], encoding: Encoding) -> NDArray[Any]:
        """Class numbers, or quantities in standard deviations of the first."""
        if self._classifies():
            return numbers
        return ((numbers - encoding.mean) / encoding.scale).astype(np.float32)[:, None]

    def _fitted(self, rows: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any]) -> Any:
        """The estimator, fitted on the kept rows with their weights."""
        if self._classifies() and len(np.unique(labels)) == 1:
            return DummyClassifier().fit(rows, labels)  # which most classifiers refuse, and a stream may begin with
        return self._fresh().fit(rows, labels, **{self._weight_name(): weights})

    def _fresh(self) -> Any:
        return clone(self.estimator) if self.estimator is not None else self._default()

    def _weight_name(self) -> str:
        """By which name the estimator, or the last step of a pipeline, takes the weights."""
        inner, steps = self._fresh(), ""
        while isinstance(inner, Pipeline):
            step, inner = inner.steps[-1]
            steps += f"{step}__"
        if not has_fit_parameter(inner, "sample_weight"):
            raise ValueError(
                f"estimator must take sample_weight, as the chosen rows stand for others, got {type(inner).__name__}: "
                "choose one whose fit has it"
            )
        return f"{steps}sample_weight"

    def _answer(self, method: str, X: Any) -> NDArray[Any]:
        check_is_fitted(self)
        rows = self._rows(X, reset=False)
        return np.asarray(getattr(self.estimator_, method)(self._numbers(rows, self._encoding)))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """What the estimator that was fitted on the chosen rows predicts.

        Args:
            X: rows of numbers, or a table with the columns of the first.
        """
        return self._answer("predict", X)


def _can(method: str) -> Callable[[Any], bool]:
    """Whether the estimator inside has this method."""
    return lambda self: hasattr(self.estimator_ if hasattr(self, "estimator_") else self._fresh(), method)


class CoresetClassifier(ClassifierMixin, _CoresetEstimator):  # type: ignore[misc]
    """A classifier that is fitted on a few rows, with weights, whose gradients add up to those of all.

    A table with categories, dates or missing values is encoded as by the command line. To encode it yourself, put your
    steps before this one in a `Pipeline`.

    Args:
        estimator: any classifier that takes `sample_weight`, or a pipeline that ends in one; a logistic regression
            by default.
        size: how many rows are kept at most, or a share of the first rows; at least one for each class.
        network: a function of the numbers of features and outputs that returns a fresh network, whose gradients are
            matched; by default a small MLP.
        random_state: a seed or a `RandomState`; None is seed 0, so that fitting twice gives the same.

    Attributes:
        estimator_: the fitted estimator.
        sample_indices_: the chosen rows, as places among all rows since the first.
        sample_weight_: how many rows each of them represents.
        classes_: the labels.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> model = CoresetClassifier(LogisticRegression(max_iter=1000), size=15).fit(X, y)
        >>> len(model.sample_indices_), model.score(X, y) > 0.9
        (15, True)
    """

    classes_: NDArray[Any]

    def _default(self) -> Any:
        return LogisticRegression(max_iter=1000)

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Choose rows and fit the estimator on them.

        Args:
            X: rows of numbers, or a table.
            y: one label per row.
            sample_weight: how many rows each row counts as; one by default.
        """
        return self._wholly(lambda new: new._learn(X, y, None, sample_weight, first=True, stream=False))

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Take in more rows, choose among the kept and the new ones, and fit the estimator on what is kept.

        Args:
            X: rows of numbers, or a table, as before.
            y: one label per row.
            classes: all labels that will ever come; needed at the first call.
            sample_weight: how many rows each row counts as; one by default.
        """
        first = not hasattr(self, "estimator_")
        if first and classes is None:
            raise ValueError("classes must be passed at the first call of partial_fit, got None")
        return self._wholly(lambda new: new._learn(X, y, classes, sample_weight, first=first, stream=True))

    def _learn(self, X: Any, y: Any, classes: Any, sample_weight: Any, *, first: bool, stream: bool) -> None:
        self._weight_name()
        rows = self._rows(X, reset=first)
        labels = labels_of(y, len(rows))
        known = self.classes_ if not first else np.unique(labels if classes is None else np.asarray(classes))
        if classes is not None and not np.array_equal(np.unique(np.asarray(classes)), known):
            raise ValueError(f"classes must be those of the first call, {some(known)}, got {some(np.asarray(classes))}")
        numbers = np.searchsorted(known, labels).clip(max=len(known) - 1)
        if (strange := known[numbers] != labels).any():
            raise ValueError(f"y must hold labels among the classes {some(known)}, got {labels[strange][0]!r}")
        counts = weights_of(sample_weight, len(rows))
        self._take(rows, labels, numbers, max(2, len(known)), counts, first=first, stream=stream)
        self.classes_ = known

    @available_if(_can("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """The probability of each of `classes_`; 0 for one that has not come yet.

        Args:
            X: rows of numbers, or a table with the columns of the first.
        """
        found = self._answer("predict_proba", X)
        out = np.zeros((len(found), len(self.classes_)), dtype=found.dtype)
        out[:, np.searchsorted(self.classes_, self.estimator_.classes_)] = found
        return out

    @available_if(_can("predict_log_proba"))  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Logarithms of `predict_proba`.

        Args:
            X: rows of numbers, or a table with the columns of the first.
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))  # type: ignore[no-any-return]

    @available_if(_can("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: ArrayLike) -> NDArray[Any]:
        """The estimator's own score of each class, once all classes have come.

        Args:
            X: rows of numbers, or a table with the columns of the first.
        """
        check_is_fitted(self)
        if len(self.estimator_.classes_) < len(self.classes_):
            raise ValueError(
                f"decision_function needs kept rows of all {len(self.classes_)} classes, "
                f"got {len(self.estimator_.classes_)} so far: use predict_proba"
            )
        return self._answer("decision_function", X)


class CoresetRegressor(RegressorMixin, _CoresetEstimator):  # type: ignore[misc]
    """A regressor that is fitted on a few rows, with weights, whose gradients add up to those of all.

    A table with categories, dates or missing values is encoded as by the command line.

    Args:
        estimator: any regressor that takes `sample_weight`, or a pipeline that ends in one; a ridge regression by
            default.
        size: how many rows are kept at most, or a share of the first rows.
        network: a function of the numbers of features and outputs that returns a fresh network, whose gradients are
            matched; by default a small MLP.
        random_state: a seed or a `RandomState`; None is seed 0, so that fitting twice gives the same.

    Attributes:
        estimator_: the fitted estimator.
        sample_indices_: the chosen rows, as places among all rows since the first.
        sample_weight_: how many rows each of them represents.

    Example:
        >>> X = np.linspace(-1, 1, 200)[:, None]
        >>> model = CoresetRegressor(size=0.1).fit(X, 3 * X[:, 0])
        >>> len(model.sample_indices_), model.score(X, 3 * X[:, 0]) > 0.99
        (20, True)
    """

    def _default(self) -> Any:
        return Ridge()

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Choose rows and fit the estimator on them.

        Args:
            X: rows of numbers, or a table.
            y: one number per row.
            sample_weight: how many rows each row counts as; one by default.
        """
        return self._wholly(lambda new: new._learn(X, y, sample_weight, first=True, stream=False))

    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Take in more rows, choose among the kept and the new ones, and fit the estimator on what is kept.

        Args:
            X: rows of numbers, or a table, as before.
            y: one number per row.
            sample_weight: how many rows each row counts as; one by default.
        """
        first = not hasattr(self, "estimator_")
        return self._wholly(lambda new: new._learn(X, y, sample_weight, first=first, stream=True))

    def _learn(self, X: Any, y: Any, sample_weight: Any, *, first: bool, stream: bool) -> None:
        self._weight_name()
        rows = self._rows(X, reset=first)
        values = quantities_of(y, len(rows))
        counts = weights_of(sample_weight, len(rows))
        self._take(rows, values, values, 1, counts, first=first, stream=stream)


class CoresetSampler(_Chooser):
    """A step for pipelines of imbalanced-learn, which passes on the chosen rows, but not their weights.

    A sampler can return only rows and labels, so the next step is fitted as if all rows counted the same. To use the
    weights, take `CoresetClassifier`, or fit with `sample_weight_` yourself.

    Args:
        size: how many rows are kept at most, or a share of them; at least one for each class.
        network: a function of the numbers of features and outputs that returns a fresh network, whose gradients are
            matched.
        random_state: a seed or a `RandomState`; None is seed 0.

    Attributes:
        sample_indices_: the chosen rows.
        sample_weight_: how many rows each of them represents.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> sampler = CoresetSampler(size=15)
        >>> X, y = sampler.fit_resample(*load_iris(return_X_y=True))
        >>> X.shape, y.shape, sampler.sample_weight_.shape
        ((15, 4), (15,), (15,))
    """

    def __init__(
        self,
        *,
        size: int | float,
        network: MakeNetwork | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.size = size
        self.network = network
        self.random_state = random_state

    def _classifies(self) -> bool:
        return True

    def fit_resample(self, X: ArrayLike, y: ArrayLike) -> tuple[Any, Any]:
        """The chosen rows and their labels, each of the kind that came.

        Args:
            X: rows of numbers, or a table.
            y: one label per row.
        """
        self._wholly(lambda new: new._learn(X, y))
        return _safe_indexing(X, self.sample_indices_), _safe_indexing(y, self.sample_indices_)

    def _learn(self, X: Any, y: Any) -> None:
        rows = self._rows(X, reset=True)
        classes, numbers = np.unique(labels_of(y, len(rows)), return_inverse=True)
        encoding, memory = self._start(rows, numbers, max(2, len(classes)))
        memory.update(encoding.features(as_table(rows), Drift()), numbers)
        self._encodes = is_table(rows)
        self.sample_indices_ = memory.batch.ids.numpy()
        self.sample_weight_ = memory.batch.weights.double().numpy()
