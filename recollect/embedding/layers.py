r"""Per-example gradients of common layers, from what flows through them in one plain pass.

Let a be a layer's input and delta the gradient of the loss at its output. A linear layer's gradient for one
example is then the outer product delta a^T, summed over positions where there are several; a convolution's is
the same with a the patches of its input. So one backward pass to the layers' *outputs* is enough for
every per-example gradient, and a projection that acts on both factors never needs to form it:

    (P (x) Q) vec(sum_l delta_l a_l^T) = vec(sum_l (P delta_l) (Q a_l)^T).

Each rule below knows one function of torch that parameters go through. `gradients` forms the gradients; `out_factor`
and `in_factor` apply a matrix to delta and to a, where a may be extended by a one for the bias.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass
class Use:
    """One use of parameters: which, by what rule, what came in, and the gradient of the loss at what went out.

    Attributes:
        rule: a name of `RULES`.
        weight: the parameter that multiplies, by name.
        bias: the parameter that is added, if there is one that counts.
        input: what came in, examples first.
        settings: what else the function was called with, as its rule wants it.
        delta: the gradient at what went out, examples first; None if the loss does not depend on it.
    """

    rule: str
    weight: str | None
    bias: str | None
    input: Tensor
    settings: Any = None
    delta: Tensor | None = None


class Sides(NamedTuple):
    """What is applied to both factors of a layer's gradient; a vector stands for its diagonal matrix.

    Q's last column is kept apart where it belongs to the bias: matrix products want their weights in one piece.
    """

    P: Tensor
    Q: Tensor
    shift: Tensor | None

    def to(self, where: torch.device | torch.dtype) -> "Sides":
        """The same on another device, or as other numbers."""
        return Sides(self.P.to(where), self.Q.to(where), None if self.shift is None else self.shift.to(where))


class Called(NamedTuple):
    """The arguments of a function, told apart."""

    input: Tensor
    weight: Tensor | None
    bias: Tensor | None
    settings: Any = None


class Rule(ABC):
    """How one function of torch turns into per-example gradients of the parameters it was called with."""

    @abstractmethod
    def read(self, *args: Any, **kwargs: Any) -> Called | None:
        """The arguments told apart; None if the function was called in a way that has no rule."""

    @abstractmethod
    def gradients(self, use: Use, n: int) -> dict[str, Tensor]:
        """The gradient of each parameter, (n, *its shape)."""


class FactorRule(Rule):
    """A rule whose weight's gradient is a sum of outer products."""

    @abstractmethod
    def sizes(self, use: Use, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """Lengths of delta and of a for a weight of this shape; None if there are no such factors after all."""

    def rows_are_outputs(self, use: Use) -> bool:
        """Whether the weight's first dimension is delta's."""
        return True

    @abstractmethod
    def out_factor(self, use: Use, n: int, M: Tensor) -> Tensor:
        """`M delta_l`, (n, positions, len(M))."""

    @abstractmethod
    def in_factor(self, use: Use, n: int, M: Tensor, shift: Tensor | None = None) -> Tensor:
        """`M a_l`, with the shift as what M does to the one for the bias, (n, positions, len(M))."""

    @abstractmethod
    def bias_gradient(self, use: Use, n: int) -> Tensor:
        """delta, summed over positions."""


class LinearRule(FactorRule):
    """A linear map; its settings tell whether the weight's rows belong to the outputs."""

    def read(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Called | None:
        return Called(input, weight, bias, True) if weight.ndim == 2 else None

    def gradients(self, use: Use, n: int) -> dict[str, Tensor]:
        a, delta = _positions(use.input, n), _positions(use.delta, n)  # (n, l, in), (n, l, out)
        rows, columns = (delta, a) if use.settings else (a, delta)
        if a.shape[1] == 1:  # laid out with the examples last, as a sparse projection reads it
            weight = (rows[:, 0].T.contiguous()[:, None] * columns[:, 0].T.contiguous()).permute(2, 0, 1)
        else:
            weight = rows.mT @ columns
        return _named(use, weight, lambda: delta.sum(1))

    def sizes(self, use: Use, shape: tuple[int, ...]) -> tuple[int, int]:
        return (shape[0], shape[1]) if use.settings else (shape[1], shape[0])

    def rows_are_outputs(self, use: Use) -> bool:
        return bool(use.settings)

    def out_factor(self, use: Use, n: int, M: Tensor) -> Tensor:
        delta = use.delta
        assert delta is not None
        return _positions(delta * M if M.ndim == 1 else F.linear(delta, M), n)

    def in_factor(self, use: Use, n: int, M: Tensor, shift: Tensor | None = None) -> Tensor:
        a = use.input
        if M.ndim == 1:
            factor = a * M if shift is None else torch.cat([a * M, shift.expand(*a.shape[:-1], 1)], dim=-1)
        else:
            factor = F.linear(a, M, shift)
        return _positions(factor, n)

    def bias_gradient(self, use: Use, n: int) -> Tensor:
        return _positions(use.delta, n).sum(1)


class MatmulRule(LinearRule):
    """`x @ W`: a linear map whose weight's columns belong to the outputs."""

    def read(self, input: Tensor, other: Tensor) -> Called | None:  # type: ignore[override]
        return Called(input, other, None, False) if other.ndim == 2 and input.ndim >= 2 else None


class AddmmRule(LinearRule):
    """`b + x @ W`, as GPT-2 writes its linear layers."""

    def read(  # type: ignore[override]
        self, bias: Tensor, input: Tensor, weight: Tensor, *, beta: float = 1, alpha: float = 1
    ) -> Called | None:
        return Called(input, weight, bias, False) if bias.ndim == 1 and beta == alpha == 1 else None


class _Convolution(NamedTuple):
    shape: tuple[int, ...]  # of the weight: (out, in / groups, *kernel)
    stride: tuple[int, ...]
    padding: str | tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class ConvRule(FactorRule):
    """Over one or two dimensions; a convolution with Q's rows as filters *is* the projection of its patches."""

    def read(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Called | None:
        dims = weight.ndim - 2
        if input.ndim != weight.ndim:
            return None  # one example without a dimension for it
        stride, dilation = _per_dim(stride, dims), _per_dim(dilation, dims)
        padding = padding if isinstance(padding, str) else _per_dim(padding, dims)
        return Called(input, weight, bias, _Convolution(tuple(weight.shape), stride, padding, dilation, groups))

    def gradients(self, use: Use, n: int) -> dict[str, Tensor]:
        about: _Convolution = use.settings
        patches = self._patches(use)  # (n, in * kernel, l)
        delta = self._delta(use)  # (n, out, l)
        entries, groups = int(torch.Size(about.shape[1:]).numel()), about.groups
        weight = delta.reshape(n, groups, about.shape[0] // groups, -1) @ patches.reshape(n, groups, entries, -1).mT
        return _named(use, weight.reshape(n, *about.shape), lambda: delta.sum(2))

    def sizes(self, use: Use, shape: tuple[int, ...]) -> tuple[int, int] | None:
        return None if use.settings.groups != 1 else (shape[0], int(torch.Size(shape[1:]).numel()))

    def out_factor(self, use: Use, n: int, M: Tensor) -> Tensor:
        delta = self._delta(use)
        return (delta * M[:, None] if M.ndim == 1 else M @ delta).mT

    def in_factor(self, use: Use, n: int, M: Tensor, shift: Tensor | None = None) -> Tensor:
        about: _Convolution = use.settings
        if M.ndim == 1:
            patches = self._patches(use) * M[:, None]
            if shift is not None:
                patches = torch.cat([patches, shift.expand(n, 1, patches.shape[2])], dim=1)
        else:
            convolve: Any = F.conv1d if use.input.ndim == 3 else F.conv2d
            filters = M.reshape(-1, *about.shape[1:])
            patches = convolve(use.input, filters, shift, about.stride, about.padding, about.dilation).flatten(2)
        return patches.mT

    def bias_gradient(self, use: Use, n: int) -> Tensor:
        return self._delta(use).sum(2)

    @staticmethod
    def _delta(use: Use) -> Tensor:
        assert use.delta is not None
        return use.delta.flatten(2)

    @staticmethod
    def _patches(use: Use) -> Tensor:
        """The patch of the input under the kernel at each position, (n, in * kernel, positions)."""
        about: _Convolution = use.settings
        kernel = about.shape[2:]
        a = use.input
        if isinstance(about.padding, str):  # "same" with an even kernel has one more at the end
            totals = [
                d * (k - 1) if about.padding == "same" else 0 for k, d in zip(kernel, about.dilation, strict=True)
            ]
            before_after = [(total // 2, total - total // 2) for total in totals]
        else:
            before_after = [(p, p) for p in about.padding]
        if any(map(any, before_after)):
            a = F.pad(a, [p for pair in reversed(before_after) for p in pair])
        if a.ndim == 3:  # a convolution over one dimension is one over two, the first of length one
            one = (1,)
            return F.unfold(a[:, :, None], one + kernel, one + about.dilation, 0, one + about.stride)
        return F.unfold(a, kernel, about.dilation, 0, about.stride)


class EmbeddingRule(FactorRule):
    """A table's gradient puts delta in the row that was looked up: the input factor is one-hot."""

    def read(
        self,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Called | None:
        if max_norm is not None or scale_grad_by_freq:
            return None
        return Called(input, weight, None, (tuple(weight.shape), padding_idx))

    def gradients(self, use: Use, n: int) -> dict[str, Tensor]:
        assert use.weight is not None
        rows, delta = self._lookups(use, n)
        gradient = delta.new_zeros(n, *use.settings[0])
        gradient.scatter_add_(1, rows[:, :, None].expand_as(delta), delta)
        return {use.weight: gradient}

    def sizes(self, use: Use, shape: tuple[int, ...]) -> tuple[int, int]:
        return shape[1], shape[0]

    def rows_are_outputs(self, use: Use) -> bool:
        return False

    def out_factor(self, use: Use, n: int, M: Tensor) -> Tensor:
        _, delta = self._lookups(use, n)
        return delta * M if M.ndim == 1 else F.linear(delta, M)

    def in_factor(self, use: Use, n: int, M: Tensor, shift: Tensor | None = None) -> Tensor:
        rows = use.input.reshape(n, -1)
        return F.one_hot(rows, len(M)) * M if M.ndim == 1 else M.T[rows]

    def bias_gradient(self, use: Use, n: int) -> Tensor:
        raise TypeError("a table has no bias")

    @staticmethod
    def _lookups(use: Use, n: int) -> tuple[Tensor, Tensor]:
        rows, delta = use.input.reshape(n, -1), _positions(use.delta, n)
        shape, padding = use.settings
        if padding is not None:
            delta = delta * (rows != padding % shape[0])[:, :, None]
        return rows, delta


class LayerNormRule(Rule):
    def read(
        self,
        input: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Called:
        return Called(input, weight, bias, (tuple(normalized_shape), eps))

    def gradients(self, use: Use, n: int) -> dict[str, Tensor]:
        assert use.delta is not None
        shape, delta = use.settings[0], use.delta
        weight = (delta * self._normalised(use)).reshape(n, -1, *shape).sum(1)
        return _named(use, weight, lambda: delta.reshape(n, -1, *shape).sum(1))

    def _normalised(self, use: Use) -> Tensor:
        shape, eps = use.settings
        return F.layer_norm(use.input, shape, eps=eps)


class RMSNormRule(LayerNormRule):
    def read(  # type: ignore[override]
        self, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
    ) -> Called:
        return Called(input, weight, None, (tuple(normalized_shape), eps))

    def _normalised(self, use: Use) -> Tensor:
        shape, eps = use.settings
        return F.rms_norm(use.input, shape, eps=eps)


class _ByChannel(Rule):
    """A gain and a shift per channel."""

    def gradients(self, use: Use, n: int) -> dict[str, Tensor]:
        assert use.delta is not None
        delta, shape = use.delta, (n, use.input.shape[1], -1)
        weight = (delta * self._normalised(use)).reshape(shape).sum(2)
        return _named(use, weight, lambda: delta.reshape(shape).sum(2))

    @abstractmethod
    def _normalised(self, use: Use) -> Tensor: ...


class GroupNormRule(_ByChannel):
    def read(
        self,
        input: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Called:
        return Called(input, weight, bias, (num_groups, eps))

    def _normalised(self, use: Use) -> Tensor:
        groups, eps = use.settings
        return F.group_norm(use.input, groups, eps=eps)


class BatchNormRule(_ByChannel):
    """BatchNorm with frozen statistics."""

    def read(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Called | None:
        return (
            None if training or running_mean is None else Called(input, weight, bias, (running_mean, running_var, eps))
        )

    def _normalised(self, use: Use) -> Tensor:
        mean, variance, eps = use.settings
        return F.batch_norm(use.input, mean, variance, eps=eps)


RULES: dict[str, Rule] = {
    "linear": LinearRule(),
    "matmul": MatmulRule(),
    "addmm": AddmmRule(),
    "convolution": ConvRule(),
    "table": EmbeddingRule(),
    "layer norm": LayerNormRule(),
    "rms norm": RMSNormRule(),
    "group norm": GroupNormRule(),
    "batch norm": BatchNormRule(),
}

FUNCTIONS: dict[Any, str] = {
    F.linear: "linear",
    torch.matmul: "matmul",
    Tensor.matmul: "matmul",
    torch.mm: "matmul",
    Tensor.mm: "matmul",
    torch.addmm: "addmm",
    F.conv1d: "convolution",
    F.conv2d: "convolution",
    F.embedding: "table",
    F.layer_norm: "layer norm",
    F.rms_norm: "rms norm",
    F.group_norm: "group norm",
    F.batch_norm: "batch norm",
}
"""The rule of each function of torch that has one."""


def _positions(value: Tensor | None, n: int) -> Tensor:
    """(n, ..., features) to (n, positions, features)."""
    assert value is not None
    return value.reshape(n, -1, value.shape[-1])


def _per_dim(value: Any, dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


def _named(use: Use, weight: Tensor, bias: Any) -> dict[str, Tensor]:
    found = {} if use.weight is None else {use.weight: weight}
    if use.bias is not None:
        found[use.bias] = bias()
    return found
