"""Where candidate embeddings live, and the few questions that pursuit asks of them."""

from typing import Protocol

import torch
from torch import Tensor

_BLOCK_BYTES = 2**26  # rows are turned into float64 in blocks of about this size


class Dictionary(Protocol):
    """Candidate embeddings, one row each: in memory, on disk or elsewhere."""

    dim: int
    dtype: torch.dtype

    def __len__(self) -> int:
        """The number of candidates."""

    def best(self, residual: Tensor, count: int, exclude: Tensor) -> Tensor:
        """Ascending row numbers of the `count` largest inner products with `residual` (float64)."""

    def rows(self, indices: Tensor) -> Tensor:
        """The rows themselves, (len(indices), dim)."""

    def sum(self) -> Tensor:
        """The sum of all rows in float64."""

    def mean_square(self) -> float:
        """The mean squared norm of the rows."""


class InMemory:
    """Candidates in one or several tensors, as if concatenated, without a copy."""

    def __init__(self, *parts: Tensor) -> None:
        self._parts = [part for part in parts if len(part)] or list(parts[:1])
        self.dim = self._parts[0].shape[1]
        self.dtype = self._parts[0].dtype
        self._starts = [0]
        for part in self._parts:
            self._starts.append(self._starts[-1] + len(part))

    def __len__(self) -> int:
        return self._starts[-1]

    def best(self, residual: Tensor, count: int, exclude: Tensor) -> Tensor:
        r = residual.to(self.dtype)
        scores = torch.cat([part @ r for part in self._parts])
        scores[exclude] = -torch.inf
        # Ascending, so that among equals the first row wins.
        return scores.topk(count).indices.sort().values

    def rows(self, indices: Tensor) -> Tensor:
        out = torch.empty(len(indices), self.dim, dtype=self.dtype, device=self._parts[0].device)
        for part, start in zip(self._parts, self._starts, strict=False):
            inside = (indices >= start) & (indices < start + len(part))
            out[inside] = part[indices[inside] - start]
        return out

    def sum(self) -> Tensor:
        total = torch.zeros(self.dim, dtype=torch.float64, device=self._parts[0].device)
        for part in self._parts:
            total += part.sum(0, dtype=torch.float64)
        return total

    def mean_square(self) -> float:
        total = 0.0
        for part in self._parts:
            for block in part.split(max(1, _BLOCK_BYTES // (8 * self.dim))):
                total += float(block.double().square().sum())
        return total / len(self)
