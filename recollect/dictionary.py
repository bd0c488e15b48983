"""Where candidate embeddings live, and the few questions that pursuit asks of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from recollect.files import replacing
from recollect.numerics import ExactSum, row_norms, sum_rows
from recollect.rows import FEW_ROWS, Outer, along_factors

_FEW = 3  # columns that take no longer than one, as long as they come first in the product
SCAN_ROWS = 1024
"""Rows are scanned and summed this many at a time, wherever they live, so that the bits are the same."""


class Dictionary(Protocol):
    """Candidate embeddings, one row each: in memory, on disk or elsewhere."""

    dim: int
    dtype: torch.dtype

    def __len__(self) -> int:
        """The number of candidates."""

    def products(self, vectors: Tensor) -> Tensor:
        """The inner products of all rows with a vector, (n,), or with the columns of a matrix, (n, k)."""

    def rows(self, indices: Tensor) -> Tensor:
        """The rows themselves, (len(indices), dim)."""

    def sum(self) -> Tensor:
        """The sum of all rows in float64."""

    def norms(self) -> Tensor:
        """The norm of each row in float64."""


@runtime_checkable
class Packed(Dictionary, Protocol):
    """Candidates that are kept as factors, which can be had as such."""

    form: Outer

    def packed(self, indices: Tensor) -> Tensor:
        """The factors of some rows, in one matrix as `form` has them."""


def factors_of(dictionary: Dictionary) -> Packed | None:
    """The same, if its rows can be had as factors."""
    return dictionary if isinstance(dictionary, Packed) and dictionary.form is not None else None


class InMemory:
    """Candidates in one tensor.

    Args:
        embeddings: one row per candidate.
        losses: of the examples, if they are known.
    """

    def __init__(self, embeddings: Tensor, losses: Tensor | None = None) -> None:
        self._embeddings, self.losses = embeddings, losses
        self.dim, self.dtype = embeddings.shape[1], embeddings.dtype

    def __len__(self) -> int:
        return len(self._embeddings)

    def products(self, vectors: Tensor) -> Tensor:
        return _products(self._embeddings.split(SCAN_ROWS), vectors.to(self.dtype))

    def rows(self, indices: Tensor) -> Tensor:
        return self._embeddings[indices]

    def sum(self) -> Tensor:
        return add_up(self).value()[0].to(self._embeddings.device)

    def block_sums(self) -> Iterator[Tensor]:
        return map(sum_rows, self._embeddings.split(SCAN_ROWS))

    def norms(self) -> Tensor:
        return row_norms(self._embeddings)


class _InBlocks(ABC):
    """What is the same for all candidates that are read a block at a time."""

    dtype: torch.dtype
    dim: int
    _totals: tuple[Tensor, Tensor] | None = None

    @abstractmethod
    def _blocks(self) -> Iterator[Tensor]:
        """The rows, a block at a time."""

    def products(self, vectors: Tensor) -> Tensor:
        return _products(self._blocks(), vectors.to(self.dtype))

    def _read_totals(self) -> tuple[Tensor, Tensor]:
        if self._totals is None:
            total, norms = ExactSum(1, self.dim), []
            for block in self._blocks():
                total.add(sum_rows(block)[None])
                norms.append(row_norms(block))
            self._totals = (total.value()[0], torch.cat(norms))
        return self._totals

    def sum(self) -> Tensor:
        return self._read_totals()[0].clone()

    def norms(self) -> Tensor:
        return self._read_totals()[1].clone()


class Mapped(_InBlocks):
    """Candidates in an array that is mapped from a file, such as somebody's store of gradients; never held whole.

    Half precision is turned into float32 a block at a time, and so are whole numbers.

    Args:
        array: one row per candidate.
    """

    def __init__(self, array: "np.ndarray[Any, Any]") -> None:
        if array.dtype.names is not None:
            raise ValueError(
                "embeddings must be rows of numbers, got an array with named fields: map it as plain numbers, "
                "as bergson's load_gradients(..., structured=False) does"
            )
        if array.ndim != 2 or not array.size or array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
            raise ValueError(
                f"embeddings must be a matrix of numbers with one row per candidate, got shape {array.shape} of "
                f"{array.dtype}"
            )
        self._array = array
        self._type = np.dtype(np.float64 if array.dtype.itemsize == 8 else np.float32)
        self.dim, self.dtype = array.shape[1], torch.float64 if array.dtype.itemsize == 8 else torch.float32

    def __len__(self) -> int:
        return len(self._array)

    def _blocks(self) -> Iterator[Tensor]:
        for first in range(0, len(self), SCAN_ROWS):
            yield torch.from_numpy(np.array(self._array[first : first + SCAN_ROWS], dtype=self._type))

    def rows(self, indices: Tensor) -> Tensor:
        return torch.from_numpy(np.array(self._array[indices.numpy()], dtype=self._type))


class OnDisk(_InBlocks):
    """Candidates in a NumPy file, read a block at a time, so that they may be larger than memory.

    Resident memory is one block of 1024 rows plus what pursuit keeps of the chosen ones.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     dictionary = OnDisk.write(f"{folder}/rows.npy", [torch.eye(3), 2 * torch.eye(3)])
        ...     len(dictionary), dictionary.sum()
        (6, tensor([3., 3., 3.], dtype=torch.float64))
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                version = np.lib.format.read_magic(file)
                read_header = (
                    np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                )
                shape, columns_first, dtype = read_header(file)
                self._start = file.tell()
        except ValueError as error:
            raise ValueError(f"{str(path)!r} must be a NumPy file of embeddings, got something else: {error}") from None
        if len(shape) != 2 or 0 in shape or columns_first or dtype not in (np.float32, np.float64):
            raise ValueError(
                f"{str(path)!r} must hold rows of float32 or float64 numbers, got shape {shape} of type {dtype}"
            )
        self._n, self.dim = shape
        self._numpy_dtype = np.dtype(dtype)
        self.dtype = torch.float32 if dtype == np.float32 else torch.float64
        self._row_bytes = self.dim * self._numpy_dtype.itemsize
        if self.path.stat().st_size < self._start + self._n * self._row_bytes:
            raise ValueError(f"{str(path)!r} must hold {self._n} rows, got a file that ends before: it is truncated")

    @classmethod
    def write(cls, path: str | PathLike[str], blocks: Iterable[Tensor]) -> "OnDisk":
        """Write rows as they come, in float32 unless they are in float64; the file is there whole or not at all."""
        path = Path(path)
        n = dim = 0
        dtype = np.dtype(np.float32)
        with replacing(path) as file:
            for block in blocks:
                if not len(block):
                    continue
                block = block.detach().cpu()
                rows = np.ascontiguousarray((block if block.dtype == torch.float64 else block.float()).numpy())
                if not n:
                    dim, dtype = rows.shape[1], rows.dtype
                    _write_header(file, 0, dim, dtype)
                if (rows.shape[1], rows.dtype) != (dim, dtype):
                    raise ValueError(
                        f"all rows must have the {dim} numbers of {dtype} that the first have, got {rows.shape[1]} of "
                        f"{rows.dtype}"
                    )
                file.write(rows.data)
                n += len(rows)
            if not n:
                raise ValueError("there must be rows to write, got none")
            file.seek(0)
            _write_header(file, n, dim, dtype)
        return cls(path)

    def __len__(self) -> int:
        return self._n

    def _blocks(self) -> Iterator[Tensor]:
        buffer = np.empty((min(SCAN_ROWS, self._n), self.dim), dtype=self._numpy_dtype)
        with self.path.open("rb", buffering=0) as file:
            file.seek(self._start)
            for first in range(0, self._n, SCAN_ROWS):
                block = buffer[: min(SCAN_ROWS, self._n - first)]
                _read_exactly(file, block.data.cast("B"))
                yield torch.from_numpy(block)

    def rows(self, indices: Tensor) -> Tensor:
        out = np.empty((len(indices), self.dim), dtype=self._numpy_dtype)
        with self.path.open("rb", buffering=0) as file:
            for row, index in zip(out, indices.tolist(), strict=True):
                file.seek(self._start + index * self._row_bytes)
                _read_exactly(file, memoryview(row).cast("B"))
        return torch.from_numpy(out)


class Factored:
    """Candidates that are outer products: last-layer gradients, exact and never formed.

    A row is, for each initialisation s, the C x H matrix delta_s h_s^T, flattened, and then delta_s, if the layer has a
    bias: as `GradientEmbedding.embed` writes them. Its product with a residual R_s, b_s is delta_s^T (R_s h_s + b_s):
    a scan is S matrix products and reads C + H numbers per row and initialisation, not C * H.

    Args:
        deltas: gradients at the last layer's outputs, (S, n, C).
        inputs: what came into the last layer, (S, n, H).
        bias: whether it has one.
        losses: of the examples, if they are known.
    """

    def __init__(self, deltas: Tensor, inputs: Tensor, *, bias: bool = False, losses: Tensor | None = None) -> None:
        self._deltas, self._inputs, self.losses = deltas, inputs, losses
        self.form = Outer(len(deltas), deltas.shape[2], inputs.shape[2], bias)
        self.dim, self.dtype = self.form.dim, deltas.dtype

    @classmethod
    def unpacked(cls, rows: Tensor, form: Outer) -> "Factored":
        """Of what `packed` gave."""
        return cls(*form.factors(rows), bias=form.bias)

    def __len__(self) -> int:
        return self._deltas.shape[1]

    def products(self, vectors: Tensor) -> Tensor:
        V = vectors.to(self.dtype).reshape(len(self._deltas), -1, *vectors.shape[1:] or (1,))
        C, H = self.form.n_out, self.form.n_in
        scores = torch.zeros(len(self), V.shape[-1], dtype=self.dtype, device=self._deltas.device)
        for delta, h, v in zip(self._deltas, self._inputs, V, strict=True):
            for k in range(V.shape[-1]):
                scores[:, k] += along_factors(delta, h, v[: C * H, k].reshape(C, H), v[C * H :, k])
        return scores.reshape(len(self), *vectors.shape[1:])

    def rows(self, indices: Tensor) -> Tensor:
        return self.form.formed(self.packed(indices))

    def packed(self, indices: Tensor) -> Tensor:
        """The factors of some rows, in one matrix as `form` has them."""
        return self.form.pack(self._deltas[:, indices], self._inputs[:, indices])

    def sum(self) -> Tensor:
        return add_up(self).value()[0].to(self._deltas.device)

    def block_sums(self) -> Iterator[Tensor]:
        for deltas, inputs in zip(self._deltas.split(SCAN_ROWS, 1), self._inputs.split(SCAN_ROWS, 1), strict=True):
            sums = (deltas.double().mT @ inputs.double()).flatten(1)
            yield (torch.cat([sums, deltas.double().sum(1)], 1) if self.form.bias else sums).flatten()

    def norms(self) -> Tensor:
        if len(self) <= FEW_ROWS:
            d, h = (torch.linalg.vector_norm(f, dim=2, dtype=torch.float64) for f in (self._deltas, self._inputs))
            few: Tensor = (d.square() * (h.square() + self.form.bias)).sum(0).sqrt()
            return few
        squares = torch.zeros(len(self), dtype=torch.float64, device=self._deltas.device)
        for delta, h in zip(self._deltas, self._inputs, strict=True):  # one by one: in float64 all would take much room
            squares += row_norms(delta).square() * (row_norms(h).square() + self.form.bias)
        return squares.sqrt()


class Joined:
    """Several dictionaries as one, without a copy."""

    def __init__(self, *parts: Dictionary) -> None:
        self._parts = parts
        self.dim, self.dtype = parts[0].dim, parts[0].dtype
        self._starts = [sum(len(part) for part in parts[:i]) for i in range(len(parts) + 1)]

    def __len__(self) -> int:
        return self._starts[-1]

    def products(self, vectors: Tensor) -> Tensor:
        return torch.cat([part.products(vectors) for part in self._parts])

    def rows(self, indices: Tensor) -> Tensor:
        if not len(indices):
            return self._parts[0].rows(indices)
        if bool((indices[1:] >= indices[:-1]).all()):
            ends = torch.tensor(self._starts[1:-1], dtype=indices.dtype, device=indices.device)
            mine = indices.tensor_split(torch.searchsorted(indices, ends).cpu())
            return torch.cat(
                [p.rows(m - s) for p, m, s in zip(self._parts, mine, self._starts, strict=False) if len(m)]
            )
        out = self._parts[0].rows(indices[:0]).new_empty(len(indices), self.dim)  # where and what the rows are
        for part, start in zip(self._parts, self._starts, strict=False):
            inside = ((indices >= start) & (indices < start + len(part))).nonzero()[:, 0]
            out[inside] = part.rows(indices[inside] - start)
        return out

    def sum(self) -> Tensor:
        return torch.stack([part.sum() for part in self._parts]).sum(0)

    def norms(self) -> Tensor:
        return torch.cat([part.norms() for part in self._parts])


class Part:
    """Some rows of a dictionary, without a copy; scans go over all of it."""

    def __init__(self, whole: Dictionary, places: Tensor) -> None:
        self._whole, self._places = whole, places
        self.dim, self.dtype = whole.dim, whole.dtype

    def __len__(self) -> int:
        return len(self._places)

    def products(self, vectors: Tensor) -> Tensor:
        return self._whole.products(vectors)[self._places]

    def rows(self, indices: Tensor) -> Tensor:
        return self._whole.rows(self._places[indices])

    def sum(self) -> Tensor:
        total = torch.zeros(self.dim, dtype=torch.float64, device=self._places.device)
        for places in self._places.split(SCAN_ROWS):
            total += sum_rows(self._whole.rows(places))
        return total

    def norms(self) -> Tensor:
        return self._whole.norms()[self._places]


def add_up(dictionary: "Dictionary") -> ExactSum:
    """The sum of all rows, as one row: the same whoever adds up which blocks."""
    total = ExactSum(1, dictionary.dim)
    blocks = dictionary.block_sums() if isinstance(dictionary, InMemory | Factored) else iter([dictionary.sum()])
    for block in blocks:
        total.add(block[None])
    return total


def weighted_sum(dictionary: Dictionary, rows: Tensor, weights: Tensor) -> Tensor:
    """The sum of some rows, each times its weight, in float64.

    Example:
        >>> weighted_sum(InMemory(torch.eye(3)), torch.tensor([0, 2]), torch.tensor([5.0, 0.5]))
        tensor([5.0000, 0.0000, 0.5000], dtype=torch.float64)
    """
    total = torch.zeros(dictionary.dim, dtype=torch.float64, device=weights.device)
    if isinstance(dictionary, Factored):
        return total + dictionary.form.combined(weights, dictionary.packed(rows))
    for some, w in zip(rows.split(SCAN_ROWS), weights.double().split(SCAN_ROWS), strict=True):
        total += sum_rows(dictionary.rows(some).double() * w[:, None])
    return total


def losses_of(dictionary: Dictionary) -> Tensor | None:
    """The losses of the examples whose embeddings these are, if they are known."""
    return dictionary.losses if isinstance(dictionary, InMemory | Factored) else None


def taken(dictionary: Dictionary, rows: Tensor) -> Dictionary:
    """Some of the candidates, in the form that they have."""
    losses = losses_of(dictionary)
    some = None if losses is None else losses[rows]
    if isinstance(dictionary, Factored):
        deltas, inputs = dictionary._deltas[:, rows], dictionary._inputs[:, rows]
        return Factored(deltas, inputs, bias=dictionary.form.bias, losses=some)
    return InMemory(dictionary.rows(rows), some)


def part(dictionary: Dictionary, rows: Tensor) -> Dictionary:
    """Some of the candidates for one pursuit: without a copy, unless they are short."""
    return taken(dictionary, rows) if isinstance(dictionary, Factored) else Part(dictionary, rows)


def joined(first: Dictionary, second: Dictionary) -> Dictionary:
    """Both as one, in the form that they have."""
    if isinstance(first, Factored) and isinstance(second, Factored) and first.form == second.form:
        deltas, inputs = torch.cat([first._deltas, second._deltas], 1), torch.cat([first._inputs, second._inputs], 1)
        return Factored(deltas, inputs, bias=first.form.bias)
    return Joined(first, second)


def to_remember(dictionary: Dictionary) -> dict[str, Tensor]:
    """Some rows as tensors to be saved, factors as such: what `remembered` makes them of again."""
    everything = torch.arange(len(dictionary))
    if isinstance(dictionary, Factored):
        return {"embeddings": dictionary.packed(everything), "factors": torch.tensor(dictionary.form[:4])}
    return {"embeddings": dictionary.rows(everything)}


def remembered(state: Mapping[str, Tensor], device: torch.device) -> Dictionary:
    """What `to_remember` gave.

    Example:
        >>> rows = Factored(torch.ones(2, 3, 4), torch.ones(2, 3, 5), bias=True)
        >>> torch.equal(remembered(to_remember(rows), torch.device("cpu")).sum(), rows.sum())
        True
    """
    rows = state["embeddings"].to(device)
    if "factors" not in state:
        return InMemory(rows)
    inits, n_out, n_in, bias = state["factors"].tolist()
    form = Outer(inits, n_out, n_in, bool(bias))
    if form.width != rows.shape[1]:
        raise ValueError(f"factors must have {form.width} numbers, got {rows.shape[1]}: the memory is damaged")
    return Factored.unpacked(rows, form)


def remembering_more(state: Mapping[str, Tensor], rows: Dictionary, device: torch.device) -> dict[str, Tensor]:
    """What `to_remember` would give of the rows that it gave before, followed by others, which are on this device.

    Example:
        >>> state = to_remember(InMemory(torch.eye(2)))
        >>> remembering_more(state, InMemory(torch.ones(1, 2)), torch.device("cpu"))["embeddings"]
        tensor([[1., 0.],
                [0., 1.],
                [1., 1.]])
    """
    before = remembered(state, device)
    if isinstance(before, Factored) and isinstance(rows, Factored) and before.form == rows.form:
        more = rows.packed(torch.arange(len(rows)))
        return {"embeddings": torch.cat([state["embeddings"].to(device), more]), "factors": state["factors"]}
    return to_remember(joined(before, rows))


def _write_header(file: BinaryIO, n: int, dim: int, dtype: np.dtype[np.generic]) -> None:
    """A header whose length does not depend on the number of rows, so that it can be written again at the end."""
    header = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({n:>20}, {dim:>20}), }}"
    header = header.ljust(181) + "\n"  # 192 bytes with what stands before it: a multiple of 64, as NumPy wants
    file.write(np.lib.format.magic(1, 0) + len(header).to_bytes(2, "little") + header.encode("latin1"))


def _read_exactly(file: BinaryIO, view: memoryview) -> None:
    while view:
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise ValueError("the file of embeddings ended before its last row: it is truncated")
        view = view[count:]


def _products(blocks: Iterable[Tensor], v: Tensor) -> Tensor:
    """The products of rows, block by block, with a vector or with the columns of a matrix."""
    if v.ndim == 2 and v.shape[1] <= _FEW:
        return torch.cat([v.T @ block.T for block in blocks], 1).T
    return torch.cat([block @ v for block in blocks])
