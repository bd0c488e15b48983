"""Rows of numbers, or of a table, as scikit-learn's users pass them: checked, and as what a memory can take."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recollect.checks import check_seed, check_size
from recollect.integrations.extras import needed_for
from recollect.tables.reading.pieces import plain, retyped

with needed_for("sklearn"):
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_array, column_or_1d


def is_table(X: Any) -> bool:
    """Whether these are rows of pandas, polars, pyarrow or their like."""
    return hasattr(X, "__arrow_c_stream__") and hasattr(X, "columns")


def as_table(X: Any) -> pa.Table:
    """The rows as a table; the columns of an array get numbers as names."""
    if is_table(X):
        return retyped(pa.table(X), plain)
    return pa.table([np.ascontiguousarray(column) for column in X.T], [str(i) for i in range(X.shape[1])])


def needs_encoding(X: Any) -> bool:
    """Whether this is a table with columns that are no numbers, or with gaps."""
    return is_table(X) and any(
        not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type))
        or column.null_count
        or (pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py())
        for column in pa.table(X).columns
    )


def labels_of(y: Any, n: int) -> NDArray[Any]:
    """One label for each of `n` rows."""
    labels = column_or_1d(y, warn=True)
    check_classification_targets(labels)
    _check_length(labels, n)
    return labels  # type: ignore[no-any-return]


def quantities_of(y: Any, n: int) -> NDArray[np.float64]:
    """One finite number for each of `n` rows."""
    if y is None:
        raise ValueError("this estimator requires y to be passed, but the target y is None")  # scikit-learn's words
    values = check_array(column_or_1d(y, warn=True), ensure_2d=False, dtype=np.float64, input_name="y")
    _check_length(values, n)
    return values  # type: ignore[no-any-return]


def weights_of(sample_weight: Any, n: int) -> NDArray[np.float64] | None:
    """How many each of `n` rows stands for, if that was said."""
    if sample_weight is None:
        return None
    if isinstance(sample_weight, int | float):
        return np.full(n, float(sample_weight))
    weights = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if weights.ndim != 1:
        raise ValueError("Sample weights must be 1D array or scalar")  # scikit-learn's words
    if weights.shape != (n,) or not (weights >= 0).all() or not weights.any():
        raise ValueError(
            f"sample_weight must be a number of at least 0 for each of the {n} rows, and not always zero, "
            f"got shape {weights.shape}, from {weights.min():g} to {weights.max():g}"
        )
    return weights  # type: ignore[no-any-return]


def _check_length(y: NDArray[Any], n: int) -> None:
    if len(y) != n:
        raise ValueError(f"X and y must have the same length, got {n} and {len(y)}")


def capacity_of(size: int | float, n: int, least: int) -> int:
    """How many rows are kept; of a share at least one for each class."""
    share = isinstance(size, float | np.floating)
    count = check_size(size, n if share else None, "rows")
    if count < least and not share:
        raise ValueError(f"size must be at least the number of classes, {least}, got {size!r}")
    return max(least, count)


def seed_of(random_state: int | np.random.RandomState | None) -> int:
    """A seed of ours; no state of others is drawn from unless it was passed."""
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    return 0 if random_state is None else check_seed(random_state)


def some(values: NDArray[Any]) -> str:
    """The first of them, for people."""
    return ", ".join(map(repr, values[:5].tolist())) + (", ..." if len(values) > 5 else "")
