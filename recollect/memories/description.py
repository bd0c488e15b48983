"""A memory as plain values and tensors: how classes, options and inputs are described, and what is refused."""

import inspect
import json
from typing import Any

import torch
from torch import Tensor

from recollect.batch import Batch, Inputs, named_tensors
from recollect.memories.choice import ascend


def name_of(kind: type) -> str:
    """By what name a class is known in files: our own by theirs, others with their module."""
    ours = kind.__module__.startswith("recollect.")
    return kind.__name__ if ours else f"{kind.__module__}.{kind.__qualname__}"


def checked_options(kind: type, options: dict[str, Any]) -> dict[str, Any]:
    """Options that can be written, and from which the memory can be made again."""
    try:
        json.dumps(options)
        signature = inspect.signature(kind)
        model = {"make_model": None} if "make_model" in signature.parameters else {}
        signature.bind(capacity=0, seed=0, **model, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"a memory must be made from capacity, seed and its options() as plain data to be saved, got {error} "
            f"for {kind.__name__}: see the documentation of Memory"
        ) from None
    return options


def as_text(value: Any) -> str:
    """Plain data as text that is the same for the same data."""
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        return f"something of type {type(value).__name__}"


def plain_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options as plain data; functions cannot be saved and are marked to be passed again."""
    plain = {name: str(value) if isinstance(value, torch.device) else value for name, value in options.items()}
    return {name: {"function": name} if callable(value) else value for name, value in plain.items()}


def check_restored(batch: Batch | None, seen: Any, capacity: int) -> None:
    """Refuse a saved state that no memory can be in."""
    if not isinstance(seen, int) or seen < 0 or (batch is None) != (seen == 0):
        got = seen if isinstance(seen, int) else type(seen).__name__
        raise ValueError(f"a saved memory must have seen a number of examples that fits what it holds, got {got}")
    if batch is None:
        return
    ids, n = batch.ids, len(batch)
    lengths = {len(t) for t in (*named_tensors(batch.inputs).values(), batch.weights, ids)}
    if lengths != {n} or n > capacity or batch.weights.dtype != torch.float32 or not batch.weights.isfinite().all():
        raise ValueError(f"a saved memory must hold at most {capacity} examples, each with a weight, got others")
    if ids.dtype != torch.long or not ascend(ids, seen):
        raise ValueError(f"a saved memory must hold ascending ids below the {seen} seen, got others")


def form_of(inputs: Inputs) -> dict[str, Any]:
    """Whether inputs are a tensor, a dict or a tuple, and the names of their tensors."""
    kind = "tensor" if isinstance(inputs, Tensor) else "dict" if isinstance(inputs, dict) else "tuple"
    return {"kind": kind, "names": list(named_tensors(inputs))}


def rebuild(form: dict[str, Any], values: list[Tensor]) -> Inputs:
    """Inputs of this form, of these tensors."""
    if form["kind"] == "tensor":
        return values[0]
    if form["kind"] == "dict":
        return dict(zip(form["names"], values, strict=True))
    return tuple(values)
