"""Passes through a model that bring out gradients of single examples.

`listen` makes one plain pass and notes every use of a parameter by a function that has a rule (`layers`). It listens to
functions, not to modules, so that tied and reused weights, weights that are multiplied by hand and layers of other
people's making are all heard. Attention and recurrent layers, which hide several uses in one function, are computed
from their parts (`_attend`, `_recur`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.func import grad, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from recollect.batch import Inputs, forward, functional_forward, map_inputs
from recollect.embedding.layers import FUNCTIONS, RULES, Called, Use
from recollect.losses import LossFunction, check_losses
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
    """

    uses: list[Use]
    free: dict[str, Tensor]
    strange: dict[str, Any]


class Listener(TorchFunctionMode):
    """Notes each use of the named parameters while a model computes.

    Args:
        names: of the parameters that count, by the identity of their tensors.
        n: how many examples there are.
        mark: makes an output known to autograd, if need be; returns it, and something to ask its gradient by.
        alike: uses whose result is the same for all examples.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        n: int,
        mark: Callable[[Tensor], tuple[Tensor, Any]],
        alike: frozenset[Key] = frozenset(),
    ) -> None:
        super().__init__()
        self._names, self._n, self._mark, self._alike = names, n, mark, alike
        self._turned: dict[
            int, tuple[str, Tensor]
        ] = {}  # transposed parameters, held so that no other gets their place
        self.uses: list[Use] = []
        self.marks: list[Any] = []
        self.strange: dict[str, Any] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        touched = self._touched((*args, *kwargs.values()))
        if not touched:
            return func(*args, **kwargs)
        if func in FUNCTIONS:
            called = RULES[FUNCTIONS[func]].read(*args, **kwargs)
            if called is not None and self._covers(called, touched):
                return self.note(FUNCTIONS[func], called, func(*args, **kwargs))
        elif func in _COMPOSED:
            result = _COMPOSED[func](self, *args, **kwargs)
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
    listener = Listener(counted, n, mark, alike)
    with torch.enable_grad(), made_for_each(model, free, n) as leaves:
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
    heard = Heard([use for use in listener.uses if use.delta is not None], {}, listener.strange)
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
    while more := {name for use in uses for name in _names(use) if not strange.keys().isdisjoint(_names(use))} - set(
        strange
    ):
        strange |= dict.fromkeys(more, "what it is used with")
    return Heard([use for use in uses if strange.keys().isdisjoint(_names(use))], heard.free, strange)


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


def _for_each(value: Tensor, n: int) -> Tensor:
    """The same for every example, which come first."""
    return value.expand(n, *value.shape[1:]) if value.ndim and len(value) == 1 else value.expand(n, *value.shape)


def _holds_another_tensor(result: Any, args: Iterable[Any]) -> bool:
    if isinstance(result, Tensor):
        return not any(result is arg for arg in args)
    return isinstance(result, list | tuple) and any(isinstance(value, Tensor) for value in result)


# Functions that hide several uses of parameters: computed from their parts, each of which is heard


def _linear(listener: Listener, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return listener.note("linear", Called(x, weight, bias, True), F.linear(x, weight, bias))


def _attend(
    listener: Listener,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    use_separate_proj_weight: bool = False,
    **rest: Any,
) -> Any:
    """`F.multi_head_attention_forward` in its usual forms; None for others."""
    if query.ndim != 3 or use_separate_proj_weight or in_proj_weight is None or training or add_zero_attn:
        return None
    if is_causal and attn_mask is None:
        return None  # torch wants a mask and says so
    if bias_k is not None or bias_v is not None or rest.get("static_k") is not None or rest.get("static_v") is not None:
        return None
    width = query.shape[2]
    same = key is query, value is query, value is key
    q, k, v = (x.transpose(0, 1) for x in (query, key, value))  # (n, positions, width)
    queries = _linear(listener, q, in_proj_weight, in_proj_bias)
    keys = queries if same[0] else _linear(listener, k, in_proj_weight, in_proj_bias)
    values = queries if same[1] else keys if same[2] else _linear(listener, v, in_proj_weight, in_proj_bias)

    def heads(x: Tensor, part: int) -> Tensor:
        x = x[..., part * width : (part + 1) * width]
        return x.unflatten(2, (num_heads, -1)).transpose(1, 2)  # type: ignore[no-any-return]

    Q, K, V = heads(queries, 0), heads(keys, 1), heads(values, 2)
    scores = Q @ K.mT * Q.shape[-1] ** -0.5
    if attn_mask is not None:
        attn_mask = attn_mask.unflatten(0, (-1, num_heads)) if attn_mask.ndim == 3 else attn_mask
        scores = _masked(scores, attn_mask)
    if key_padding_mask is not None:
        scores = _masked(scores, key_padding_mask[:, None, None])
    attention = scores.softmax(-1)
    mixed = (attention @ V).transpose(1, 2).flatten(2)
    output = _linear(listener, mixed, out_proj_weight, out_proj_bias).transpose(0, 1)
    if not need_weights:
        return output, None
    return output, attention.mean(1) if rest.get("average_attn_weights", True) else attention


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else scores + mask


State: TypeAlias = tuple[Tensor, ...]
Cell: TypeAlias = Callable[[Tensor | None, Tensor, State], State]
"""What came of the input and of the state before, and that state, to the state after; its first part is put out.

Where only the sum of the first two counts, it takes the place of the second, and the first is None.
"""


def _lstm_cell(x: Tensor | None, gates: Tensor, state: State) -> State:
    width = gates.shape[-1] // 4
    i_f, g, o = gates.split([2 * width, width, width], -1)
    i, f = i_f.sigmoid().chunk(2, -1)
    c = torch.addcmul(f * state[1], i, g.tanh())
    return o.sigmoid() * c.tanh(), c


def _gru_cell(x: Tensor | None, h: Tensor, state: State) -> State:
    assert x is not None
    width = h.shape[-1] // 3
    (x_rz, x_n), (h_rz, h_n) = (part.split([2 * width, width], -1) for part in (x, h))
    r, z = (x_rz + h_rz).sigmoid().chunk(2, -1)
    return (torch.lerp(torch.addcmul(x_n, r, h_n).tanh(), state[0], z),)


def _tanh_cell(x: Tensor | None, h: Tensor, state: State) -> State:
    return (h.tanh(),)


def _relu_cell(x: Tensor | None, h: Tensor, state: State) -> State:
    return (h.relu(),)


def _recur(cell: Cell) -> Callable[..., Any]:
    """A recurrent layer of torch, step by step; None in forms other than a plain tensor of sequences."""

    def run(listener: Listener, input: Tensor, hx: Any, weights: Any, *options: Any) -> Any:
        if not isinstance(weights, list) or len(options) != 6:
            return None  # a packed sequence
        has_biases, layers, dropout, training, bidirectional, batch_first = options
        directions = 2 if bidirectional else 1
        per_layer = 4 if has_biases else 2
        if (training and dropout) or len(weights) != per_layer * layers * directions:
            return None  # or projected outputs
        x = input if batch_first else input.transpose(0, 1)
        first = hx if isinstance(hx, tuple) else (hx,)
        last: list[State] = []
        for layer in range(layers):
            outputs = []
            for direction in range(directions):
                place = layer * directions + direction
                some = weights[per_layer * place : per_layer * (place + 1)]
                w_x, w_h, b_x, b_h = some if has_biases else (*some, None, None)
                steps = x.flip(1) if direction else x
                state = tuple(part[place] for part in first)
                output, state = _unrolled(listener, cell, steps, state, w_x, w_h, b_x, b_h)
                outputs.append(output.flip(1) if direction else output)
                last.append(state)
            x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        return (x if batch_first else x.transpose(0, 1), *(torch.stack(parts) for parts in zip(*last, strict=True)))

    return run


def _unrolled(
    listener: Listener,
    cell: Cell,
    x: Tensor,
    state: State,
    w_x: Tensor,
    w_h: Tensor,
    b_x: Tensor | None,
    b_h: Tensor | None,
) -> tuple[Tensor, State]:
    """One layer in one direction, (n, steps, ...)."""
    # What comes of the states is added to what comes of the inputs, or to nothing: its gradient is that at every step.
    if cell is _gru_cell:
        from_x = _linear(listener, x, w_x, b_x)
        added_to = torch.zeros_like(from_x, requires_grad=True)
        steps: Iterable[Tensor | None] = from_x.unbind(1)
        starts = added_to if b_h is None else added_to + b_h
    else:
        both = b_x if b_x is None or b_h is None else b_x + b_h
        from_x = listener.note("linear", Called(x, w_x, b_x, True), F.linear(x, w_x, both))
        starts = added_to = listener.marked(from_x)
        steps = [None] * x.shape[1]
    if cell is _lstm_cell:
        states, c = _Lstm.apply(starts, w_h, *state)  # type: ignore[no-untyped-call]
        before, outputs, state = states[:, :-1], states[:, 1:], (states[:, -1], c)
    else:
        hs = [state[0]]
        for step, start in zip(steps, starts.unbind(1), strict=True):
            state = cell(step, torch.addmm(start, state[0], w_h.t()), state)
            hs.append(state[0])
        before, outputs = torch.stack(hs[:-1], 1), torch.stack(hs[1:], 1)
    listener.note("linear", Called(before, w_h, b_h, True), added_to)
    return outputs, state


class _Lstm(torch.autograd.Function):
    """All steps of an LSTM, and back by hand: autograd takes a third longer, as it keeps what each operation gave.

    With the gates i, f, g and o, the cell is c = f c' + i g and the state h = o tanh(c). What comes of the inputs is
    (n, steps, 4 width), the states are (n, 1 + steps, width) from the first on.
    """

    @staticmethod
    def forward(ctx, from_x, w_h, h, c):  # type: ignore[no-untyped-def]
        width, states, ctx.w_h, ctx.steps = h.shape[1], [h], w_h, []
        for start in from_x.unbind(1):
            i_f, g, o = torch.addmm(start, h, w_h.t()).split([2 * width, width, width], 1)
            i_f, g, o = i_f.sigmoid(), g.contiguous().tanh_(), o.sigmoid()
            i, f = i_f.chunk(2, 1)
            before, c = c, (f * c).addcmul_(i, g)
            h = o * c.tanh()
            ctx.steps.append((i_f, g, o, before, c))
            states.append(h)
        return torch.stack(states, 1), c

    @staticmethod
    def backward(ctx, d_states, dc):  # type: ignore[no-untyped-def]
        *d_earlier, dh = d_states.unbind(1)
        d_gates = []
        for (i_f, g, o, before, c), d_earlier_h in zip(reversed(ctx.steps), reversed(d_earlier), strict=True):
            i, f = i_f.chunk(2, 1)
            squashed = c.tanh()
            dc = dc + _through_tanh(dh * o, squashed)
            d_i_f = _through_sigmoid(torch.cat([dc * g, dc * before], 1), i_f)
            d_g, d_o = _through_tanh(dc * i, g), _through_sigmoid(dh * squashed, o)
            d_gates.append(torch.cat([d_i_f, d_g, d_o], 1))
            dc = dc * f
            dh = torch.addmm(d_earlier_h, d_gates[-1], ctx.w_h)
        return torch.stack(d_gates[::-1], 1), None, dh, dc


# The gradient before a function, from that after it and from what it gave.
_through_sigmoid, _through_tanh = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward


def _step(cell: Cell) -> Callable[..., Any]:
    """A cell of torch, used once."""

    def run(
        listener: Listener,
        input: Tensor,
        hx: Any,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Any:
        state = hx if isinstance(hx, tuple | list) else (hx,)
        x, h = _linear(listener, input, w_ih, b_ih), _linear(listener, state[0], w_hh, b_hh)
        after = cell(x, h, tuple(state)) if cell is _gru_cell else cell(None, x + h, tuple(state))
        return after if len(after) > 1 else after[0]

    return run


_VF: Any = torch._VF
_CELLS = {"lstm": _lstm_cell, "gru": _gru_cell, "rnn_tanh": _tanh_cell, "rnn_relu": _relu_cell}
_COMPOSED: dict[Any, Callable[..., Any]] = {
    F.multi_head_attention_forward: _attend,
    **{getattr(_VF, name): _recur(cell) for name, cell in _CELLS.items()},
    **{getattr(_VF, f"{name}_cell"): _step(cell) for name, cell in _CELLS.items()},
}
_OF_TENSOR: Any = Tensor
_TURNING = (
    *(_OF_TENSOR.t, torch.t, _OF_TENSOR.T.__get__, _OF_TENSOR.mT.__get__),
    *(_OF_TENSOR.transpose, torch.transpose),
)


def gradients_of(total: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Of a sum of losses; zero for parameters that it does not depend on."""
    if not total.requires_grad:
        return tuple(map(torch.zeros_like, parameters))
    return torch.autograd.grad(total, parameters, allow_unused=True, materialize_grads=True)


# The slow ways


def gradients_by_func(
    model: nn.Module, names: list[str], inputs: Inputs, targets: Tensor, loss: LossFunction
) -> dict[str, Tensor]:
    """Per-example gradients of the named parameters through torch.func: right for any model, if slower."""
    parameters = dict(model.named_parameters())
    chosen = {name: parameters[name] for name in names}

    def one(some: Mapping[str, Tensor], example: Inputs, target: Tensor) -> Tensor:
        outputs = functional_forward(model, some, map_inputs(lambda t: t[None], example))
        return check_losses(loss(outputs, target[None]), 1)[0]

    try:
        with sdpa_kernel(SDPBackend.MATH):  # the one form of attention that vmap can batch
            return vmap(grad(one), in_dims=(None, 0, 0))(chosen, inputs, targets)  # type: ignore[no-any-return]
    except RuntimeError:  # something that vmap cannot batch: one example at a time
        examples = [(map_inputs(lambda t, i=i: t[i], inputs), targets[i]) for i in range(len(targets))]  # type: ignore[misc]
        pieces = [grad(one)(chosen, *example) for example in examples]
        return {name: torch.stack([piece[name] for piece in pieces]) for name in names}


def gradients_by_autograd(
    model: nn.Module, names: list[str], inputs: Inputs, targets: Tensor, losses: LossFunction
) -> list[dict[str, Tensor | None]]:
    """The gradients of each example alone, the plainest way; None where the loss does not depend on a parameter."""
    parameters = dict(model.named_parameters())
    truth: list[dict[str, Tensor | None]] = []
    for i in range(len(targets)):
        with torch.enable_grad():
            outputs = forward(model, map_inputs(lambda t, i=i: t[i : i + 1], inputs))  # type: ignore[misc]
            loss = losses(outputs, targets[i : i + 1]).sum()
            gradients: tuple[Tensor | None, ...] = (None,) * len(names)
            if loss.requires_grad:
                gradients = torch.autograd.grad(loss, [parameters[name] for name in names], allow_unused=True)
        truth.append(dict(zip(names, gradients, strict=True)))
    return truth
