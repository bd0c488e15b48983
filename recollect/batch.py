"""The one type that everything passes: examples with their targets, weights and places in the stream."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

Inputs: TypeAlias = Tensor | dict[str, Tensor] | tuple[Tensor, ...]
"""What a model is called with: `model(tensor)`, `model(**dict)` or `model(*tuple)`."""


@dataclass(frozen=True)
class Batch:
    """Weighted examples. `ids` count examples since the stream began.

    Example:
        >>> batch = Batch.arriving(torch.zeros(3, 2), torch.tensor([0, 1, 1]), first_id=10)
        >>> len(batch), batch.ids, batch.weights
        (3, tensor([10, 11, 12]), tensor([1., 1., 1.]))
    """

    inputs: Inputs
    targets: Tensor
    weights: Tensor
    ids: Tensor

    @classmethod
    def arriving(cls, inputs: Any, targets: Any, *, first_id: int = 0) -> "Batch":
        """Examples that just came, each with weight one; refused unless complete and finite."""
        inputs, targets = check_examples(inputs, targets)
        n = len(targets)
        return cls(inputs, targets, torch.ones(n), torch.arange(first_id, first_id + n))

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, indices: Tensor) -> "Batch":
        """The examples at these positions, copied."""
        return Batch(
            map_inputs(lambda t: t[indices], self.inputs),
            self.targets[indices],
            self.weights[indices],
            self.ids[indices],
        )

    def followed_by(self, other: "Batch") -> "Batch":
        """The examples of both, in order."""
        return Batch(
            join_inputs(self.inputs, other.inputs),
            torch.cat([self.targets, other.targets]),
            torch.cat([self.weights, other.weights]),
            torch.cat([self.ids, other.ids]),
        )

    def minibatches(self, size: int, generator: torch.Generator | None = None) -> "Iterator[Batch]":
        """Pieces of at most `size` examples, shuffled if there is a generator."""
        order = torch.arange(len(self)) if generator is None else torch.randperm(len(self), generator=generator)
        for rows in order.split(size):
            yield self.take(rows)


def map_inputs(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Apply a function to every tensor of the inputs."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, dict):
        return {key: function(value) for key, value in inputs.items()}
    return tuple(function(value) for value in inputs)


def named_tensors(inputs: Inputs) -> dict[str, Tensor]:
    """The tensors of the inputs by name; the name of a lone tensor is empty."""
    if isinstance(inputs, Tensor):
        return {"": inputs}
    if isinstance(inputs, dict):
        return inputs
    return {str(i): value for i, value in enumerate(inputs)}


def join_inputs(first: Inputs, second: Inputs) -> Inputs:
    """Concatenate along the examples; both must have the same structure."""
    others = iter(named_tensors(second).values())
    return map_inputs(lambda t: torch.cat([t, next(others)]), first)


def forward(model: nn.Module, inputs: Inputs) -> Tensor:
    """Call the model on the inputs, on its own device and in its own floating-point type."""
    reference = next((p for p in model.parameters() if p.is_floating_point()), None)

    def fit(value: Tensor) -> Tensor:
        if reference is None:
            return value
        return value.to(reference.device, reference.dtype if value.is_floating_point() else None)

    inputs = map_inputs(fit, inputs)
    if isinstance(inputs, Tensor):
        return model(inputs)  # type: ignore[no-any-return]
    if isinstance(inputs, dict):
        return model(**inputs)  # type: ignore[no-any-return]
    return model(*inputs)  # type: ignore[no-any-return]


def functional_forward(model: nn.Module, parameters: Mapping[str, Tensor], inputs: Inputs) -> Tensor:
    """As `forward`, with other parameters and buffers in the place of the model's own."""
    replaced = {f"model.{name}": value for name, value in parameters.items()}
    return functional_call(_Callable(model), replaced, (inputs,))  # type: ignore[no-any-return]


class _Callable(nn.Module):
    """Lets `functional_call` reach `forward`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs) -> Tensor:
        return forward(self.model, inputs)


def check_examples(inputs: Any, targets: Any) -> tuple[Inputs, Tensor]:
    """Turn arrays into tensors and refuse what cannot be learned from, in one sentence."""
    inputs = _as_inputs(inputs)
    targets = _as_tensor(targets, "targets")
    if targets.ndim == 0:
        raise ValueError("targets must have one entry per example, got a single number: pass a vector")
    n = len(targets)
    for name, value in named_tensors(inputs).items():
        what = f"inputs[{name!r}]" if name else "inputs"
        if value.ndim == 0 or len(value) != n:
            count = "a single number" if value.ndim == 0 else f"{len(value)}"
            raise ValueError(f"{what} and targets must have the same length, got {count} and {n}")
        _check_finite(value, what)
    if n == 0:
        raise ValueError("a batch must hold at least one example, got none")
    _check_finite(targets, "targets")
    return inputs, targets


def check_same_form(known: Batch, arrived: Batch) -> None:
    """Refuse examples whose shape, type or structure differs from those already held."""
    a, b = named_tensors(known.inputs), named_tensors(arrived.inputs)
    if type(known.inputs) is not type(arrived.inputs) or a.keys() != b.keys():
        raise ValueError(
            f"inputs must keep their structure, {_structure(known.inputs)} so far, got {_structure(arrived.inputs)}"
        )
    pairs = [(f"inputs[{name!r}]" if name else "inputs", a[name], b[name]) for name in a]
    for what, old, new in [*pairs, ("targets", known.targets, arrived.targets)]:
        if old.shape[1:] != new.shape[1:]:
            raise ValueError(
                f"{what} must keep the shape {tuple(old.shape[1:])} of earlier examples, got {tuple(new.shape[1:])}"
            )
        if old.dtype != new.dtype:
            raise ValueError(f"{what} must keep the type {old.dtype} of earlier examples, got {new.dtype}")


def _structure(inputs: Inputs) -> str:
    if isinstance(inputs, Tensor):
        return "one tensor"
    if isinstance(inputs, dict):
        return f"a dict of {', '.join(map(repr, inputs))}"
    return f"a tuple of {len(inputs)} tensors"


def _as_inputs(inputs: Any) -> Inputs:
    if isinstance(inputs, Mapping):
        if not inputs:
            raise ValueError("inputs must hold at least one tensor, got an empty dict")
        return {str(key): _as_tensor(value, f"inputs[{key!r}]") for key, value in inputs.items()}
    if isinstance(inputs, tuple):
        if not inputs:
            raise ValueError("inputs must hold at least one tensor, got an empty tuple")
        return tuple(_as_tensor(value, f"inputs[{i}]") for i, value in enumerate(inputs))
    return _as_tensor(inputs, "inputs")


def _as_tensor(value: Any, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, np.ndarray | Sequence):
        try:
            return torch.as_tensor(np.ascontiguousarray(value))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{what} must be numbers in rows of equal length, got {error}") from None
    raise ValueError(f"{what} must be a tensor or an array, got {type(value).__name__}")


def _check_finite(value: Tensor, what: str) -> None:
    if not value.is_floating_point():
        return
    # A sum is finite unless an entry is not (or it overflows): one cheap pass decides in nearly all cases.
    if torch.isfinite(value.sum()):
        return
    bad = (~torch.isfinite(value.reshape(len(value), -1))).any(1)
    if bad.any():
        rows = bad.nonzero().flatten()
        raise ValueError(
            f"{what} must be finite, got NaN or infinity in {len(rows)} of {len(value)} examples, "
            f"the first at position {int(rows[0])}: drop or fill them"
        )
