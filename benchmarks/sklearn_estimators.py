"""Accuracy of scikit-learn's logistic regression on 1 % of the rows: chosen and weighted, or drawn at random.

    python benchmarks/sklearn_estimators.py --seeds 5 --rows 20000

Prints one line per set and way of choosing: mean and deviation of the test accuracy over the seeds. A seed decides
which rows of the training part are looked at, and what is chosen of them. `--part validation` scores on rows of the
training part instead, by which the defaults were chosen.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

import recollect as rc
from recollect.integrations.sklearn import CoresetClassifier

SETS = ("covertype", "ldpa", "walking-activity")


def make() -> LogisticRegression:
    return LogisticRegression(max_iter=2000)


def chosen(X: Any, y: Any, size: int, seed: int) -> Any:
    return CoresetClassifier(make(), size=size, random_state=seed).fit(X, y)


def random(X: Any, y: Any, size: int, seed: int) -> Any:
    rows = np.random.default_rng(seed).choice(len(y), size, replace=False)
    return make().fit(X[rows], y[rows], sample_weight=np.full(size, len(y) / size))


def clustered(X: Any, y: Any, size: int, seed: int) -> Any:
    memory = rc.Clustering(size, seed=seed)
    memory.update(X, y)
    return make().fit(memory.batch.inputs, memory.batch.targets, sample_weight=memory.batch.weights)


def everything(X: Any, y: Any, size: int, seed: int) -> Any:
    return make().fit(X, y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--part", choices=["test", "validation"], default="test")
    parser.add_argument("--without-all", action="store_true", help="do not fit on all rows")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)  # of solvers that stop early
    ways: dict[str, Callable[..., Any]] = {"random rows": random, "CoresetClassifier": chosen}
    ways["Clustering"] = clustered
    if not arguments.without_all:
        ways["all rows"] = everything
    for name in arguments.sets:
        dataset = rc.datasets.load(name)
        (X, y), (X_test, y_test) = [(part[0].numpy(), part[1].numpy()) for part in (dataset.train, dataset.test)]
        scores: dict[str, list[float]] = {way: [] for way in ways}
        seconds = dict.fromkeys(ways, 0.0)
        for seed in range(arguments.seeds):
            order = np.random.default_rng(seed).permutation(len(y))
            if arguments.part == "validation":
                order, held_out = order[: -len(order) // 5], order[-len(order) // 5 :]
                X_test, y_test = X[held_out], y[held_out]
            rows = order[: arguments.rows]
            size = round(arguments.share * len(rows))
            for way, fit in ways.items():
                start = time.perf_counter()
                scores[way].append(100 * fit(X[rows], y[rows], size, seed).score(X_test, y_test))
                seconds[way] += (time.perf_counter() - start) / arguments.seeds
        for way, found in scores.items():
            print(
                f"{name:18}{size:5} of {len(rows)}  {way:18} {np.mean(found):5.1f} ± {np.std(found, ddof=1):.1f}  "
                f"{seconds[way]:5.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
