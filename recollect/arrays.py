"""What people keep numbers in, as tensors: arrays, tables and columns of pandas, polars and pyarrow, plain lists."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_NUMBERS = frozenset((*_WHOLE, *_FLOATING))
_WIDE = (torch.uint16, torch.uint32, torch.uint64)  # torch can store these and do little else with them


def as_tensor(value: Any, what: str) -> Tensor:
    """A plain tensor of plain numbers; refused if it is anything else."""
    tensor = value.detach() if isinstance(value, Tensor) else _from_array(value, what)
    if kind_of(tensor) != "dense":
        raise ValueError(f"{what} must be a dense tensor of numbers, got a {kind_of(tensor)} one")
    if tensor.dtype in _WIDE:
        tensor = tensor.to(torch.int64)
        if tensor.numel() and int(tensor.min()) < 0:
            raise ValueError(f"{what} must fit into 64 bits with a sign, got larger numbers")
    if tensor.dtype not in _NUMBERS:
        raise ValueError(f"{what} must be real numbers, got type {tensor.dtype}")
    # Of what was made in inference mode, such as a teacher's labels, autograd keeps nothing: a copy is as any other.
    return tensor.clone() if tensor.is_inference() else tensor


def kind_of(tensor: Tensor) -> str:
    """Whether a tensor is "dense", or what else it is that cannot be computed with like one."""
    if tensor.is_nested or tensor.is_quantized or tensor.is_meta:
        return "nested" if tensor.is_nested else "quantised" if tensor.is_quantized else "meta"
    return "dense" if tensor.layout == torch.strided else str(tensor.layout).removeprefix("torch.")


def column_names(value: Any) -> list[str] | None:
    """The names of a table's columns; None if it is no table. Nothing is imported to find out."""
    kind = type(value)
    if kind.__module__.partition(".")[0] not in ("pandas", "polars", "pyarrow") or _is_lazy(value):
        return None
    # Asked of the class: of a frame of pandas, any column is an attribute too. The first is pyarrow's.
    found = next((name for name in ("column_names", "columns") if hasattr(kind, name)), None)
    names = None if found is None else getattr(value, found)
    return None if names is None or callable(names) else list(names)


def _is_lazy(value: Any) -> bool:
    """Whether this is a query of polars, whose rows are not there yet."""
    return hasattr(type(value), "collect")


def without_column(table: Any, name: str) -> Any:
    """The other columns of a table."""
    return table.drop(columns=name) if hasattr(table, "iloc") else table.drop([name])


def _from_array(value: Any, what: str) -> Tensor:
    if _is_lazy(value):
        raise ValueError(f"{what} must be there already, got {type(value).__name__}: pass what .collect() returns")
    if not (isinstance(value, np.ndarray | Sequence | memoryview) or hasattr(value, "__array__")):
        raise ValueError(f"{what} must be a tensor or an array, got {type(value).__name__}")
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O" and column_names(value) is not None:
            array = _from_columns(value, what)
    except ValueError as error:
        if str(error).startswith(what):
            raise
        raise ValueError(_uneven(what, str(error).partition("\n")[0])) from None
    except Exception as error:  # whatever the array's own kind raises
        raise ValueError(_uneven(what, str(error).partition("\n")[0])) from None
    if array.dtype.kind in "USTO" and array.size and isinstance(array.flat[0], str | bytes):
        raise ValueError(
            f"{what} must be numbers, got text such as {str(array.flat[0])[:40]!r}: "
            "number it, as by numpy.unique(..., return_inverse=True)"
        )
    try:
        # What is read-only, runs backwards or has its bytes swapped is copied: torch has no such tensors.
        return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
    except (TypeError, ValueError):
        rows = array.dtype.kind == "O" and array.size and isinstance(array.flat[0], np.ndarray | list)
        hint = ": pass numpy.stack of them" if rows else ""
        raise ValueError(f"{_uneven(what, f'an array of {array.dtype}')}{hint}") from None


def _uneven(what: str, got: str) -> str:
    return f"{what} must be numbers in rows of equal length, got {got}"


def _from_columns(table: Any, what: str) -> "np.ndarray[Any, Any]":
    """The numbers of a table whose columns have nothing in common but that, such as truth values beside fractions."""
    columns = []
    for name in column_names(table) or ():
        column = np.asarray(table[name])
        if column.dtype.kind not in "fiub":
            line = {
                "pandas": "pandas.get_dummies(frame, dtype=float)",
                "polars": f"frame.to_dummies([{name!r}])",
                "pyarrow": "pandas.get_dummies(table.to_pandas(), dtype=float)",
            }[type(table).__module__.partition(".")[0]]
            if column.size and isinstance(column.flat[0], np.ndarray | list):
                line = f"numpy.stack(list(table[{name!r}]))"
            raise ValueError(
                f"{what} must be numbers, got column {name!r} of {_type_of(table[name])}: leave it out, "
                f"or make it numbers, as by {line}"
            )
        columns.append(column)
    return np.stack([column.astype(np.float64) for column in columns], axis=1)


def _type_of(column: Any) -> str:
    return str(getattr(column, "dtype", None) or getattr(column, "type", None) or type(column).__name__)
