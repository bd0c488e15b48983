"""Checks of plain numbers, each with one sentence for who gets them wrong."""


def check_count(name: str, value: int) -> int:
    """Refuse what is not a whole number of at least one.

    Example:
        >>> check_count("epochs", 0)
        Traceback (most recent call last):
        ...
        ValueError: epochs must be a whole number of at least 1, got 0
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    return value


def check_seed(seed: int) -> int:
    """Refuse what cannot be a seed."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}")
    return seed
