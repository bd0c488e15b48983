"""Seeds that are passed along, and a global random state that is left as found."""

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import RLock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@lru_cache(maxsize=256)  # the same few are asked for at each of many small updates
def derive_seed(seed: int, *path: int | str) -> int:
    """A seed for one purpose, statistically independent of those for every other purpose.

    Example:
        >>> derive_seed(0, "model", 1) == derive_seed(0, "model", 1)
        True
        >>> derive_seed(0, "model", 1) == derive_seed(0, "projection", 1)
        False
    """
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    return int(np.random.SeedSequence([seed, *words]).generate_state(1, np.uint64)[0]) >> 1  # as numpy 1 can, too


def generator(seed: int, *path: int | str) -> torch.Generator:
    """A generator of its own for one purpose."""
    return torch.Generator().manual_seed(derive_seed(seed, *path))


_SEEDING = RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run a block with every global generator seeded, then put them all back as they were.

    For code that is not ours and draws from the global state, such as the initialisers of `torch.nn`. As there is one
    such state for all threads, one of them is in such a block at a time: others wait.
    """
    with _SEEDING, _seeded(seed):
        yield


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(range(torch.cuda.device_count())):  # all of them, without a warning that they are many
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


def drawn_by_weight(weights: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """So many rows, each as often as its weight says: its share of n, rounded up or down at random; ascending.

    One point is drawn, and others follow at equal distances along the summed weights (systematic sampling).

    Example:
        >>> drawn_by_weight(torch.tensor([1.0, 2.0, 0.0, 5.0]), 8, torch.Generator().manual_seed(0))
        tensor([0, 1, 1, 3, 3, 3, 3, 3])
    """
    if len(weights) and (least := float(weights.min())) < 0:
        raise ValueError(f"weights to draw by must be at least 0, got {least:g}: make the memory with nonnegative=True")
    ends = weights.double().cpu().cumsum(0)
    points = torch.arange(n, dtype=torch.float64) + torch.rand((), generator=generator, dtype=torch.float64)
    last = int(weights.nonzero().max()) if weights.any() else len(weights) - 1  # where rounding goes beyond the end
    return torch.searchsorted(ends, points * (ends[-1] / n), right=True).clamp(max=last)


def shuffled_by_weight(weights: Tensor, generator: torch.Generator) -> Tensor:
    """As many rows as there are weights, each as often as it weighs, in a random order."""
    order = torch.randperm(len(weights), generator=generator)
    return drawn_by_weight(weights, len(weights), generator)[order]


def uniform_keys(seed: int, ids: Tensor, purpose: str = "keys", *, count: int | None = None) -> Tensor:
    """A number in [0, 1) for each id, or `count` of them: random, yet a function of seed, id and purpose (splitmix64).

    So a decision about an example does not depend on how the stream was cut into batches.

    Example:
        >>> uniform_keys(0, torch.arange(10))[7] == uniform_keys(0, torch.tensor([7]))[0]
        tensor(True)
    """
    columns = 1 if count is None else count
    with np.errstate(over="ignore"):
        x: NDArray[np.uint64] = np.arange(1, columns + 1, dtype=np.uint64)  # 1-based, so that no hash starts at zero
        x = np.add.outer(ids.cpu().numpy().astype(np.uint64) * np.uint64(columns), x)
        x = x * np.uint64(0x9E3779B97F4A7C15) + np.uint64(derive_seed(seed, purpose))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    keys = torch.from_numpy((x >> np.uint64(11)).astype(np.float64) * 2.0**-53).to(ids.device)
    return keys[:, 0] if count is None else keys
