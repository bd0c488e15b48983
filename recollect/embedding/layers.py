r"""Per-example gradients of common layers, from what flows through them in one plain pass.

Let a be a layer's input and delta the gradient of the loss at its output. A linear layer's gradient for one
example is then the outer product delta a^T, summed over positions where there are several; a convolution's is
the same with a the patches of its input. So one backward pass to the layers' *outputs* is enough for
every per-example gradient, and a projection that acts on both factors never needs to form it:

    (P (x) Q) vec(sum_l delta_l a_l^T) = vec(sum_l (P delta_l) (Q a_l)^T).

Each rule below knows one kind of layer. `gradient` forms the gradient; `factors` applies P to delta and
Q to a, where a is extended by a one for the bias.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd


@dataclass
class Call:
    """One use of a layer: what came in, and the gradient of the loss at what went out."""

    input: Tensor
    delta: Tensor | None = None


class Sides(NamedTuple):
    """What is applied to both factors of a layer's gradient; a vector stands for its diagonal matrix.

    Q's last column is kept apart where it belongs to the bias: matrix products want their weights in one piece.
    """

    P: Tensor
    Q: Tensor
    shift: Tensor | None


class Rule(Protocol):
    """How one kind of layer turns a call into per-example gradients."""

    def applies(self, module: nn.Module) -> bool:
        """Whether this module is plain enough for the rule."""

    def gradient(self, module: nn.Module, a: Tensor, delta: Tensor, n: int) -> dict[str, Tensor]:
        """The gradient of each parameter, (n, *parameter.shape)."""

    def factor_sizes(self, module: nn.Module) -> tuple[int, int] | None:
        """Lengths of delta and of the extended a; None if the gradient is no sum of outer products."""

    def has_bias(self, module: nn.Module) -> bool:
        """Whether a is extended by a one."""

    def factors(self, module: nn.Module, a: Tensor, delta: Tensor, n: int, sides: Sides) -> tuple[Tensor, Tensor]:
        """`P delta_l` as (n, p, positions) and `Q a_l` as (n, positions, q)."""


class LinearRule:
    def applies(self, module: nn.Module) -> bool:
        return True

    def gradient(self, module: nn.Module, a: Tensor, delta: Tensor, n: int) -> dict[str, Tensor]:
        a, delta = _positions(a, n), _positions(delta, n)  # (n, l, in), (n, l, out)
        if a.shape[1] == 1:  # laid out with the examples last, as a sparse projection reads it
            weight = (delta[:, 0].T.contiguous()[:, None] * a[:, 0].T.contiguous()).permute(2, 0, 1)
        else:
            weight = delta.mT @ a
        gradients = {"weight": weight}
        if cast(nn.Linear, module).bias is not None:
            gradients["bias"] = delta.sum(1)
        return gradients

    def factor_sizes(self, module: nn.Module) -> tuple[int, int]:
        module = cast(nn.Linear, module)
        return module.out_features, module.in_features + (module.bias is not None)

    def has_bias(self, module: nn.Module) -> bool:
        return cast(nn.Linear, module).bias is not None

    def factors(self, module: nn.Module, a: Tensor, delta: Tensor, n: int, sides: Sides) -> tuple[Tensor, Tensor]:
        P, Q, shift = sides
        if Q.ndim == 1:
            right = a * Q if shift is None else torch.cat([a * Q, shift.expand(*a.shape[:-1], 1)], dim=-1)
        else:
            right = F.linear(a, Q, shift)
        left = delta * P if P.ndim == 1 else F.linear(delta, P)
        return _positions(left, n).mT, _positions(right, n)


class ConvRule:
    """Conv1d and Conv2d; a convolution with Q's rows as filters *is* the projection of its patches."""

    def applies(self, module: nn.Module) -> bool:
        module = cast(_ConvNd, module)
        return module.padding_mode == "zeros"

    def gradient(self, module: nn.Module, a: Tensor, delta: Tensor, n: int) -> dict[str, Tensor]:
        module = cast(_ConvNd, module)
        shape = module.weight.shape  # (out, in / groups, *kernel)
        patches = _patches(module, a)  # (n, in * kernel, l)
        delta = delta.flatten(2)  # (n, out, l)
        groups = module.groups
        weight = delta.reshape(n, groups, shape[0] // groups, -1) @ patches.reshape(n, groups, shape[1:].numel(), -1).mT
        gradients = {"weight": weight.reshape(n, *shape)}
        if module.bias is not None:
            gradients["bias"] = delta.sum(2)
        return gradients

    def factor_sizes(self, module: nn.Module) -> tuple[int, int] | None:
        module = cast(_ConvNd, module)
        if module.groups != 1:
            return None
        return module.out_channels, module.weight[0].numel() + (module.bias is not None)

    def has_bias(self, module: nn.Module) -> bool:
        return cast(_ConvNd, module).bias is not None

    def factors(self, module: nn.Module, a: Tensor, delta: Tensor, n: int, sides: Sides) -> tuple[Tensor, Tensor]:
        module = cast(_ConvNd, module)
        P, Q, shift = sides
        if Q.ndim == 1:
            patches = _patches(module, a) * Q[:, None]
            if shift is not None:
                patches = torch.cat([patches, shift.expand(n, 1, patches.shape[2])], dim=1)
        else:
            patches = _convolve(module, a, Q.reshape(-1, *module.weight.shape[1:]), shift).flatten(2)
        delta = delta.flatten(2)
        return delta * P[:, None] if P.ndim == 1 else P @ delta, patches.mT


class EmbeddingRule:
    """A table's gradient puts delta in the row that was looked up: the input factor is one-hot."""

    def applies(self, module: nn.Module) -> bool:
        module = cast(nn.Embedding, module)
        return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse

    def gradient(self, module: nn.Module, a: Tensor, delta: Tensor, n: int) -> dict[str, Tensor]:
        rows, delta = self._lookups(module, a, delta, n)
        weight = cast(nn.Embedding, module).weight
        gradient = delta.new_zeros(n, *weight.shape)
        gradient.scatter_add_(1, rows[:, :, None].expand_as(delta), delta)
        return {"weight": gradient}

    def factor_sizes(self, module: nn.Module) -> tuple[int, int]:
        rows, columns = cast(nn.Embedding, module).weight.shape
        return columns, rows

    def has_bias(self, module: nn.Module) -> bool:
        return False

    def factors(self, module: nn.Module, a: Tensor, delta: Tensor, n: int, sides: Sides) -> tuple[Tensor, Tensor]:
        P, Q, _ = sides
        rows, delta = self._lookups(module, a, delta, n)
        right = F.one_hot(rows, len(Q)) * Q if Q.ndim == 1 else Q.T[rows]
        left = delta * P if P.ndim == 1 else F.linear(delta, P)
        return left.mT, right

    @staticmethod
    def _lookups(module: nn.Module, a: Tensor, delta: Tensor, n: int) -> tuple[Tensor, Tensor]:
        module = cast(nn.Embedding, module)
        rows, delta = a.reshape(n, -1), _positions(delta, n)
        if module.padding_idx is not None:
            delta = delta * (rows != module.padding_idx)[:, :, None]
        return rows, delta


class LayerNormRule:
    def applies(self, module: nn.Module) -> bool:
        return True

    def gradient(self, module: nn.Module, a: Tensor, delta: Tensor, n: int) -> dict[str, Tensor]:
        module = cast(nn.LayerNorm, module)
        shape = tuple(module.normalized_shape)
        normalised = F.layer_norm(a, shape, eps=module.eps)
        gradients = {"weight": (delta * normalised).reshape(n, -1, *shape).sum(1)}
        if module.bias is not None:
            gradients["bias"] = delta.reshape(n, -1, *shape).sum(1)
        return gradients

    def factor_sizes(self, module: nn.Module) -> None:
        return None

    def has_bias(self, module: nn.Module) -> bool:
        return False

    def factors(self, *_: object) -> tuple[Tensor, Tensor]:
        raise TypeError("a gain's gradient is no sum of outer products")


class BatchNormRule(LayerNormRule):
    """BatchNorm with frozen statistics is a gain and a shift per channel."""

    def applies(self, module: nn.Module) -> bool:
        return cast(_BatchNorm, module).running_mean is not None

    def gradient(self, module: nn.Module, a: Tensor, delta: Tensor, n: int) -> dict[str, Tensor]:
        module = cast(_BatchNorm, module)
        normalised = F.batch_norm(a, module.running_mean, module.running_var, eps=module.eps)
        shape = (n, module.num_features, -1)
        return {
            "weight": (delta * normalised).reshape(shape).sum(2),
            "bias": delta.reshape(shape).sum(2),
        }


_CONV, _BATCHNORM = ConvRule(), BatchNormRule()

# By exact type: a subclass may compute something else.
RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: LinearRule(),
    nn.Conv1d: _CONV,
    nn.Conv2d: _CONV,
    nn.Embedding: EmbeddingRule(),
    nn.LayerNorm: LayerNormRule(),
    nn.BatchNorm1d: _BATCHNORM,
    nn.BatchNorm2d: _BATCHNORM,
}


def _positions(value: Tensor, n: int) -> Tensor:
    """(n, ..., features) to (n, positions, features)."""
    return value.reshape(n, -1, value.shape[-1])


def _patches(module: _ConvNd, a: Tensor) -> Tensor:
    """The patch of the input under the kernel at each position, (n, in * kernel, positions)."""
    if a.ndim == 3:  # a convolution over one dimension is one over two, the first of length one
        kernel, dilation, stride = (1, *module.kernel_size), (1, *module.dilation), (1, *module.stride)
        return F.unfold(_padded(module, a)[:, :, None], kernel, dilation, 0, stride)
    return F.unfold(_padded(module, a), module.kernel_size, module.dilation, 0, module.stride)


def _padded(module: _ConvNd, a: Tensor) -> Tensor:
    # The module's own account of its padding also covers padding="same" with even kernels.
    padding = module._reversed_padding_repeated_twice
    return F.pad(a, list(padding)) if any(padding) else a


def _convolve(module: _ConvNd, a: Tensor, filters: Tensor, bias: Tensor | None) -> Tensor:
    function = F.conv1d if a.ndim == 3 else F.conv2d
    output: Tensor = function(a, filters, bias, module.stride, module.padding, module.dilation)
    return output
