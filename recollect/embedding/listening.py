"""Passes through a model that bring out gradients of single examples.

`listen` makes one plain pass and notes every use of a parameter by a function that has a rule (`layers`). It listens to
functions, not to modules, so that tied and reused weights, weights that are multiplied by hand and layers of other
people's making are all heard. What hides several uses in one function is computed from its parts (`composed`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from recollect.batch import Inputs, forward
from recollect.embedding.composed import COMPOSED
from recollect.embedding.layers import FUNCTIONS, RULES, Called, Use
from recollect.losses import LossFunction
from recollect.numerics import single

Key: TypeAlias = tuple[str, str]
"""A parameter and the rule it is used by."""


class Layout(NamedTuple):
    """Where the examples are in what goes through a function.

    They come first, with so many rows each; or second, after the positions; or nowhere, since the result is the same
    for all of them, as with learned positions: then it is made anew for each, so that gradients can be told apart.
    """

    examples: Literal["first", "second", "nowhere"]
    rows: int = 1


@dataclass
class Heard:
    """What a pass brought out.

    Attributes:
        uses: of parameters, examples first, with the gradient at what went out.
        free: gradients of parameters that were made anew for each example, (n, *shape).
        strange: parameters that were used in another way than planned, and by which function.
        losses: of the examples, unscaled, summed over draws if there are several; none where nobody asked a loss.
        any: whether any parameter was used at all, even one that no gradient reaches.
    """

    uses: list[Use]
    free: dict[str, Tensor]
    strange: dict[str, Any]
    losses: Tensor = field(default_factory=lambda: torch.empty(0))
    any: bool = True


class Listener(TorchFunctionMode):
    """Notes each use of the named parameters while a model computes.

    Args:
        names: of the parameters that count, by the identity of their tensors.
        n: how many examples there are.
        mark: makes an output known to autograd, if need be; returns it, and something to ask its gradient by.
        alike: uses whose result is the same for all examples.
        free: parameters that were made anew for each example, by the identity of their copies; see `made_for_each`.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        n: int,
        mark: Callable[[Tensor], tuple[Tensor, Any]],
        alike: frozenset[Key] = frozenset(),
        free: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__()
        self._names, self._n, self._mark, self._alike, self._free = names, n, mark, alike, free or {}
        # Transposed parameters by identity; held, so that no other tensor gets the same.
        self._turned: dict[int, tuple[str, Tensor]] = {}
        self.uses: list[Use] = []
        self.marks: list[Any] = []
        self.strange: dict[str, Any] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._free and args and (ones := self._free.get(id(args[0]), -1)) >= 0:
            if func is _INDEXING:
                return func(args[0], _behind_examples(args[1], ones))
            if func in _CUTTING:  # would cut between examples
                raise RuntimeError("a parameter that is cut cannot be made anew for each example")
        touched = self._touched((*args, *kwargs.values()))
        if not touched:
            return func(*args, **kwargs)
        if func in FUNCTIONS:
            called = RULES[FUNCTIONS[func]].read(*args, **kwargs)
            if called is not None and self._covers(called, touched):
                return self.note(FUNCTIONS[func], called, func(*args, **kwargs))
        elif func in COMPOSED:
            result = COMPOSED[func](self, *args, **kwargs)
            if result is not None:
                return result
        result = func(*args, **kwargs)
        if func in _TURNING and result.ndim == 2:
            self._turned[id(result)] = (touched[0], result)
        elif _holds_another_tensor(result, args):
            self.strange |= dict.fromkeys(touched, func)
        return result

    def name(self, tensor: Tensor | None) -> str | None:
        """What a tensor is called, if it is one of the parameters that count, or one of them transposed."""
        if tensor is None:
            return None
        return self._names.get(id(tensor)) or self._turned.get(id(tensor), (None,))[0]

    def note(self, rule: str, called: Called, output: Tensor) -> Tensor:
        """Note a use; returns the output, from which its gradient can be asked for."""
        if not torch.is_grad_enabled():  # so the model says: nothing goes back from here
            return output
        input, weight, bias, settings = called
        named = (self.name(weight), self.name(bias))
        if id(weight) in self._turned:
            settings = not settings
        if named == (None, None):
            return output
        if (named[0] or named[1], rule) in self._alike:
            input, output = (_for_each(value, self._n) for value in (input, output))
        output, mark = self._mark(output)
        self.uses.append(Use(rule, *named, input.detach(), settings))
        self.marks.append(mark)
        return output

    def marked(self, output: Tensor) -> Tensor:
        """The output, from which a gradient can be asked for."""
        return self._mark(output)[0]

    def _touched(self, values: Iterable[Any]) -> list[str]:
        found = []
        for value in values:
            if isinstance(value, Tensor):
                name = self.name(value)
                if name is not None:
                    found.append(name)
            elif isinstance(value, list | tuple):
                found += self._touched(value)
        return found

    def _covers(self, called: Called, touched: list[str]) -> bool:
        """Whether all parameters came in as weight or bias, and transposed only where that makes sense."""
        named = {self.name(called.weight), self.name(called.bias)}
        turned = id(called.weight) in self._turned
        return named.issuperset(touched) and (not turned or isinstance(called.settings, bool))


def listen(
    model: nn.Module,
    names: Iterable[str],
    inputs: Inputs,
    targets: Tensor,
    losses: LossFunction,
    *,
    layouts: Mapping[Key, Layout] | None = None,
    free: Mapping[str, int] | None = None,
    scale: float = 1.0,
) -> Heard:
    """One forward and one backward pass that note what the named parameters are used for; the loss is scaled.

    No parameter may require a gradient: backward then computes the gradients at the outputs noted alone, and nothing at
    all before the first of them. Outputs are remembered by their edges in the graph, which stay right if an activation
    overwrites them in place.

    Args:
        model: a draw.
        names: parameters that count.
        inputs: of a few examples.
        targets: of the same.
        losses: one per example.
        layouts: where the examples are in each use; uses are left as they came if None.
        free: parameters to be made anew for each example; see `made_for_each`.
        scale: of the loss.
    """
    n, free = len(targets), free or {}
    anchor = torch.zeros((), device=targets.device, requires_grad=True)

    def mark(output: Tensor) -> tuple[Tensor, Any]:
        if not output.requires_grad:
            output = _Anchored.apply(output, anchor)  # type: ignore[no-untyped-call]
        return output, get_gradient_edge(output)

    parameters = dict(model.named_parameters())
    counted = {id(parameters[name]): name for name in names if name not in free}
    alike = frozenset(key for key, layout in (layouts or {}).items() if layout.examples == "nowhere")
    with torch.enable_grad(), made_for_each(model, free, n) as leaves:
        listener = Listener(counted, n, mark, alike, {id(leaf): free[name] for name, leaf in leaves.items()})
        with listener:
            outputs = forward(model, inputs)
        each = losses(outputs, targets)
        gradients: tuple[Tensor | None, ...] = (None,) * (len(listener.marks) + len(leaves))
        if each.requires_grad and gradients:
            asked = [*listener.marks, *leaves.values()]
            gradients = torch.autograd.grad(each, asked, torch.full_like(each, scale), allow_unused=True)
    for use, delta in zip(listener.uses, gradients, strict=False):
        use.delta = None if delta is None else single(delta)
        use.input = single(use.input)
    used = bool(listener.uses or listener.strange or leaves)
    heard = Heard([use for use in listener.uses if use.delta is not None], {}, listener.strange, each.detach(), used)
    for name, gradient in zip(leaves, gradients[len(listener.marks) :], strict=True):
        if gradient is not None:
            heard.free[name] = single(gradient.reshape(n, *parameters[name].shape))
    return heard if layouts is None else arranged(heard, layouts, n)


def arranged(heard: Heard, layouts: Mapping[Key, Layout], n: int) -> Heard:
    """The same with the examples first; uses that have no layout, or another than planned, are strange."""
    uses, strange = [], dict(heard.strange)
    for use in heard.uses:
        layout = layouts.get(key_of(use))
        if layout is None or not fits(use, layout, n):
            strange |= dict.fromkeys(_names(use), use.rule)
        elif layout.examples == "second":
            assert use.delta is not None
            use = replace(use, input=use.input.movedim(1, 0), delta=use.delta.movedim(1, 0))
        uses.append(use)
    # What is used together is computed together: a weight whose bias is strange is left to the slow way too.
    together = [set(_names(use)) for use in uses]
    while more := set[str]().union(*(names for names in together if not names.isdisjoint(strange))) - strange.keys():
        strange |= dict.fromkeys(more, "what it is used with")
    uses = [use for use in uses if strange.keys().isdisjoint(_names(use))]
    return replace(heard, uses=uses, strange=strange)


def key_of(use: Use) -> Key:
    """By what its layout is known."""
    return use.weight or use.bias or "", use.rule


def _names(use: Use) -> list[str]:
    return [name for name in (use.weight, use.bias) if name is not None]


def fits(use: Use, layout: Layout, n: int) -> bool:
    """Whether there are as many examples where the layout says they are."""
    shape = use.input.shape
    if layout.examples == "second":
        return len(shape) > 1 + (use.rule != "table") and shape[1] == n
    return bool(shape) and shape[0] == layout.rows * n


@contextmanager
def made_for_each(model: nn.Module, free: Mapping[str, int], n: int) -> Iterator[dict[str, Tensor]]:
    """Put one copy per example in the place of some parameters: gradients then come out one per example.

    So a parameter without a rule that is added or multiplied, such as a learned position, a class token or a gain,
    costs nothing. Its copies get a dimension for the examples, and as many of length one after it as `free` says, by
    which they meet what they are added to; with -1 they take the place of a first dimension of length one.
    """
    leaves: dict[str, Tensor] = {}
    owners: dict[str, tuple[dict[str, Any], str]] = {}
    for name in free:
        module, _, short = name.rpartition(".")
        owners[name] = (model.get_submodule(module)._parameters, short)
    originals = {name: parameters[short] for name, (parameters, short) in owners.items()}
    try:
        for name, ones in free.items():
            p = originals[name].detach()
            copies = p.expand(n, *p.shape[1:]) if ones < 0 else p.reshape((1,) * (1 + ones) + p.shape)
            leaves[name] = copies.expand(n, *copies.shape[1:]).clone().requires_grad_()
            owners[name][0][owners[name][1]] = leaves[name]
        yield leaves
    finally:
        for name, (parameters, short) in owners.items():
            parameters[short] = originals[name]


class _Anchored(torch.autograd.Function):
    """Makes a tensor require a gradient as if it had been computed from the anchor, without copying it.

    It is marked as changed in place, not returned as a view, so that an in-place activation may follow.
    """

    @staticmethod
    def forward(ctx, output, anchor):  # type: ignore[no-untyped-def]
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx, delta):  # type: ignore[no-untyped-def]
        return None, None


def _behind_examples(index: Any, ones: int) -> Any:
    """Where in copies of a parameter is what has this index in it: `positions[:length]` must not count examples.

    A first None makes a place for the examples, who have theirs already.
    """
    parts = index if isinstance(index, tuple) else (index,)
    return (slice(None),) * (1 + ones) + (parts[1:] if parts and parts[0] is None else parts)


def _for_each(value: Tensor, n: int) -> Tensor:
    """The same for every example, which come first."""
    return value.expand(n, *value.shape[1:]) if value.ndim and len(value) == 1 else value.expand(n, *value.shape)


def _holds_another_tensor(result: Any, args: Iterable[Any]) -> bool:
    if isinstance(result, Tensor):
        return not any(result is arg for arg in args)
    return isinstance(result, list | tuple) and any(isinstance(value, Tensor) for value in result)


_OF_TENSOR: Any = Tensor
_INDEXING = _OF_TENSOR.__getitem__
_CUTTING = (
    *(_OF_TENSOR.split, torch.split, _OF_TENSOR.split_with_sizes, torch.split_with_sizes),
    *(_OF_TENSOR.tensor_split, torch.tensor_split, _OF_TENSOR.chunk, torch.chunk),
    *(_OF_TENSOR.unbind, torch.unbind, _OF_TENSOR.__iter__),
)
_TURNING = (
    *(_OF_TENSOR.t, torch.t, _OF_TENSOR.T.__get__, _OF_TENSOR.mT.__get__),
    *(_OF_TENSOR.transpose, torch.transpose),
)
