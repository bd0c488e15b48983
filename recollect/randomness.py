"""Seeds that are passed along, and a global random state that is left as found."""

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(seed: int, *path: int | str) -> int:
    """A seed for one purpose, statistically independent of those for every other purpose.

    Example:
        >>> derive_seed(0, "model", 1) == derive_seed(0, "model", 1)
        True
        >>> derive_seed(0, "model", 1) == derive_seed(0, "projection", 1)
        False
    """
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    return int(np.random.SeedSequence([seed, *words]).generate_state(1, np.uint64)[0] >> 1)


def generator(seed: int, *path: int | str) -> torch.Generator:
    """A generator of its own for one purpose."""
    return torch.Generator().manual_seed(derive_seed(seed, *path))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run a block with every global generator seeded, then put them all back as they were.

    For code that is not ours and draws from the global state, such as the initialisers of `torch.nn`.
    """
    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


def check_seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}")
    return seed
