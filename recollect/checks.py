"""Checks of plain numbers, each with one sentence for who gets them wrong."""

import math
import operator
from numbers import Real
from typing import SupportsIndex

import numpy as np


def check_count(name: str, value: SupportsIndex) -> int:
    """Refuse what is not a whole number of at least one; NumPy's whole numbers are as good as Python's.

    Example:
        >>> check_count("epochs", 0)
        Traceback (most recent call last):
        ...
        ValueError: epochs must be a whole number of at least 1, got 0
    """
    number = _whole(value)
    if number is None or number < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    return number


def check_seed(seed: SupportsIndex) -> int:
    """Refuse what cannot be a seed."""
    number = _whole(seed)
    if number is None or number < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}")
    return number


def check_size(size: object, n: int | None, what: str) -> int:
    """How many of `n` to keep: a number, or a part of them; refuse what cannot be.

    Args:
        size: a whole number, or a fraction of all.
        n: how many there are; None if nobody knows yet.
        what: what they are.

    Example:
        >>> check_size(0.05, 200, "examples")
        10
        >>> check_size(5, 3, "examples")
        Traceback (most recent call last):
        ...
        ValueError: size must be between 1 and the 3 examples, got 5: pass a smaller size or more data
    """
    number = _whole(size)
    if number is None and isinstance(size, Real) and not isinstance(size, bool) and 0 < float(size) <= 1:
        if n is None:
            raise ValueError(f"size must be a whole number where nobody knows how many {what} will come, got {size!r}")
        return max(1, round(float(size) * n))
    if number is None or number < 1:
        fraction = "" if n is None else ", or a fraction of all up to 1"
        raise ValueError(f"size must be a whole number of at least 1{fraction}, got {size!r}")
    if n is not None and number > n:
        raise ValueError(f"size must be between 1 and the {n} {what}, got {size!r}: pass a smaller size or more data")
    return number


def check_flag(name: str, value: object) -> bool:
    """True or False, NumPy's too.

    Example:
        >>> check_flag("exact", 1)
        Traceback (most recent call last):
        ...
        ValueError: exact must be True or False, got 1
    """
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def check_number(name: str, value: object) -> float:
    """Refuse what is not a finite real number of at least zero.

    Example:
        >>> check_number("tolerance", "small")
        Traceback (most recent call last):
        ...
        ValueError: tolerance must be a number of at least 0, got 'small'
    """
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{name} must be a number of at least 0, got {value!r}")
    return number


def _whole(value: object) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
