"""The one type that everything passes: examples with their targets, weights and places in the stream."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from recollect.arrays import as_tensor, kind_of
from recollect.checks import check_count

Inputs: TypeAlias = Tensor | dict[str, Tensor] | tuple[Tensor, ...]
"""What a model is called with: `model(tensor)`, `model(**dict)` or `model(*tuple)`."""


@dataclass(frozen=True, eq=False)  # tensors do not compare as one
class Batch:
    """Examples with weights: `inputs`, `targets`, `weights`, and `ids`, their places in the stream, counted from 0.

    Example:
        >>> batch = Batch.arriving(torch.zeros(3, 2), torch.tensor([0, 1, 1]), first_id=10)
        >>> batch
        Batch(3 examples, inputs (2,) float32, targets int64, weights 1)
        >>> batch.ids
        tensor([10, 11, 12])
    """

    inputs: Inputs
    targets: Tensor
    weights: Tensor
    ids: Tensor

    @classmethod
    def arriving(cls, inputs: Any, targets: Any, *, weights: Any = None, first_id: int = 0) -> "Batch":
        """Examples that just came, each with weight one unless given; refused unless complete and finite."""
        return cls.placed(*check_examples(inputs, targets), weights=weights, first_id=first_id)

    @classmethod
    def placed(cls, inputs: Inputs, targets: Tensor, *, weights: Any = None, first_id: int = 0) -> "Batch":
        """As `arriving`, of examples that have been checked already."""
        n, device = len(targets), targets.device
        inputs = map_inputs(lambda t: t.to(device), inputs)
        one_each = torch.ones(n, dtype=torch.float32, device=device)
        weights = one_each if weights is None else check_weights(weights, n).to(device)
        return cls(inputs, targets, weights, torch.arange(first_id, first_id + n, device=device))

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def weighted(self) -> bool:
        """Whether some examples do not have weight one."""
        return bool((self.weights != 1).any())

    def counted(self) -> "Batch":
        """Those that stand for something: of weight above zero."""
        return self if bool((self.weights > 0).all()) else self.take((self.weights > 0).nonzero()[:, 0])

    def __repr__(self) -> str:
        forms = [f"{what} {form_of(t)}" for what, t in {**_told(self.inputs), "targets": self.targets}.items()]
        return f"Batch({len(self)} examples, {', '.join(forms)}, {describe_weights(self.weights)})"

    def to(self, device: torch.device) -> "Batch":
        """The same examples on another device; themselves if they are there."""
        if all(
            t.device == device for t in (self.targets, self.weights, self.ids, *named_tensors(self.inputs).values())
        ):
            return self
        rest = (t.to(device) for t in (self.targets, self.weights, self.ids))
        return Batch(map_inputs(lambda t: t.to(device), self.inputs), *rest)

    def take(self, indices: Tensor) -> "Batch":
        """The examples at these positions, copied."""
        indices = indices.to(self.targets.device)
        return Batch(
            map_inputs(lambda t: t[indices], self.inputs),
            self.targets[indices],
            self.weights[indices],
            self.ids[indices],
        )

    def followed_by(self, other: "Batch") -> "Batch":
        """The examples of both, in order."""
        return Batch.joined([self, other])

    @classmethod
    def joined(cls, batches: "Iterable[Batch]") -> "Batch":
        """The examples of all, in order; inputs of a dict are joined by name, whatever their order."""
        some = list(batches)
        if len(some) == 1:
            return some[0]
        return cls(
            _joined([batch.inputs for batch in some]),
            torch.cat([batch.targets for batch in some]),
            torch.cat([batch.weights for batch in some]),
            torch.cat([batch.ids for batch in some]),
        )

    def minibatches(self, size: int, generator: torch.Generator | None = None) -> "Iterator[Batch]":
        """Pieces of at most `size` examples, shuffled if there is a generator."""
        size = check_count("batch_size", size)
        order = torch.arange(len(self)) if generator is None else torch.randperm(len(self), generator=generator)
        if len(self):
            yield from map(self.take, order.split(min(size, len(self))))


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


def _told(inputs: Inputs) -> dict[str, Tensor]:
    """The tensors of the inputs by what people call them: `inputs`, `inputs['name']` or `inputs[0]`."""
    if isinstance(inputs, Tensor):
        return {"inputs": inputs}
    pairs = inputs.items() if isinstance(inputs, dict) else enumerate(inputs)
    return {f"inputs[{key!r}]": value for key, value in pairs}


def _joined(inputs: list[Any]) -> Inputs:
    first = inputs[0]
    if isinstance(first, Tensor):
        return torch.cat(inputs)
    if isinstance(first, dict):
        return {name: torch.cat([some[name] for some in inputs]) for name in first}
    return tuple(torch.cat(values) for values in zip(*inputs, strict=True))


def form_of(value: Tensor) -> str:
    """Shape and type of one example, for people."""
    kind = str(value.dtype).removeprefix("torch.")
    return f"{tuple(value.shape[1:])} {kind}" if value.ndim > 1 else kind


def describe_weights(weights: Tensor) -> str:
    """The range of weights, for people."""
    if not len(weights):
        return "no weights"
    lowest, highest = f"{float(weights.min()):.3g}", f"{float(weights.max()):.3g}"
    return f"weights {lowest}" if lowest == highest else f"weights {lowest} to {highest}"


_OWN_LOSS = (
    "if it computes its own loss, let it return one per example, as by reduction='none', and pass "
    "loss=lambda losses, targets: losses"
)


NO_INFERENCE = (
    "gradients must be possible where examples are chosen or learned from, got torch.inference_mode: leave it, or use "
    "torch.no_grad"
)


def check_gradients_are_possible() -> None:
    """Refuse inference mode, in which there are none whatever is asked for."""
    if torch.is_inference_mode_enabled():
        raise ValueError(NO_INFERENCE)


def forward(model: nn.Module, inputs: Inputs) -> Tensor:
    """Call the model on the inputs, on its own device and in its own floating-point type.

    A lone tensor of bytes, such as images, becomes floating-point too, with its values from 0 to 255 as they are.
    Of a model that returns more than one thing, the output is its `logits`, or the first of a tuple.
    Whatever the model makes of the inputs, an error is one sentence.
    """
    try:
        outputs = _call(model, inputs)
    except (ValueError, MemoryError, torch.OutOfMemoryError) as error:
        if str(error).startswith("Expected more than 1 value per channel"):  # torch's BatchNorm
            raise ValueError(
                "the model's BatchNorm layers need at least two examples at a time, got one: pass more at once, or a "
                "larger batch_size"
            ) from error
        raise
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        if first_line.startswith("Inference tensors cannot be saved"):
            raise ValueError(NO_INFERENCE) from error
        given = ", ".join(form_of(value) for value in named_tensors(inputs).values())
        whole = isinstance(inputs, Tensor) and not inputs.is_floating_point()
        hint = ": if it wants floating-point numbers, pass inputs.float()" if whole else ""
        raise ValueError(
            f"the model must accept examples of {given}, got {type(error).__name__} from it ({first_line}){hint}"
        ) from error
    if not outputs.is_floating_point() or kind_of(outputs) != "dense":
        raise ValueError(
            f"the model must return a dense tensor of floating-point numbers, got a {kind_of(outputs)} one of "
            f"{outputs.dtype}"
        )
    n = len(next(iter(named_tensors(inputs).values())))
    if outputs.ndim == 0 or len(outputs) != n:
        hint = "" if outputs.numel() != 1 else f": {_OWN_LOSS}"
        raise ValueError(
            f"the model must return one output per example, got shape {tuple(outputs.shape)} for {n} examples{hint}"
        )
    return outputs


def _call(model: nn.Module, inputs: Inputs) -> Tensor:
    """As `forward`, with the errors that the model raises, which `torch.func` has a use for.

    The model gets a copy: it may begin with something that works in place, and examples stay as they came.
    """
    reference = _floating_parameter(model)
    # Only a lone tensor: bytes beside other inputs may be a mask, which means something else as floats.
    bytes_too = isinstance(inputs, Tensor)

    def fit(value: Tensor) -> Tensor:
        if reference is None:
            return value.clone()
        floating = value.is_floating_point() or (bytes_too and value.dtype == torch.uint8)
        return value.to(reference.device, reference.dtype if floating else None, copy=True)

    inputs = map_inputs(fit, inputs)
    if isinstance(inputs, Tensor):
        outputs = model(inputs)
    elif isinstance(inputs, dict):
        outputs = model(**inputs)
    else:
        outputs = model(*inputs)
    if isinstance(outputs, Tensor):
        return outputs
    found = getattr(outputs, "logits", None)
    if found is None and isinstance(outputs, Mapping):
        found = outputs.get("logits")
    if found is None and isinstance(outputs, tuple | list) and outputs:
        found = outputs[0]
    if not isinstance(found, Tensor):
        hint = f": {_OWN_LOSS}" if getattr(outputs, "loss", None) is not None else ""
        raise ValueError(
            "the model must return a tensor, a tuple that starts with one, or an object with logits, "
            f"got {type(outputs).__name__}{hint}"
        )
    return found


def _floating_parameter(model: nn.Module) -> Tensor | None:
    """The first of the model's parameters that is floating-point; `model.parameters()` would take ten times as long."""
    for parameter in model._parameters.values():
        if parameter is not None and parameter.is_floating_point():
            return parameter
    children = (child for child in model._modules.values() if child is not None)
    return next((found for child in children if (found := _floating_parameter(child)) is not None), None)


def functional_forward(model: nn.Module, parameters: Mapping[str, Tensor], inputs: Inputs) -> Tensor:
    """As `forward`, with other parameters and buffers in the place of the model's own."""
    replaced = {f"model.{name}": value for name, value in parameters.items()}
    return functional_call(_Callable(model), replaced, (inputs,))  # type: ignore[no-any-return]


class _Callable(nn.Module):
    """Lets `functional_call` reach the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs) -> Tensor:
        return _call(self.model, inputs)


def check_examples(inputs: Any, targets: Any) -> tuple[Inputs, Tensor]:
    """Turn arrays into tensors and refuse what cannot be learned from, in one sentence."""
    inputs = as_inputs(inputs)
    targets = as_tensor(targets, "targets")
    if targets.ndim == 0:
        raise ValueError("targets must have one entry per example, got a single number: pass a vector")
    if len(targets) and not targets.numel():
        raise ValueError(f"targets must have at least one number per example, got shape {tuple(targets.shape)}")
    _check_rows(inputs, len(targets), "targets")
    _check_finite(targets, "targets")
    return inputs, targets


def check_weights(weights: Any, n: int) -> Tensor:
    """How many examples each of n stands for, in float32; refused unless they are numbers of at least zero.

    Example:
        >>> check_weights([2, 0.5], 2)
        tensor([2.0000, 0.5000])
    """
    found = as_tensor(weights, "weights")
    if found.shape != (n,) or found.dtype == torch.bool:
        raise ValueError(
            f"weights must be a row of numbers, one for each of the {n} examples, got {found.dtype} of shape "
            f"{tuple(found.shape)}"
        )
    found = found.float()
    if not bool((found.isfinite() & (found >= 0)).all()):
        place = int((~(found.isfinite() & (found >= 0))).nonzero()[0])
        raise ValueError(f"weights must be finite and at least 0, got {float(found[place]):g} at position {place}")
    if not bool(found.any()):
        raise ValueError("weights must not all be zero: there would be nothing to remember")
    return found


def check_inputs(inputs: Any) -> Inputs:
    """As `check_examples`, where there are no targets."""
    inputs = as_inputs(inputs)
    first = next(iter(named_tensors(inputs).values()))
    _check_rows(inputs, len(first) if first.ndim else 0, "the other inputs")
    return inputs  # type: ignore[no-any-return]


def _check_rows(inputs: Inputs, n: int, others: str) -> None:
    for what, value in _told(inputs).items():
        if value.ndim == 0 or len(value) != n:
            count = "a single number" if value.ndim == 0 else f"{len(value)}"
            raise ValueError(f"{what} and {others} must have the same length, got {count} and {n}")
        _check_finite(value, what)
    if n == 0:
        raise ValueError("a batch must hold at least one example, got none")


def check_device(device: Any) -> torch.device:
    """The device, if torch can use it here."""
    if not isinstance(device, str | torch.device):
        raise ValueError(f"device must be one that torch can use here, got {device!r}")
    try:
        found = torch.empty(0, device=device).device
    except Exception as error:  # torch has one kind for each reason
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device must be one that torch can use here, got {device!r} ({reason})") from None
    if found.type == "meta":
        raise ValueError("device must be one that holds values, got 'meta'")
    return found


def check_same_form(known: Batch, arrived: Batch) -> None:
    """Refuse examples whose shape, type or structure differs from those already held."""
    a, b = _told(known.inputs), _told(arrived.inputs)
    if _kind(known.inputs) is not _kind(arrived.inputs) or a.keys() != b.keys():
        raise ValueError(
            f"inputs must keep their structure, {_structure(known.inputs)} so far, got {_structure(arrived.inputs)}"
        )
    for what, old, new in [*((what, a[what], b[what]) for what in a), ("targets", known.targets, arrived.targets)]:
        if old.shape[1:] != new.shape[1:]:
            raise ValueError(
                f"{what} must keep the shape {tuple(old.shape[1:])} of earlier examples, got {tuple(new.shape[1:])}"
            )
        if old.dtype != new.dtype:
            raise ValueError(f"{what} must keep the type {old.dtype} of earlier examples, got {new.dtype}")


def _kind(inputs: Inputs) -> type:
    return next(kind for kind in (Tensor, dict, tuple) if isinstance(inputs, kind))


def _structure(inputs: Inputs) -> str:
    if isinstance(inputs, Tensor):
        return "one tensor"
    if isinstance(inputs, dict):
        return f"a dict of {', '.join(map(repr, inputs))}"
    return f"a tuple of {len(inputs)} tensors"


def as_inputs(inputs: Any) -> Inputs:
    """Arrays and tables as tensors, in the structure that they came in."""
    if isinstance(inputs, Mapping):
        if not inputs:
            raise ValueError("inputs must hold at least one tensor, got an empty dict")
        for key in inputs:
            if not isinstance(key, str):
                raise ValueError(f"inputs must be named by text, as the model's arguments are, got {key!r}")
        return {key: as_tensor(value, f"inputs[{key!r}]") for key, value in inputs.items()}
    if isinstance(inputs, tuple):
        if not inputs:
            raise ValueError("inputs must hold at least one tensor, got an empty tuple")
        return tuple(as_tensor(value, f"inputs[{i}]") for i, value in enumerate(inputs))
    return as_tensor(inputs, "inputs")


def _check_finite(value: Tensor, what: str) -> None:
    if not value.is_floating_point():
        return
    # A sum is finite unless an entry is not (or it overflows): one cheap pass decides in nearly all cases.
    if math.isfinite(value.sum()):
        return
    bad = (~torch.isfinite(value.reshape(len(value), -1))).any(1)
    if bad.any():
        rows = bad.nonzero().flatten()
        raise ValueError(
            f"{what} must be finite, got NaN or infinity in {len(rows)} of {len(value)} examples, "
            f"the first at position {int(rows[0])}: drop or fill them"
            + (", be it with a number that a loss of your own leaves out" if what == "targets" else "")
        )
