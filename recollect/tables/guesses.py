"""What a column of text may be, followed until enough values speak against it."""

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

STRAY = 0.05
"""The share of values that may be something else than a number or date, and then count as missing."""


@dataclass
class Moments:
    """Mean, deviation and range of numbers that come in parts."""

    count: int = 0
    mean: float = 0.0
    square: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    integral: bool = True

    def add(self, values: NDArray[np.float64]) -> None:
        values = values[np.isfinite(values)]
        if not len(values):
            return
        n, mean = len(values), float(values.mean())
        delta, total = mean - self.mean, self.count + n
        self.square += float(((values - mean) ** 2).sum()) + delta**2 * self.count * n / total
        self.mean += delta * n / total
        self.count = total
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        self.integral = self.integral and bool((values == np.round(values)).all())

    @property
    def deviation(self) -> float:
        return math.sqrt(self.square / self.count) if self.count else 0.0


@dataclass
class Guess:
    """One thing that a column of text may be."""

    form: str
    fitting: int = 0
    moments: Moments = field(default_factory=Moments)
    strays: Counter[str] = field(default_factory=Counter)

    def add(self, texts: pa.ChunkedArray, numbers: NDArray[np.float64]) -> None:
        fits = ~np.isnan(numbers)
        self.fitting += int(fits.sum())
        self.moments.add(numbers)
        if len(self.strays) < 5:
            others = texts.filter(pa.chunked_array([~fits])).drop_null()
            self.strays.update(others.slice(0, 100).to_pylist())

    def holds(self, known: int) -> bool:
        """Whether all but a few of the values are this."""
        return self.fitting > 0 and known - self.fitting <= STRAY * known


def may_hold(guess: Guess, known: int) -> bool:
    """Followed further, unless hopeless: nothing is decided on the first few values."""
    return known < 1000 or guess.fitting > known / 2
