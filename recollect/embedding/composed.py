"""Functions of torch that hide several uses of parameters, computed from their parts, each of which is noted.

They are attention and recurrent layers. A form that is not known here gives None: the function is then used as it is.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from recollect.embedding.layers import Called


class Notes(Protocol):
    """Who is told of each part."""

    def note(self, rule: str, called: Called, output: Tensor) -> Tensor:
        """Note a use; returns the output, from which its gradient can be asked for."""

    def marked(self, output: Tensor) -> Tensor:
        """The output, from which a gradient can be asked for."""


def _linear(notes: Notes, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return notes.note("linear", Called(x, weight, bias, True), F.linear(x, weight, bias))


def _attend(
    notes: Notes,
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
    queries = _linear(notes, q, in_proj_weight, in_proj_bias)
    keys = queries if same[0] else _linear(notes, k, in_proj_weight, in_proj_bias)
    values = queries if same[1] else keys if same[2] else _linear(notes, v, in_proj_weight, in_proj_bias)

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
    output = _linear(notes, mixed, out_proj_weight, out_proj_bias).transpose(0, 1)
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

    def run(notes: Notes, input: Tensor, hx: Any, weights: Any, *options: Any) -> Any:
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
                output, state = _unrolled(notes, cell, steps, state, w_x, w_h, b_x, b_h)
                outputs.append(output.flip(1) if direction else output)
                last.append(state)
            x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        return (x if batch_first else x.transpose(0, 1), *(torch.stack(parts) for parts in zip(*last, strict=True)))

    return run


def _unrolled(
    notes: Notes,
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
        from_x = _linear(notes, x, w_x, b_x)
        added_to = torch.zeros_like(from_x, requires_grad=True)
        steps: Iterable[Tensor | None] = from_x.unbind(1)
        starts = added_to if b_h is None else added_to + b_h
    else:
        both = b_x if b_x is None or b_h is None else b_x + b_h
        from_x = notes.note("linear", Called(x, w_x, b_x, True), F.linear(x, w_x, both))
        starts = added_to = notes.marked(from_x)
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
    notes.note("linear", Called(before, w_h, b_h, True), added_to)
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
        notes: Notes,
        input: Tensor,
        hx: Any,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Any:
        state = hx if isinstance(hx, tuple | list) else (hx,)
        x, h = _linear(notes, input, w_ih, b_ih), _linear(notes, state[0], w_hh, b_hh)
        after = cell(x, h, tuple(state)) if cell is _gru_cell else cell(None, x + h, tuple(state))
        return after if len(after) > 1 else after[0]

    return run


_VF: Any = torch._VF
_CELLS = {"lstm": _lstm_cell, "gru": _gru_cell, "rnn_tanh": _tanh_cell, "rnn_relu": _relu_cell}
COMPOSED: dict[Any, Callable[..., Any]] = {
    F.multi_head_attention_forward: _attend,
    **{getattr(_VF, name): _recur(cell) for name, cell in _CELLS.items()},
    **{getattr(_VF, f"{name}_cell"): _step(cell) for name, cell in _CELLS.items()},
}
