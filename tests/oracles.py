"""Slow and obvious versions of what the package does fast."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from recollect import GradientEmbedding
from recollect.embedding.initialisations import set_statistics
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


def gradients_by_torch_func(embedding: GradientEmbedding, inputs: Tensor, targets: Tensor) -> Tensor:
    """Unprojected embeddings: per-example gradients at the same draws, over sqrt(S)."""
    blocks = []
    loss = get_loss(embedding.loss)
    assert embedding.statistics is not None
    for s in range(embedding.inits):
        model = embedding._model(s)
        set_statistics(model, embedding.statistics[s])
        parameters = {name: p.detach() for name, p in model.named_parameters()}

        def one(p: dict[str, Tensor], x: Tensor, y: Tensor, model: nn.Module = model) -> Tensor:
            return loss(functional_call(model, p, (x[None],)), y[None])[0]

        gradients = vmap(grad(one), in_dims=(None, 0, 0))(parameters, inputs, targets)
        blocks.append(torch.cat([gradients[name].reshape(len(inputs), -1) for name in parameters], dim=1))
    return torch.cat(blocks, dim=1) / math.sqrt(embedding.inits)
