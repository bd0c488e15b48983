"""What a column of text may be, followed until enough values speak against it."""

import math
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

STRAY = 0.05
"""The share of values that may be something else than a number or date, and then count as missing."""


@dataclass
class Moments:
    """Mean, deviation and range of numbers that come in parts, which are put together in their order."""

    count: int = 0
    mean: float = 0.0
    square: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    integral: bool = True

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> "Moments":
        """Of one part; what is not finite does not count."""
        values = values[np.isfinite(values)]
        if not len(values):
            return cls()
        mean = float(values.mean())
        square, integral = float(((values - mean) ** 2).sum()), bool((values == np.round(values)).all())
        return cls(len(values), mean, square, float(values.min()), float(values.max()), integral)

    def add(self, part: "Moments") -> None:
        """Add the part that comes next."""
        if not part.count:
            return
        n, delta, total = part.count, part.mean - self.mean, self.count + part.count
        self.square += part.square + delta**2 * self.count * n / total
        self.mean += delta * n / total
        self.count = total
        self.low, self.high = min(self.low, part.low), max(self.high, part.high)
        self.integral = self.integral and part.integral

    @property
    def deviation(self) -> float:
        return math.sqrt(self.square / self.count) if self.count else 0.0


@dataclass
class Guess:
    """One thing that a column of text may be.

    Attributes:
        form: what that is.
        fitting: how many of the texts are that.
        moments: of the numbers that they stand for.
        stray: the first text that is something else.
    """

    form: str
    fitting: int = 0
    moments: Moments = field(default_factory=Moments)
    stray: str | None = None

    @classmethod
    def of(cls, form: str, texts: pa.ChunkedArray, numbers: NDArray[np.float64]) -> "Guess":
        """What some texts say about it; numbers are what they would be, NaN where they are something else."""
        fits = ~np.isnan(numbers)
        others = ~fits & np.asarray(texts.is_valid(), dtype=bool)
        stray = texts[int(others.argmax())].as_py() if others.any() else None
        return cls(form, int(fits.sum()), Moments.of(numbers), stray)

    def add(self, part: "Guess") -> None:
        """Add what the texts that come next say."""
        self.fitting += part.fitting
        self.moments.add(part.moments)
        self.stray = self.stray if self.stray is not None else part.stray

    def holds(self, known: int) -> bool:
        """Whether all but a few of the values are this."""
        return self.fitting > 0 and known - self.fitting <= STRAY * known


def may_hold(guess: Guess, known: int) -> bool:
    """Followed further, unless hopeless: nothing is decided on the first few values."""
    return known < 1000 or guess.fitting > known / 2
