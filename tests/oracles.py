"""Slow and obvious versions of what the package does fast."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad

from recollect import GradientEmbedding
from recollect.batch import Inputs, map_inputs
from recollect.embedding.initialisations import set_statistics
from recollect.embedding.plan import Plan
from recollect.embedding.projections import Kronecker, Projection, Sparse
from recollect.losses import get_loss

Array = NDArray[np.float64]


def fit_from_scratch(G: Array, g: Array, regularization: float, center: str) -> Array:
    """Weights by the regularised normal equations (Sec. 2.3)."""
    K, b = G @ G.T, G @ g
    u = b.sum() / K.sum() if center == "uniform" and K.sum() > 0 else 0.0
    weights: Array = np.linalg.solve(K + regularization * np.eye(len(G)), b + regularization * u).astype(np.float64)
    return weights


def pursue_from_scratch(G: Array, g: Array, size: int, regularization: float, center: str) -> tuple[list[int], Array]:
    """Alg. 1, refitting everything at every pick."""
    chosen: list[int] = []
    weights = np.zeros(0)
    for _ in range(size):
        residual = g - weights @ G[chosen]
        scores = G @ residual
        scores[chosen] = -np.inf
        chosen.append(int(scores.argmax()))
        weights = fit_from_scratch(G[chosen], g, regularization, center)
    return chosen, weights


def pursue_least_squares_from_scratch(
    G: Array, g: Array, size: int, regularization: float, center: str
) -> tuple[list[int], Array]:
    """At every pick, try every row: which one, with a positive weight, lowers the objective most?

    The objective is |gamma G_I - g|^2 + lambda |gamma - u|^2 with u as it was before the pick, zero for the new row.
    """

    def objective(rows: list[int], centre: Array) -> tuple[float, float]:
        R = G[rows]
        weights = np.linalg.solve(R @ R.T + regularization * np.eye(len(R)), R @ g + regularization * centre)
        squares = np.square(g - weights @ R).sum() + regularization * np.square(weights - centre).sum()
        return float(squares), float(weights[-1])

    chosen: list[int] = []
    for _ in range(size):
        total = G[chosen].sum(0)
        u = total @ g / (total @ total) if center == "uniform" and chosen else 0.0
        centre = np.append(np.full(len(chosen), u), 0.0)
        others = [k for k in range(len(G)) if k not in chosen]
        trials = {k: objective([*chosen, k], centre) for k in others}
        chosen.append(min((squares, k) for k, (squares, weight) in trials.items() if weight > 0)[1])
    return chosen, fit_from_scratch(G[chosen], g, regularization, center)


def gradients_by_torch_func(embedding: GradientEmbedding, inputs: Inputs, targets: Tensor) -> Tensor:
    """Unprojected embeddings: per-example gradients at the same draws, over sqrt(S), one example at a time."""
    blocks = []
    loss = get_loss(embedding.loss)
    assert embedding.prepared is not None
    for s in range(embedding.inits):
        model = embedding._model(s)
        set_statistics(model, embedding.prepared.statistics[s])
        parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

        def one(p: dict[str, Tensor], x: Inputs, y: Tensor, model: nn.Module = model) -> Tensor:
            given = {"args": (), "kwargs": x} if isinstance(x, dict) else {"args": (x,)}
            outputs = functional_call(model, p, **given)
            return loss(getattr(outputs, "logits", outputs), y)[0]

        examples = [(map_inputs(lambda t, i=i: t[i : i + 1], inputs), targets[i : i + 1]) for i in range(len(targets))]
        rows = [grad(one)(parameters, *example) for example in examples]
        blocks.append(torch.stack([torch.cat([row[name].flatten() for name in parameters]) for row in rows]))
    return torch.cat(blocks, dim=1) / math.sqrt(embedding.inits)


def dense(projection: Projection, plan: Plan) -> Tensor:
    """What was drawn for a projection, as one matrix from all entries of a gradient to its numbers, (D, d)."""
    rows = []
    for name, shape in plan.shapes.items():
        size = math.prod(shape)
        out = torch.zeros(size, projection.width)
        if isinstance(projection, Sparse):
            columns, starts, values = projection._blocks[name]
            ends = [*starts.tolist()[1:], len(columns)]
            for k, (start, end) in enumerate(zip(starts.tolist(), ends, strict=True)):
                for column, value in zip(columns[start:end].tolist(), values[start:end].tolist(), strict=True):
                    out[column, k] += value
        elif isinstance(projection, Kronecker):
            weight = next((w for w, unit in plan.units.items() if name in (w, unit.bias)), None)
            if weight is not None:
                out = _dense_unit(projection, plan, weight, name)
            else:
                places = projection._hashes.get(name, torch.arange(size) + projection._starts.get(name, 0))
                out[torch.arange(size), places] = projection._signs[name]
        rows.append(out)
    return torch.cat(rows)


def _dense_unit(projection: Kronecker, plan: Plan, weight: str, name: str) -> Tensor:
    """Kronecker's product of both sides, entry by entry of the weight, or of the bias that is its last column."""
    unit, (P, Q, shift) = plan.units[weight], projection._factors[weight]
    P = torch.diag(P) if P.ndim == 1 else P
    if Q.ndim == 1:
        Q = torch.diag(Q if shift is None else torch.cat([Q, shift.reshape(1)]))
    elif shift is not None:
        Q = torch.cat([Q, shift[:, None]], 1)
    start, width = projection._starts[weight], len(P) * len(Q)
    shape = plan.shapes[weight]
    n_columns = math.prod(shape[1:])
    entries = [(r, c) for r in range(shape[0]) for c in range(n_columns)]
    if name == unit.bias:
        entries = [(r, unit.n_in - 1) for r in range(unit.n_out)]
    out = torch.zeros(len(entries), projection.width)
    for i, (r, c) in enumerate(entries):
        o, a = (r, c) if unit.rows_are_outputs or name == unit.bias else (c, r)
        out[i, start : start + width] = torch.outer(P[:, o], Q[:, a]).flatten()
    return out
